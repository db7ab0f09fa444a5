"""GET /metrics speaks the Prometheus text format under vLLM's names."""

from __future__ import annotations

import re

from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.executors.base import StepCost
from engine_adapters.reference.metrics import exposition
from engine_adapters.reference.request import Request
from engine_adapters.reference.scheduler import SchedulerOutput


class OneToken:
    """Emits an `A` for whoever samples."""

    def warmup(self) -> None: ...

    def capacity(self) -> int:
        return 1 << 20

    def step_cost(self, output: SchedulerOutput) -> StepCost:
        return StepCost(0.0, 0.0)

    def close(self) -> None: ...

    def execute(self, output: SchedulerOutput) -> list[list[int]]:
        return [[65] if item.samples else [] for item in output.scheduled]


def samples(core: EngineCore) -> dict[str, float]:
    lines = [line for line in exposition(core, "tiny").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r'vllm:[a-z_]+\{([a-z_]+="[^"]*",?)+\} [0-9.e+-]+', line) for line in lines)
    return {line.split(" ")[0]: float(line.split(" ")[1]) for line in lines}


def test_counters_and_gauges_follow_the_scheduler() -> None:
    core = EngineCore(EngineConfig(max_num_seqs=1, num_blocks=256), OneToken())
    for i in range(2):
        core.scheduler.add(Request(str(i), [1] * 20, 2, ignore_eos=True))
    core.step()
    labels = '{engine="0",model_name="tiny"}'
    first = samples(core)
    assert first["vllm:num_requests_running" + labels] == 1
    assert first["vllm:num_requests_waiting" + labels] == 1
    assert first["vllm:kv_cache_usage_perc" + labels] == 2 / 256
    assert first["vllm:prompt_tokens_total" + labels] == 40
    assert first["vllm:generation_tokens_total" + labels] == 1
    while core.scheduler.has_work:
        core.step()
    last = samples(core)
    assert last['vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"}'] == 2
    assert last["vllm:generation_tokens_total" + labels] == 4
    assert last["vllm:kv_cache_usage_perc" + labels] == 0
    assert last['vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="256"}'] == 1
