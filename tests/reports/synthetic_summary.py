"""Summaries that look like real runs, built from a small queueing model: every shape that the reports must draw."""

from __future__ import annotations

import math
from typing import Any

ISL, OSL, WINDOW_S = 3212, 243, 60.0
LADDER = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 5.0, 6.2, 6.6)  # in the order run: geometric, then refined round the knee
OVERLOADED, INVALID, WARN, BEST = 5, 3, 7, 6
NEEDS = {"p50": 6, "p90": 36, "p95": 72, "p99": 368}
SHAPE = {"p50": 1.0, "p90": 1.5, "p95": 1.8, "p99": 2.6}


def dist(median_s: float, n: int, tail: float = 1.0, reason: str | None = None) -> dict[str, Any]:
    values: dict[str, float | None] = {
        name: None if reason or n < NEEDS[name] else median_s * (1 + (factor - 1) * tail)
        for name, factor in SHAPE.items()
    }
    ci95 = {name: None if value is None else [value * 0.93, value * 1.09] for name, value in values.items()}
    needs = {name: need for name, need in NEEDS.items() if n < need}
    mean = None if reason or not n else median_s * 1.1
    return {"unit": "s", "n": n, "mean": mean, **values, "ci95": ci95, "needs": needs, "reason": reason}


def check(name: str, verdict: str, value: Any, limit: str, text: str) -> dict[str, Any]:
    return {"name": name, "verdict": verdict, "value": value, "limit": limit, "text": text}


def checks(index: int) -> list[dict[str, Any]]:
    late = index == INVALID
    stationary = "nonstationary" if index == OVERLOADED else "warn" if index == WARN else "pass"
    return [
        check("lateness", "invalid" if late else "pass", 0.063 if late else 0.0009, "p99 <= 10 ms",
              f"p99 of sent - intended was {'63.0' if late else '0.9'} ms of 240 sends."),
        check("offered load", "pass", 1.0, ">= 0.999", "All due sends were made."),
        check("client health", "pass", 0.0011, "probe p99 <= 5 ms", "Loop-lag probe p99 1.1 ms, CPU 21% of one core."),
        check("Little's law", "pass", 0.006, "<= 2%", "In-flight mean 14.8 against rate x residence 14.7: 0.6% apart."),
        check("stationarity", stationary, 0.0004 if index == OVERLOADED else 0.3, "p >= .05",
              "Kendall trend of in-flight over 10 batches: "
              + {"nonstationary": "p = 0.0004, the queue grows.", "warn": "p = 0.03.", "pass": "p = 0.3."}[stationary]),
        check("errors", "pass", 0, "none", "No request failed."),
        check("prefix cache", "n/a", None, "within 5 points", "The server reports no cached tokens."),
    ]  # fmt: skip


def roofline_at(concurrency: float) -> dict[str, float]:
    """llama-3.1-8b in bf16 on one H100: 16.1 GB of weights, 131 kB of KV a token, 989 TFLOP/s."""
    bandwidth = concurrency / (0.0048 + concurrency * 1.25e-4)
    return {"bandwidth_tps": bandwidth, "compute_tps": 3850.0, "latency_tps": concurrency / 0.0021}


