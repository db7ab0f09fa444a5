"""Finds stop strings in an answer's text as it comes, and holds back what might become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text goes in piece by piece; what comes out holds no stop string and never has to be taken back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stop = stop
        self._held = ""

    def feed(self, piece: str, may_stop: bool = True) -> str:
        """The text that may leave now; `matched` is then the stop string that ended the answer, if one did.

        Before `may_stop` (an answer below its min_tokens) nothing is matched and nothing held.
        """
        if not self._stop:
            return piece
        text, self._held = self._held + piece, ""
        if not may_stop:
            return text
        if found := [(text.find(each), each) for each in self._stop if each in text]:
            begin, self.matched = min(found)
            return text[:begin]
        n_sure = len(text) - max(_overlap(text, each) for each in self._stop)
        self._held = text[n_sure:]
        return text[:n_sure]

    def rest(self) -> str:
        """What was held back, once the answer has ended for another reason."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, short of all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
