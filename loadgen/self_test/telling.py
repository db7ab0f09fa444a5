"""The client's limits in a table and in plain sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.self_test.ladder import Name, Part, best_of, failed_of
from loadgen.self_test.rung import Rung

ROW = "{:>18} {:>9} {:>15} {:>15} {:>15} {:>5} {:>8} {:>7} {:>9} {:>8}  {}"
NAMES = ("load", "events/s", "sends late", "TTFT error", "ITL error", "CPU", "us per", "server", "loop lag", "memory")
UNITS = ("", "", "ms p50/p99", "ms p50/p99", "ms p50/p99", "", "event", "CPU", "ms p99", "MB")
HEAD = f"{ROW.format(*NAMES, '')}\n{ROW.format(*UNITS, '')}"
OFFER = {"requests": "{:,.0f} requests/s", "events": "{:,.0f} events/s", "streams": "{:,.0f} open streams"}
ABOUT: dict[Name, str] = {
    "requests": "Requests (open loop, Poisson, {0.output_tokens} tokens, TTFT {0.ttft_ms:g} ms, ITL {0.itl_ms:g} ms)",
    "events": "Events (closed loop, ITL {0.itl_ms:g} ms)",
    "streams": "Open streams (closed loop, ITL {0.itl_ms:g} ms)",
}


def table_row(rung: Rung, part: Part) -> str:
    """One load in one line under `HEAD`."""
    return ROW.format(
        load_text(rung, part),
        f"{rung.events_per_s:,.0f}",
        pair(rung.lateness_s),
        pair(rung.ttft_error_s),
        pair(rung.itl_error_s),
        share(rung.cpu_share),
        number(rung.cpu_us_per_event, 1, ".1f"),
        share(rung.server_cpu_share),
        number(rung.loop_lag_p99_s, 1e3, ".1f"),
        number(rung.memory_bytes, 1e-6, ".0f"),
        verdict_text(rung),
    )


def progress_line(rung: Rung, part: Part) -> str:
    """One load in a few words, while the others are still to come."""
    lag, error = number(rung.loop_lag_p99_s, 1e3, ".1f"), pair(rung.itl_error_s)
    cpu = share(rung.cpu_share)
    return f"{load_text(rung, part)}: CPU {cpu}, loop lag p99 {lag} ms, ITL error {error} ms - {verdict_text(rung)}"


def verdict_text(rung: Rung) -> str:
    """The certificate's verdict, or what else keeps the load from counting."""
    return f"{rung.verdict}, core full" if rung.saturated else rung.verdict


def load_text(rung: Rung, part: Part) -> str:
    """A load with its unit."""
    return f"{rung.load:,} {part.unit}"


def pair(values: tuple[float, float] | None) -> str:
    """(p50, p99) in milliseconds."""
    return f"{digits(values[0])} / {digits(values[1])}" if values else "n/a"


def digits(seconds: float) -> str:
    """Milliseconds: thousandths below one, then fewer."""
    ms = seconds * 1e3
    return f"{ms:.3f}" if abs(ms) < 1 else f"{ms:.2f}" if abs(ms) < 10 else f"{ms:,.0f}"


def number(value: float | None, factor: float, form: str) -> str:
    """A figure, or n/a."""
    return "n/a" if value is None else format(value * factor, form)


def share(value: float | None) -> str:
    """A share of one core."""
    return "n/a" if value is None else f"{value:.0%}"


def sentences(parts: Sequence[Part], rungs: Sequence[Rung]) -> list[str]:
    """What the machine can offer, how wrong it is there, and what bound each part; as far as it was tried."""
    tried = [(part, mine) for part in parts if (mine := [rung for rung in rungs if rung.part == part.name])]
    best = [(part, rung) for part, mine in tried if (rung := best_of(mine)) is not None]
    told = []
    if best:
        told.append(f"This machine can offer up to {listed([offer_text(rung) for _, rung in best])}.")
        told.append(f"Its error against truth there (p50 / p99): {'; '.join(error_text(*each) for each in best)}.")
    told += [limit_sentence(part, mine) for part, mine in tried]
    taken = max((rung.others_cpu_share or 0.0 for rung in rungs if rung.disturbed), default=None)
    if taken is not None:
        told.append(f"Other work took up to {share(taken)} of the client's core: run it again on a quiet machine.")
    return told


def offer_text(rung: Rung) -> str:
    """The highest amount of a part: of what was asked, or of events what came."""
    return OFFER[rung.part].format(rung.events_per_s if rung.part == "events" else rung.load)


def error_text(part: Part, rung: Rung) -> str:
    """The errors that a part is about, and where they were measured."""
    ttft = f"TTFT {pair(rung.ttft_error_s)} ms" if part.name != "events" else ""
    itl = f"ITL {pair(rung.itl_error_s)} ms" if part.name != "requests" else ""
    return f"{', '.join(filter(None, (ttft, itl)))} at {load_text(rung, part)}"


def limit_sentence(part: Part, tried: Sequence[Rung]) -> str:
    """What bound this part, with its evidence."""
    about = ABOUT[part.name].format(part)
    failed = failed_of(tried)
    if not failed:
        last = tried[-1]
        upto = f"{load_text(last, part)} (CPU at {share(last.cpu_share)})"
        return f"{about}: nothing bound up to {upto}; {untried(part, last)}."
    first = min(failed, key=lambda rung: rung.load)
    again = ", tried twice," if sum(rung.load == first.load for rung in failed) > 1 else ""
    reason = first.failing[0].partition(". ")[0].rstrip(".") if first.failing else "its core is full"
    return f"{about}: at {load_text(first, part)}{again} {binder(first)}; {reason}."


def untried(part: Part, last: Rung) -> str:
    """Why the ladder ended without a limit."""
    higher = [load for load in part.loads if load > last.load]
    return f"{higher[0]:,} would need more than its core" if higher else "more was not tried"


def binder(rung: Rung) -> str:
    """Who could do no more."""
    if rung.server_binds:
        return f"the mock server binds, not the client (server's CPU at {share(rung.server_cpu_share)})"
    if rung.disturbed:
        taken = f"{share(rung.others_cpu_share)} of its core, itself {share(rung.cpu_share)}"
        return f"the client was kept from its work: others took {taken}"
    return f"the client binds (CPU at {share(rung.cpu_share)})"


def listed(items: Sequence[str]) -> str:
    """a, b and c"""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
