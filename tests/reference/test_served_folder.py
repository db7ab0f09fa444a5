"""A folder with a config.json, served: over HTTP it answers as the executor does, with drafts, logprobs and int8 KV."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.hf_folder import MODELS, write_model

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.numpy import NumpyExecutor
from engine_adapters.reference.model_loader import load_model
from engine_adapters.reference.process import EngineProcess
from engine_adapters.reference.request import Request

pytestmark = pytest.mark.e2e
PROMPT = [65, 66, 67, 65, 66, 67, 65, 66]
LOOPING = {**MODELS["qwen3-moe"], "vocab_size": 300, "tie_word_embeddings": True, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "my-moe"
    write_model(path, LOOPING)
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EngineProcess]:
    options = ["--num-speculative-tokens", "4", "--kv-cache-dtype", "int8", "--num-blocks", "64"]
    with EngineProcess(model=str(folder), extra_args=options) as process:
        yield process


def raw(engine: EngineProcess, path: str, body: Any = None) -> str:
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=30)
    with closing(connection):
        connection.request("POST" if body else "GET", path, body and json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text


def ask(engine: EngineProcess, path: str, body: Any = None) -> Any:
    return json.loads(raw(engine, path, body))


def test_it_is_called_as_its_folder_and_has_the_positions_of_its_config(engine: EngineProcess) -> None:
    [model] = ask(engine, "/v1/models")["data"]
    assert (model["id"], model["max_model_len"]) == ("my-moe", MODELS["qwen3-moe"]["max_position_embeddings"])


def test_its_greedy_answer_is_the_executors_and_guesses_are_counted(engine: EngineProcess, folder: Path) -> None:
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    answer = ask(engine, "/v1/completions", body)
    loaded, config = load_model(str(folder)), EngineConfig(max_model_len=256)
    executor = NumpyExecutor(loaded.config, config, loaded.weights, loaded.tokenizer, "int8")
    core, request = EngineCore(config, executor), Request("0", PROMPT, 60, ignore_eos=True)
    core.add(request)
    while core.scheduler.has_work:
        core.step()
    assert answer["choices"][0]["text"] == loaded.tokenizer.decode(request.output_token_ids)
    lines = dict(line.rsplit(" ", 1) for line in raw(engine, "/metrics").splitlines() if not line.startswith("#"))
    counts = {name: float(n) for name, n in lines.items() if "spec_decode" in name and "created" not in name}
    accepted = [n for name, n in counts.items() if name.startswith("vllm:spec_decode_num_accepted_tokens_total")]
    assert len(accepted) == 1
    assert 0 < accepted[0] < 60


def test_accepted_guesses_share_an_event(engine: EngineProcess) -> None:
    body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    whole = ask(engine, "/v1/completions", body)["choices"][0]["text"]
    lines = raw(engine, "/v1/completions", {**body, "stream": True}).split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    texts = [event["choices"][0]["text"] for event in events if event["choices"]]
    assert "".join(texts) == whole
    assert len([text for text in texts if text]) < 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "nosuch"], "no model 'nosuch': known are tiny, small, or the folder of a config.json"),
        (["--max-model-len", "1000"], "the model has only 256 positions"),
        (["--kv-cache-dtype", "fp4"], "--kv-cache-dtype fp4: must be one of auto, int8, fp8"),
    ],
)
def test_what_can_not_be_served_is_one_line_and_exit_code_2(options: list[str], said: str, folder: Path) -> None:
    command = [sys.executable, "-m", "engine_adapters.reference", "--port", "0", "--model", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
