"""Server-sent events from bytes, however the bytes were cut into reads (WHATWG HTML, section 9.2)."""

from __future__ import annotations

LF, CR = b"\n\r"
MAX_EVENT_BYTES = 64 * 2**20  # a server that never ends an event must not fill the memory


class FramingError(ValueError):
    """The bytes can't be an answer of the API; the text says why."""


class SSEParser:
    """Incremental and linear in the number of bytes: feed reads, get the `data` of each completed event.

    Lines end in LF, CRLF or CR, also when a CRLF is split over two reads. Comments and fields other than `data` are
    skipped; several data lines of one event are joined by a newline. Two things that real servers do go beyond the
    standard: a body that begins with a brace or bracket is JSON that was not streamed, and comes as one event at its
    end; and an `error:` field (llama.cpp before 2025) is an event with that error.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._held_bytes = 0  # in both
        self._after_cr = False
        self._at_start = True
        self._is_json = False
        self._between_events = True  # nothing is kept of what came before

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads of the events that `chunk` completes, in order; FramingError when one grows without end."""
        if self._between_events and chunk[:6] == b"data: " and chunk[-1] == LF and CR not in chunk:
            # One or several whole events in one read, which is what a decoding server sends. Slices and single bytes,
            # because `startswith`, `endswith` and a search for bytes cost two to nine times as much.
            self._at_start = False
            if chunk.find(LF) == len(chunk) - 2:
                return [chunk[6:-2]]
            payloads = chunk[6:-2].split(b"\n\ndata: ")
            if chunk[-2] == LF and chunk.count(LF) == 2 * len(payloads):
                return payloads
        return self._feed_any(chunk)

    def finish(self) -> list[bytes]:
        """The event that the stream's end left without its blank line, if it had complete data lines."""
        last = b"".join(self._line)
        self._line = []
        events = self._take_lines([last, b""])
        if self._is_json and self._data:
            events.append(b"\n".join(self._data))
            self._data = []
        return events

    def _feed_any(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        self._held_bytes += len(chunk)
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pieces = chunk.split(b"\n")
        if len(pieces) == 1:
            self._line.append(chunk)
            self._between_events = False
            self._check_size()
            return []
        self._line.append(pieces[0])
        pieces[0] = b"".join(self._line)
        rest = pieces.pop()
        self._line = [rest] if rest else []
        events = self._take_lines(pieces)
        self._between_events = not (rest or self._data or self._after_cr or self._is_json)
        if events or not self._data:
            self._held_bytes = len(rest)
        self._check_size()
        return events

    def _check_size(self) -> None:
        if self._held_bytes > MAX_EVENT_BYTES:
            raise FramingError(f"an event of more than {MAX_EVENT_BYTES // 2**20} MiB")

    def _take_lines(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
            self._is_json = lines[0].lstrip()[:1] in (b"{", b"[")
        if self._is_json:
            self._data += lines
            return []
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
            elif line.startswith(b"error:"):
                self._data.append(b'{"error":%b}' % line[6:].strip())
        return events
