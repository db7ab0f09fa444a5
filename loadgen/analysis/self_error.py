"""How wrong are we: the client's instants against those that a server on the same clock logged itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.collectors.records import RequestRecord

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SelfError:
    """Errors in seconds, one for each first token and one for each gap between tokens; `n` requests were matched.

    arrival_gaps_s: gaps between the arrivals as the receiver stamped them, in order.
    """

    n: int
    ttft_s: Floats
    itl_s: Floats
    arrival_gaps_s: Floats


def self_error(records: Sequence[RequestRecord], run_id: str, truth: Sequence[Mapping[str, Any]]) -> SelfError:
    """Match complete requests with the server's log by request id and subtract.

    truth: entries of the bundled engine's /truth: `id`, `arrived_at_ns`, `token_at_ns` (stamped before the write). TTFT
    error = client's first token - server's. ITL error = client's gap - server's gap, token by token. Requests whose
    number of tokens differs between the two are left out of ITL.
    """
    logged = {entry["id"]: entry for entry in truth}
    ttft: list[float] = []
    itl: list[Floats] = []
    arrived: list[int] = []
    for record in records:
        entry = logged.get(f"{run_id}-{record.point}-{record.index}")
        if record.status != "ok" or entry is None or record.first_token_at_ns is None:
            continue
        server = np.asarray(entry["token_at_ns"], dtype=np.float64)
        client = token_instants(record)
        arrived.append(entry["arrived_at_ns"])
        ttft.append((record.first_token_at_ns - entry["token_at_ns"][0]) / 1e9)
        if len(server) == len(client):
            itl.append((np.diff(client) - np.diff(server)) / 1e9)
    gaps = np.concatenate(itl) if itl else np.array([])
    return SelfError(len(ttft), np.array(ttft), gaps, np.diff(np.sort(np.array(arrived, dtype=np.float64))) / 1e9)


def token_instants(record: RequestRecord) -> Floats:
    """When each token event came, from the record's reads; tokens of one read share its instant."""
    reads = (record.first_token_at_ns or 0) + np.cumsum(np.asarray(record.gap_ns, dtype=np.float64))
    result: Floats = np.repeat(reads, record.gap_events)
    return result
