"""GET /metrics: the engine's state and counts in the Prometheus text format, under vLLM's names and labels.

What vLLM has no name for stands under `openloop_`. Families that vLLM has for things which do not exist here (a
connector's cache, images, sleep) are zero, so that its dashboards' panels are empty and not broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_adapters.reference.engine import EngineCore
from engine_adapters.reference.engine_stats import REQUEST_FAMILIES, EngineStats
from engine_adapters.reference.prometheus import Labels, family, histogram
from engine_adapters.reference.server_stats import ServerStats

SCHEDULER_REASONS = ("capacity", "deferred")
SLEEP_STATES = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
CACHED_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the hardware reaches at best, bytes/s and FLOP/s; the live fractions are shares of it."""

    bandwidth_bps: float
    flops: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that one scrape reads. Without ceilings there are live rates and no fractions."""

    model_name: str
    core: EngineCore
    engine: EngineStats
    server: ServerStats
    ceilings: Ceilings | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Of everything that an engine counts."""
        return {"engine": "0", "model_name": self.model_name}

    def by(self, key: str, values: Mapping[Any, float]) -> list[tuple[Labels, float]]:
        """One sample a key of `values`, under the label `key`."""
        return [({**self.labels, key: str(name)}, value) for name, value in values.items()]

    def counter(self, name: str, text: str, value: float) -> str:
        """A counter of vLLM's with the engine's labels."""
        return family(f"vllm:{name}", "counter", text, [(self.labels, value)])

    def gauge(self, name: str, text: str, value: float, prefix: str = "vllm:") -> str:
        """A gauge with the engine's labels."""
        return family(prefix + name, "gauge", text, [(self.labels, value)])


def exposition(scrape: Scrape) -> str:
    """The body of GET /metrics. Read while the engine runs, so samples may be one step apart."""
    parts = (_queue, _tokens, _prefix_cache, _cost, _requests, _latencies, _cache_config, _live, _http)
    return "".join(part(scrape) for part in parts)


def _queue(scrape: Scrape) -> str:
    scheduler = scrape.core.scheduler
    n_waiting = len(scheduler.waiting)
    reasons = scrape.by("reason", {"capacity": n_waiting, "deferred": 0})
    return (
        scrape.gauge("num_requests_running", "Requests in the running batch.", len(scheduler.running))
        + scrape.gauge("num_requests_waiting", "Requests that wait to be computed.", n_waiting)
        + family("vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by what they wait for.", reasons)
        + family("vllm:engine_sleep_state", "gauge", "It never sleeps.", scrape.by("sleep_state", SLEEP_STATES))
        + scrape.gauge("kv_cache_usage_perc", "KV blocks in use, 1 is all.", scheduler.pool.usage)
        + scrape.counter("num_preemptions_total", "Preemptions.", scheduler.stats.num_preemptions)
    )


def _tokens(scrape: Scrape) -> str:
    stats = scrape.core.scheduler.stats
    n_hits = stats.prefix_cache_hits
    sources = {
        "local_compute": stats.prefix_cache_queries - n_hits,
        "local_cache_hit": n_hits,
        "external_kv_transfer": 0,
    }
    cached = dict.fromkeys(CACHED_SOURCES, 0) | {"device": n_hits}
    by_source, cached_by_source = scrape.by("source", sources), scrape.by("source", cached)
    text = "Prompt tokens found in a cache, by where."
    return (
        scrape.counter("prompt_tokens_total", "Prompt tokens of requests taken on.", stats.prompt_tokens)
        + family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where from.", by_source)
        + scrape.counter("prompt_tokens_cached_total", "Prompt tokens found in a cache.", n_hits)
        + family("vllm:prompt_tokens_cached_by_source_total", "counter", text, cached_by_source)
        + scrape.counter("generation_tokens_total", "Tokens generated.", stats.generation_tokens)
    )


def _prefix_cache(scrape: Scrape) -> str:
    stats = scrape.core.scheduler.stats
    absent = [f"{cache}_cache_{what}_total" for cache in ("external_prefix", "mm") for what in ("queries", "hits")]
    return (
        scrape.counter("prefix_cache_queries_total", "Prompt tokens looked up.", stats.prefix_cache_queries)
        + scrape.counter("prefix_cache_hits_total", "Prompt tokens found.", stats.prefix_cache_hits)
        + "".join(scrape.counter(name, "Zero: there is no such cache.", 0) for name in absent)
        + scrape.counter("spec_decode_num_drafts_total", "Decodes with guesses to verify.", stats.num_drafts)
        + scrape.counter("spec_decode_num_draft_tokens_total", "Guesses verified.", stats.num_draft_tokens)
        + scrape.counter("spec_decode_num_accepted_tokens_total", "Guesses that were right.", stats.num_accepted_tokens)
    )


