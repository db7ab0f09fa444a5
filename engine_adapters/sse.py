"""Server-sent events from bytes, however the bytes were cut into reads (WHATWG HTML, section 9.2)."""

from __future__ import annotations


class SSEParser:
    """Incremental and linear in the number of bytes: feed reads, get the `data` of each completed event.

    Lines end in LF, CRLF or CR, also when a CRLF is split over two reads. Comments and fields other than `data`
    are skipped; several data lines of one event are joined by a newline.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads of the events that `chunk` completes, in order."""
        if (
            chunk.find(b"\n") == len(chunk) - 2  # at most two line ends, and both at the end
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and b"\r" not in chunk
            and not (self._line or self._data or self._at_start)
        ):  # one whole event in one read, which is what a decoding server sends
            self._after_cr = False
            return [chunk[6:-2]]
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pieces = chunk.split(b"\n")
        if len(pieces) == 1:
            self._line.append(chunk)
            return []
        self._line.append(pieces[0])
        pieces[0] = b"".join(self._line)
        rest = pieces.pop()
        self._line = [rest] if rest else []
        return self._take_lines(pieces)

    def finish(self) -> list[bytes]:
        """The event that the stream's end left without its blank line, if it had complete data lines."""
        last = b"".join(self._line)
        self._line = []
        return self._take_lines([last, b""])

    def _take_lines(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events
