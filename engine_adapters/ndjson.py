"""Newline-delimited JSON from bytes: one event a line, the last one with or without its line end."""

from __future__ import annotations

from engine_adapters.sse import MAX_EVENT_BYTES, FramingError


class NDJSONParser:
    """Incremental and linear in the number of bytes: feed reads, get each completed line that is not blank."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Lines that `chunk` completes, in order; FramingError when one grows without end."""
        pieces = chunk.split(b"\n")
        rest = pieces.pop()
        if not pieces:
            self._line.append(rest)
            self._held_bytes += len(rest)
            if self._held_bytes > MAX_EVENT_BYTES:
                raise FramingError(f"a line of more than {MAX_EVENT_BYTES // 2**20} MiB")
            return []
        self._line.append(pieces[0])
        pieces[0] = b"".join(self._line)
        self._line, self._held_bytes = [rest], len(rest)
        return [line for piece in pieces if (line := piece.strip())]

    def finish(self) -> list[bytes]:
        """What stood after the last line end."""
        last = b"".join(self._line).strip()
        self._line = []
        return [last] if last else []


class WholeParser:
    """An answer that is not streamed: everything is one event, at the end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Nothing yet; FramingError when the answer grows without end."""
        self._pieces.append(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes > MAX_EVENT_BYTES:
            raise FramingError(f"an answer of more than {MAX_EVENT_BYTES // 2**20} MiB")
        return []

    def finish(self) -> list[bytes]:
        """The whole answer, unless there was none."""
        whole = b"".join(self._pieces).strip()
        self._pieces = []
        return [whole] if whole else []