def _cost(scrape: Scrape) -> str:
    totals = scrape.core.totals
    return (
        scrape.counter("estimated_flops_per_gpu_total", "FLOPs that steps must compute.", totals.flops)
        + scrape.counter("estimated_read_bytes_per_gpu_total", "Bytes that steps must read.", totals.n_bytes)
        + scrape.counter("estimated_write_bytes_per_gpu_total", "Zero: counted with the bytes read.", 0)
    )


def _requests(scrape: Scrape) -> str:
    finished = scrape.by("finished_reason", {**scrape.core.scheduler.stats.finished, "repetition": 0})
    rejected = {"max_num_queued_reqs": scrape.server.rejections["queue_full"], "max_num_queued_tokens": 0}
    by_vllm = [({"model_name": scrape.model_name, "reason": reason}, n) for reason, n in rejected.items()]
    ours = scrape.by("reason", scrape.server.rejections)
    choices = [(scrape.labels, scrape.server.choices)]
    return (
        family("vllm:request_success_total", "counter", "Requests by how they ended.", finished)
        + family("vllm:admission_rejections_total", "counter", "Requests that a full queue turned away.", by_vllm)
        + family("openloop_rejections_total", "counter", "Requests turned away, by reason.", ours)
        + histogram("vllm:request_params_n", "The parameter n of a request.", choices)
    )


def _latencies(scrape: Scrape) -> str:
    engine, labels = scrape.engine, scrape.labels
    by_request = ((name, text, engine.by_request[name]) for name, _, text in REQUEST_FAMILIES)
    others = (
        ("time_to_first_token_seconds", "From arrival to the first token.", engine.ttft),
        ("inter_token_latency_seconds", "Between successive outputs of a request.", engine.itl),
        ("iteration_tokens_total", "Tokens of a step, prompt and output.", engine.step_tokens),
    )
    return "".join(histogram(f"vllm:{name}", text, [(labels, each)]) for name, text, each in (*by_request, *others))


def _cache_config(scrape: Scrape) -> str:
    config = scrape.core.config
    told = {
        "engine": "0",
        "block_size": config.block_size,
        "enable_prefix_caching": config.enable_prefix_caching,
        "num_gpu_blocks": config.num_blocks,
        "kv_cache_size_tokens": config.capacity_tokens,
        "kv_cache_max_concurrency": config.capacity_tokens / config.max_model_len,
        "cache_dtype": getattr(scrape.core.executor, "kv_cache_dtype", "auto"),
    }
    labels = {key: str(value) for key, value in told.items()}
    return family("vllm:cache_config_info", "gauge", "How the KV cache is set up.", [(labels, 1)])


def _live(scrape: Scrape) -> str:
    live, totals, ours = scrape.engine.live, scrape.core.totals, "openloop_"
    shares = {}
    if scrape.ceilings is not None:
        shares = {
            "bandwidth_fraction": live.bytes_per_s / scrape.ceilings.bandwidth_bps,
            "compute_fraction": live.flops_per_s / scrape.ceilings.flops,
        }
    return (
        family("openloop_step_seconds_total", "counter", "Time spent in steps.", [(scrape.labels, totals.busy_s)])
        + family("openloop_steps_total", "counter", "Steps.", [(scrape.labels, totals.n_steps)])
        + scrape.gauge("bandwidth_bytes_per_second", "Bytes/s of recent steps.", live.bytes_per_s, ours)
        + scrape.gauge("compute_flops_per_second", "FLOP/s of recent steps.", live.flops_per_s, ours)
        + "".join(
            scrape.gauge(name, "Share of the ceiling, recent steps.", value, ours) for name, value in shares.items()
        )
    )


def _http(scrape: Scrape) -> str:
    server = scrape.server
    counted = [({"handler": h, "method": m, "status": s}, float(n)) for (h, m, s), n in list(server.requests.items())]
    durations = [({"handler": h, "method": m}, each) for (h, m), each in list(server.durations.items())]
    return family("http_requests_total", "counter", "HTTP exchanges.", counted) + histogram(
        "http_request_duration_seconds", "Time of an HTTP exchange, streaming included.", durations
    )
