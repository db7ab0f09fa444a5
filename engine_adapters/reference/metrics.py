"""Writes the engine's state in the Prometheus text format under vLLM's metric names and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine_adapters.reference.engine import EngineCore

Sample = tuple[Mapping[str, str], float]


def exposition(core: EngineCore, model_name: str) -> str:
    """The body of GET /metrics. Read while the engine runs, so samples may be one step apart."""
    scheduler, stats = core.scheduler, core.scheduler.stats
    labels = {"engine": "0", "model_name": model_name}
    finished = [({**labels, "finished_reason": reason}, n) for reason, n in stats.finished.items()]
    cache = {"engine": "0", "block_size": str(core.config.block_size), "num_gpu_blocks": str(core.config.num_blocks)}
    n_running = len(scheduler.running)
    families = [
        _family("num_requests_running", "gauge", "Requests in the running batch.", [(labels, n_running)]),
        _family("num_requests_waiting", "gauge", "Requests in the queue.", [(labels, len(scheduler.waiting))]),
        _family("kv_cache_usage_perc", "gauge", "KV blocks in use, 1 is all.", [(labels, scheduler.pool.usage)]),
        _family("num_preemptions_total", "counter", "Preemptions.", [(labels, stats.num_preemptions)]),
        _family("prompt_tokens_total", "counter", "Prompt tokens accepted.", [(labels, stats.prompt_tokens)]),
        _family("generation_tokens_total", "counter", "Tokens generated.", [(labels, stats.generation_tokens)]),
        _family("request_success_total", "counter", "Requests by their end.", finished),
        _family("cache_config_info", "gauge", "KV cache configuration.", [(cache, 1)]),
    ]
    return "".join(families)


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{key}="{label}"' for key, label in labels.items())
        lines.append(f"vllm:{name}{{{pairs}}} {float(value)}")
    return "\n".join(lines) + "\n"
