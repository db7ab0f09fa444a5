"""What a client does when the server turned a request away for its load: give up, or come back when it was told to."""

from __future__ import annotations

from typing import Literal

from engine_adapters.base import StreamOutcome

OnRejection = Literal["fail", "wait"]


def come_back_ns(policy: OnRejection, outcome: StreamOutcome, give_up_ns: int) -> int | None:
    """The instant of the next attempt; None when there is none.

    Only a rejection with an advised wait is tried again, and only under `wait`. It counts from the end of the refusal,
    so that nobody comes back early. A wait that ends after `give_up_ns`, when the request's time is up, is not begun.
    """
    refused_ns, advised_s = outcome.stream_end_at_ns, outcome.advised_wait_s
    if policy == "fail" or outcome.error_class != "rejected" or advised_s is None or refused_ns is None:
        return None
    at_ns = refused_ns + round(advised_s * 1e9)
    return at_ns if at_ns <= give_up_ns else None