def point(index: int, rate_rps: float, speed: float = 1.0) -> dict[str, Any]:
    capacity_rps = 6.9 * speed
    overloaded = index == OVERLOADED
    served_rps = min(rate_rps, capacity_rps * 0.985)
    itl_s = 0.0095 / speed / (1 - 0.82 * min(rate_rps / capacity_rps, 0.98))
    ttft_s = 0.1 / speed / (1 - min(rate_rps / capacity_rps, 0.97)) ** 0.75
    residence_s = ttft_s + (OSL - 1) * itl_s
    in_flight = served_rps * residence_s * (1.4 if overloaded else 1)
    n, output_tps = int(rate_rps * WINDOW_S * 4), served_rps * OSL
    withheld = "withheld: the queue grows (NONSTATIONARY)" if overloaded else None
    bounds = roofline_at(in_flight)
    bound = min(bounds.values())
    verdict = {OVERLOADED: "NONSTATIONARY", INVALID: "INVALID", WARN: "WARN"}.get(index, "VALID")

    def both(median_s: float, tail: float = 1.0) -> dict[str, Any]:
        return {
            "from_intended": dist(median_s, n, tail, withheld),
            "from_sent": dist(median_s * 0.99, n, tail, withheld),
        }

    good = 0.0 if overloaded else max(0.0, 1 - (rate_rps / capacity_rps) ** 8)
    return {
        "index": index, "rate_rps": rate_rps, "concurrency_target": None, "window_s": WINDOW_S * 4,
        "concurrency_mean": in_flight, "concurrency_max": int(in_flight * 1.8) + 2, "running_mean": output_tps * itl_s,
        "offered_rps": rate_rps, "achieved_rps": served_rps, "output_tps": output_tps, "prompt_tps": served_rps * ISL,
        "metrics": {"ttft": both(ttft_s), "ttfo": both(ttft_s), "e2e": both(residence_s, 1.4),
                    "itl": dist(itl_s, n * OSL, 0.8, withheld), "tpot": dist(itl_s, n, 0.3, withheld),
                    "event_gap": dist(itl_s, n * OSL, 0.8, withheld)},
        "decode_rate_tps": output_tps * 1.2, "prefill_rate_tps": 21400.0,
        "goodput_rps": good * served_rps, "attainment": good, "failed": 0, "unfinished": 3 if overloaded else 0,
        "counts": {"due": n, "sent": n, "ok": n - (3 if overloaded else 0), "failed": 0,
                   "unfinished": 3 if overloaded else 0, "shed": 0},
        "errors": [], "tokens": {"source": {"usage": n, "events": 0}, "per_event": 1.0, "prompt_mean": float(ISL),
                                 "output_mean": float(OSL), "cached_share": None},
        "bound": {"output_tps": bound, "limiter": "compute" if bound == 3850.0 else "bandwidth", **bounds,
                  "reason": None},
        "bound_fraction": output_tps / bound, "stalls": {"count": index, "total_s": 0.2 * index, "longest_s": 0.31},
        "fluidity": {"share": None if overloaded else 1 - 0.3 * (served_rps / capacity_rps) ** 6, "reason": withheld},
        "time_line": time_line(in_flight, overloaded),
        "validity": {"verdict": verdict, "checks": checks(index)},
    }  # fmt: skip


def time_line(in_flight: float, overloaded: bool) -> dict[str, Any]:
    """2.5 s bins: 10 s of warm-up, the window, and a drain; the queue of an overloaded point grows to the end of it."""
    n_bins, bin_s = 104, 2.5
    shape = [min(1.0, (i + 1) / 4) * (1 + 0.18 * math.sin(0.35 * i) + 0.1 * math.sin(0.9 * i)) for i in range(100)]
    if overloaded:
        shape = [0.02 * (i + 1) * (1 + 0.05 * math.sin(1.7 * i)) for i in range(100)]
    drain = [shape[-1] * share for share in (0.7, 0.4, 0.15, 0.03)]
    values = [round(in_flight * share, 3) for share in [*shape, *drain]]
    assert len(values) == n_bins
    return {"bin_s": bin_s, "in_flight": values, "window_s": [10.0, 10.0 + WINDOW_S * 4]}


def conditions() -> dict[str, str]:
    return {
        "input_lengths": "lognormal, median 3,000, p95 6,000, 512 to 8,000 tokens (512 shared, 8 groups)",
        "output_lengths": "lognormal, median 200, p95 500, at most 1,000 tokens",
        "load": "open loop, poisson, 0.25 to 8 requests/s", "latency_target": "TTFT p95 < 500 ms, ITL p95 < 50 ms",
        "model": "llama-3.1-8b", "precision": "bf16", "engine": "vLLM 0.8.5", "engine_flags": "--max-num-seqs 256",
        "kv_dtype": "bf16", "speculation": "off", "cache_state": "cold", "hardware": "1 x H100 SXM 80 GB",
        "split": "TP 1", "power_and_clocks": "unknown", "client_machine": "16 cores, Linux 6.1, same host",
        "token_source": "usage", "receive_stamps": "by the kernel", "seed": "7", "url": "http://127.0.0.1:8000",
    }  # fmt: skip


