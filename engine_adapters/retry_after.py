"""When a server that turned a request away wants it again: its `Retry-After`, as seconds from now."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

A_YEAR_S = 365 * 86400.0  # nobody means more, and sums with it stay finite


def advised_wait_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Seconds to wait by `retry-after` (RFC 9110, 10.2.3: whole seconds, or a date), never below 0; None without it.

    A date counts from the server's own `date` where it sends one, because two clocks need not agree, else from `now_s`,
    UTC epoch seconds. `headers` have lower-case names.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return min(float(text), A_YEAR_S)
    due_s = _epoch_s(text)
    if due_s is None:
        return None
    told_s = _epoch_s(headers.get("date", ""))
    return max(due_s - (now_s if told_s is None else told_s), 0.0)


def _epoch_s(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
