"""HTTP, and the only module that imports httpx: plain calls for the preflight, stamped reads for streams."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import anyio
import httpx

from engine_adapters.base import ErrorClass, PreflightError, StreamOutcome

# An idle connection is dropped before servers drop it (uvicorn, and with it vLLM and SGLang, after 5 s), so that
# no request meets a connection that the other side is closing.
KEEPALIVE_S = 4.0
ERROR_TEXT_BYTES = 2000


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `read_s` is the longest silence inside a stream, `total_s` the longest request."""

    connect_s: float = 10.0
    read_s: float = 120.0
    total_s: float = 600.0


@dataclass(frozen=True)
class Reply:
    """A complete answer: status, headers, and the body both as text and, where it parses, as JSON."""

    status: int
    headers: Mapping[str, str]
    text: str
    data: Any


class HttpClient:
    """One server, one pool of connections without a limit of its own."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeouts = timeouts or Timeouts()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S)
        # Environment proxies are not followed: a benchmark through a proxy nobody asked for measures the proxy.
        self._client = httpx.AsyncClient(
            headers={"accept-encoding": "identity", **(headers or {})},
            limits=limits,
            timeout=httpx.Timeout(self.timeouts.read_s, connect=self.timeouts.connect_s),
            transport=transport,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def get(self, path: str) -> Reply:
        """GET; raises PreflightError with a sentence for the user when there is no answer."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: Any) -> Reply:
        """POST a JSON body; raises PreflightError as `get` does."""
        return await self._call("POST", path, body)

    async def _call(self, method: str, path: str, body: Any) -> Reply:
        url = self.base_url + path
        try:
            response = await self._client.request(method, url, json=body)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise PreflightError(f"{self.base_url} is not a URL that can be called: {error}") from None
        except httpx.HTTPError as error:
            raise PreflightError(f"no answer from {url}: {describe(error)}") from None
        try:
            data = response.json()
        except ValueError:
            data = None
        return Reply(response.status_code, dict(response.headers), response.text, data)

    async def stream(
        self, path: str, body: bytes, request_id: str, outcome: StreamOutcome, on_read: Callable[[int, bytes], None]
    ) -> None:
        """POST `body` and hand every read to `on_read(instant_ns, bytes)`, stamped before anything looks at it.

        Fills the outcome's instants up to `stream_end_at_ns`, its status and, when it fails, its error.
        """
        try:
            with anyio.fail_after(self.timeouts.total_s):
                await self._stream(path, body, request_id, outcome, on_read)
        except TimeoutError:
            fail(outcome, "total_timeout", f"not finished after {self.timeouts.total_s:g} s")
        except httpx.HTTPError as error:
            fail(outcome, classify(error), describe(error))
        finally:
            if outcome.stream_end_at_ns is None:
                outcome.stream_end_at_ns = monotonic_ns()

    async def _stream(
        self, path: str, body: bytes, request_id: str, outcome: StreamOutcome, on_read: Callable[[int, bytes], None]
    ) -> None:
        async def trace(event: str, _info: Mapping[str, Any]) -> None:
            if event == "http11.send_request_headers.started":
                outcome.sent_at_ns = monotonic_ns()
            elif event == "http11.receive_response_headers.complete":
                outcome.headers_at_ns = monotonic_ns()
            elif event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
                outcome.connected_at_ns = monotonic_ns()

        headers = {"content-type": "application/json", "accept": "text/event-stream", "x-request-id": request_id}
        request = self._client.build_request(
            "POST", self.base_url + path, content=body, headers=headers, extensions={"trace": trace}
        )
        outcome.sent_at_ns = monotonic_ns()  # overwritten by the trace; a transport without one keeps this
        response = await self._client.send(request, stream=True)
        try:
            if outcome.headers_at_ns is None:
                outcome.headers_at_ns = monotonic_ns()
            outcome.http_status = response.status_code
            if not response.is_success:
                await self._read_error(response, outcome)
                return
            async for chunk in response.aiter_raw():
                on_read(monotonic_ns(), chunk)
            outcome.stream_end_at_ns = monotonic_ns()
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _read_error(self, response: httpx.Response, outcome: StreamOutcome) -> None:
        text = (await response.aread())[:ERROR_TEXT_BYTES].decode("utf-8", "replace")
        fail(outcome, "http_status", f"HTTP {response.status_code}: {error_message(text)}")


def fail(outcome: StreamOutcome, error_class: ErrorClass, message: str) -> None:
    """Record the first fault of a request; later ones are its consequences."""
    if outcome.error_class is None:
        outcome.error_class = error_class
        outcome.error = message


def classify(error: httpx.HTTPError) -> ErrorClass:
    """The class under which a transport fault is counted."""
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return "connect_timeout"
    if isinstance(error, httpx.TimeoutException):
        return "read_timeout"
    if isinstance(error, httpx.ConnectError):
        return "connect"
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.CloseError | httpx.RemoteProtocolError):
        return "disconnected"
    return "protocol"


def describe(error: Exception) -> str:
    """One line for people, with the operating system's reason instead of a class name where there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {cause.reason or cause}"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    return str(error) or type(error).__name__


def error_message(text: str) -> str:
    """The sentence in an error body: OpenAI's `{"error": {"message"}}`, `{"message"}`, `{"detail"}` or plain text."""
    try:
        data = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:200]
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:200]