def open_loop(speed: float = 1.0, devices: int = 1) -> dict[str, Any]:
    """Nine points out of order: an overloaded one, an INVALID one, a WARN one, SLO met up to `BEST`."""
    points = [point(index, round(rate * speed, 3), speed) for index, rate in enumerate(LADDER)]
    objectives = [{"metric": "ttft", "stat": "p95", "limit_s": 0.5}, {"metric": "itl", "stat": "p95", "limit_s": 0.05}]
    served = [
        p for p in points if p["index"] not in (OVERLOADED, INVALID) and p["metrics"]["ttft"]["from_intended"]["p95"]
    ]
    met = [
        p for p in served if p["metrics"]["ttft"]["from_intended"]["p95"] < 0.5 and p["metrics"]["itl"]["p95"] < 0.05
    ]
    best = max(met, key=lambda p: p["output_tps"])
    x_max_tps = max(p["output_tps"] for p in points)
    fast = [p for p in points if p["index"] != INVALID and p["output_tps"] >= 0.9 * x_max_tps]
    knee = min(fast, key=lambda p: p["concurrency_mean"])
    return {
        "schema_version": 1, "tool": {"name": "openloop", "version": "0.1.0"}, "run_id": "rag-20261201-130000",
        "created_utc": "2026-12-01T13:00:00Z", "finished": True, "mode": "open",
        "scenario": {"name": "rag", "load": {"arrivals": "poisson", "rates": "auto"}, "seed": 7},
        "schedule_id": "9f2c41d07be3a856", "scaled_for_cpu": False, "notes": [], "conditions": conditions(),
        "slo": {"objectives": objectives, "best_point": best["index"], "reason": None},
        "points": points,
        "knee": {"measured": {"point": knee["index"], "concurrency": knee["concurrency_mean"],
                              "output_tps": knee["output_tps"], "x_max_tps": x_max_tps},
                 "model": {"concurrency": 41.0}, "reason": None},
        "roofline": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "devices": devices, "precision": "bf16",
                     "ceilings": {"bandwidth_gbs": 3350.0, "tflops": 989.0, "source": "hardware table"},
                     "curve": [{"concurrency": c, **roofline_at(c), "bound_tps": min(roofline_at(c).values())}
                               for c in (2**k / 4 for k in range(12))],
                     "kv_wall_concurrency": 142.0, "reason": None},
        "definitions": {"ttft": "First token event minus t0; a role-only or empty chunk is no token event.",
                        "tpot": "(last token - first token) / (output tokens - 1) of one request; null below 2 tokens.",
                        "itl": "Gaps between successive tokens, pooled over the requests of the window."},
        "aliases": {"tpot": {"vllm": "tpot", "guidellm": "inter_token_latency_ms"}, "ttft": {"vllm": "ttft"}},
    }  # fmt: skip


def overloaded_knee() -> dict[str, Any]:
    """As `open_loop`, without the points near capacity: only the overloaded one reaches 90% of X_max."""
    summary = open_loop()
    summary["points"] = [p for p in summary["points"] if p["index"] not in (INVALID, 7, 8)]
    found = next(p for p in summary["points"] if p["index"] == OVERLOADED)
    summary["knee"]["measured"].update(
        point=OVERLOADED, concurrency=found["concurrency_mean"], output_tps=found["output_tps"]
    )
    return summary


def unknown_bound() -> dict[str, Any]:
    """As `open_loop`, on hardware that nobody named."""
    summary = open_loop()
    reason = "bound unknown: tell me the hardware (--hardware, --model-config)"
    summary["roofline"] = {"model": None, "hardware": None, "devices": 1, "precision": None, "ceilings": None,
                           "curve": [], "kv_wall_concurrency": None, "reason": reason}  # fmt: skip
    for one in summary["points"]:
        one["bound"] = {"output_tps": None, "limiter": None, "bandwidth_tps": None, "compute_tps": None,
                        "latency_tps": None, "reason": reason}  # fmt: skip
        one["bound_fraction"] = None
    summary["knee"]["model"] = None
    for key in ("precision", "hardware", "split", "kv_dtype"):
        summary["conditions"][key] = "unknown"
    return summary


