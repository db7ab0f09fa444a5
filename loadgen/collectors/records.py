"""One request as one flat row of instants and counts: the only thing that analysis reads."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Phase = Literal["warmup", "measured", "cooldown"]
Status = Literal["ok", "failed", "unfinished", "shed"]


@dataclass(slots=True)
class RequestRecord:
    """All instants are monotonic nanoseconds; `intended_wall_s` is UTC epoch seconds of `intended_at_ns`.

    status: `ok` (complete answer), `failed` (error_class says how), `unfinished` (still in flight when the point
    was closed: censored, `stream_end_at_ns` is then the censoring instant), `shed` (held back by max_in_flight).
    `gap_ns[i]`, `gap_events[i]`, `gap_bytes[i]` describe the i-th socket read that carried token events: nanoseconds
    since the previous such read (0 for the first), token events in it, and bytes in it; `gap_tokens[i]` is the number
    of tokens that the server said it brought, and the array is empty where it did not say. On disk they stand in the
    sidecar.
    A rejected request (429, or 503 with a Retry-After) is sent again when the scenario says so: the instants from
    `sent_at_ns` on are then those of its last attempt, and it was in flight from `dispatched_at_ns` on.
    `limit_delay_ns` is how long the client's own limit held it back, before `dispatched_at_ns`.
    In closed loop `intended_at_ns` is the moment the user became free, so only `sent` based metrics mean anything.
    """

    point: int
    index: int
    phase: Phase
    status: Status
    intended_at_ns: int
    intended_wall_s: float
    dispatched_at_ns: int | None = None
    sent_at_ns: int | None = None
    resolved_at_ns: int | None = None  # set when this request looked the server's name up
    tcp_connected_at_ns: int | None = None
    connected_at_ns: int | None = None  # set when this request opened a new connection; TLS is ready
    reconnected: bool = False  # the server had closed the connection that was to carry it: sent at once on a new one
    headers_at_ns: int | None = None
    first_token_at_ns: int | None = None
    first_answer_at_ns: int | None = None
    last_token_at_ns: int | None = None
    stream_end_at_ns: int | None = None
    prompt_tokens_asked: int = 0
    output_tokens_asked: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_source: str | None = None
    n_token_events: int = 0
    finish_reason: str | None = None
    http_status: int | None = None
    error_class: str | None = None
    error: str | None = None
    limit_delay_ns: int = 0
    n_attempts: int = 1
    n_rejections: int = 0
    first_rejected_at_ns: int | None = None  # its refusal was complete
    advised_wait_s: float | None = None  # the Retry-After of the first rejection
    repeat: bool = False  # the data set was shorter than the run and this prompt was used before
    prompt_group: int | None = None
    reads_total: int = 0  # socket reads of the answer, those without a token included
    reads_kernel_stamped: int = 0  # reads whose instant is the kernel's receive stamp; the others are stamped when read
    read_lag_max_ns: int = 0  # longest that received bytes waited in the kernel until the client read them
    gap_ns: array[int] = field(default_factory=lambda: array("q"))
    gap_events: array[int] = field(default_factory=lambda: array("i"))
    gap_bytes: array[int] = field(default_factory=lambda: array("i"))
    gap_tokens: array[int] = field(default_factory=lambda: array("i"))

    def row(self) -> dict[str, Any]:
        """The record as a JSON object, without the gaps (they go to the sidecar)."""
        return {name: getattr(self, name) for name in ROW}


GAPS = ("gap_ns", "gap_events", "gap_bytes", "gap_tokens")
ROW = tuple(field.name for field in fields(RequestRecord) if field.name not in GAPS)


@dataclass(slots=True)
class PointLog:
    """What the generator itself counted during one load point; written to points.jsonl when the point ends.

    `window` is the measured window [start_ns, end_ns) by intended time. `in_flight_bins` are time averages of the
    generator's own in-flight counter (sent, not ended) over consecutive bins of `bin_s`, the first starting at `t0_ns`;
    they run on through the cool-down. `in_flight_mean` is the same counter integrated over exactly the window.
    """

    point: int
    mode: Literal["open", "closed"]
    rate_rps: float | None
    concurrency: int | None
    t0_ns: int
    t0_wall_s: float
    window_start_ns: int
    window_end_ns: int
    closed_at_ns: int  # the point was closed: whatever was still in flight is censored here
    due_measured: int  # sends the schedule asked for in the window
    in_flight_mean: float | None
    in_flight_max: int
    bin_s: float
    in_flight_bins: list[float]
    loop_lag_p99_s: float | None  # probe that wants to wake every 10 ms
    client_cpu_share: float | None  # process CPU time / wall time, of one core
    writer_backlog_max: int  # records waiting for the disk, at worst
    writer_backlog_limit: int
    writer_lag_max_s: float  # longest a record waited before it reached the disk
    interrupted: bool = False
    loop_stall_max_s: float | None = None  # the probe's longest lag
    gc_pause_max_s: float | None = None  # longest garbage collection
    gc_pauses: int | None = None
    arrivals: str | dict[str, Any] = "poisson"  # the asked process, for the check at the socket