def closed_loop() -> dict[str, Any]:
    """A ladder of users; no latency from intended, no knee because throughput still grew."""
    summary = open_loop()
    summary["mode"] = "closed"
    summary["conditions"]["load"] = "closed loop, 1 to 32 users"
    summary["points"] = [p for p in summary["points"] if p["index"] not in (OVERLOADED, INVALID)]
    for one, users in zip(summary["points"], (1, 2, 4, 8, 16, 24, 32), strict=True):
        one.update(rate_rps=None, concurrency_target=users, concurrency_mean=float(users))
        for metric in ("ttft", "ttfo", "e2e"):
            one["metrics"][metric]["from_intended"] = None
    summary["knee"] = {"measured": None, "model": None, "reason": "throughput still grew at the last point"}
    return summary


def far_bound(factor: float = 12.0) -> dict[str, Any]:
    """The bound lies far above everything measured, as on a slow CPU."""
    summary = open_loop()
    for row in summary["roofline"]["curve"]:
        for key in ("bandwidth_tps", "compute_tps", "latency_tps", "bound_tps"):
            row[key] *= factor
    for one in summary["points"]:
        one["bound"]["output_tps"] *= factor
        one["bound_fraction"] /= factor
    summary["roofline"]["kv_wall_concurrency"] = 9000.0
    summary["scaled_for_cpu"] = True
    summary["notes"] = ["Scaled to what a CPU serves: 256 input and 32 output tokens instead of the scenario's."]
    return summary


def _emptied(one: dict[str, Any], reason: str) -> None:
    for metric, found in one["metrics"].items():
        none = dist(0.0, 0) | {"reason": reason}
        one["metrics"][metric] = {"from_intended": none, "from_sent": none} if "from_sent" in found else none
    nothing = ("concurrency_mean", "running_mean", "achieved_rps", "output_tps", "prompt_tps", "decode_rate_tps",
               "prefill_rate_tps", "goodput_rps", "attainment", "bound_fraction")  # fmt: skip
    one.update(dict.fromkeys(nothing))
    one["fluidity"] = {"share": None, "reason": reason}
    one["time_line"] = {"bin_s": 0.1, "in_flight": [], "window_s": [0, 0]}
    one["tokens"].update(per_event=None, prompt_mean=None, output_mean=None)


def nulls_everywhere() -> dict[str, Any]:
    """Every number that may be null is null, every condition unknown; requests were answered all the same."""
    summary = unknown_bound()
    for one in summary["points"]:
        _emptied(one, "no samples: the window was empty")
    summary["conditions"] = dict.fromkeys(summary["conditions"], "unknown")
    summary["slo"] = {"objectives": [], "best_point": None, "reason": "no SLO in the scenario"}
    summary["knee"] = {"measured": None, "model": None, "reason": "no point has a throughput"}
    summary.update(finished=False, definitions={}, aliases={})
    return summary


def all_failed() -> dict[str, Any]:
    """Every request was refused."""
    summary = open_loop()
    summary["points"] = summary["points"][:2]
    for one in summary["points"]:
        _emptied(one, "no samples: no request was answered")
        n = one["counts"]["due"]
        one["counts"] = {"due": n, "sent": n, "ok": 0, "failed": n, "unfinished": 0, "shed": 0}
        one.update(failed=n, concurrency_mean=0.02, goodput_rps=0.0, attainment=0.0, output_tps=0.0, achieved_rps=0.0)
        one["errors"] = [
            {"class": "http_status", "message": "503 Service Unavailable: model is loading", "count": n - 4},
            {"class": "connect", "message": "connection refused", "count": 4},
        ]
        evidence = f"{n} of {n} requests failed."
        one["validity"] = {"verdict": "INVALID", "checks": [check("errors", "invalid", 1.0, "<= 1%", evidence)]}
    summary["slo"].update(best_point=None, reason="no request was answered")
    summary["knee"] = {"measured": None, "model": {"concurrency": 41.0}, "reason": "no request was answered"}
    return summary


def other_engine() -> dict[str, Any]:
    """B of a comparison: the same schedule against a slower engine."""
    summary = open_loop(speed=0.84)
    summary["run_id"] = "rag-20261201-134500"
    summary["conditions"].update(
        engine="SGLang 0.4.6", engine_flags="--mem-fraction-static 0.85", url="http://127.0.0.1:30000"
    )
    return summary
