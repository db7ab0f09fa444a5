"""HTTP, and the only module that imports httpx, which makes the requests: streams then go over `wire`."""

from __future__ import annotations

import errno
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import anyio
import httpx

from engine_adapters.base import ErrorClass, PreflightError, StreamOutcome
from engine_adapters.connection import OnRead, WireError
from engine_adapters.network import Network
from engine_adapters.wire import Wire

# An idle connection is dropped before servers drop it (uvicorn, and with it vLLM and SGLang, after 5 s), so that
# no request meets a connection that the other side is closing.
KEEPALIVE_S = 4.0
ERROR_TEXT_BYTES = 2000
STREAM_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


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
    """One server, one pool of connections without a limit of its own.

    Streams bypass httpx's pool, which scans all connections for each request and costs 70 to 170 us of CPU an event:
    httpx makes the head of the request once for each path, and `wire` sends it. HTTP/2, a proxy, or a `transport` of
    the caller's get every request through httpx instead; `via` says which way it is.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        network: Network | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeouts = timeouts or Timeouts()
        self._headers = {"accept-encoding": "identity", **(headers or {})}
        self.network = network or Network()
        self._proxy = self.network.proxy_for(self.base_url)
        self._pulls = transport is not None or self.network.http2 or self._proxy is not None
        self._ssl_context = self.network.ssl_context(httpx.create_ssl_context(trust_env=False))
        self._heads: dict[str, bytes] = {}
        self._wire: Wire | None = None
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S)
        if transport is None and self.network.unix_socket:
            transport = httpx.AsyncHTTPTransport(uds=self.network.unix_socket, limits=limits)
        # Environment proxies are followed only when asked for: else a benchmark measures a proxy nobody thought of.
        try:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                limits=limits,
                timeout=httpx.Timeout(self.timeouts.read_s, connect=self.timeouts.connect_s),
                transport=transport,
                verify=self._ssl_context,
                http2=self.network.http2,
                trust_env=self.network.trust_env,
            )
        except ImportError:
            raise PreflightError("HTTP/2 needs a package: pip install 'openloop[http2]'") from None

    @property
    def via(self) -> str:
        """What carries the streams, for the manifest."""
        version = "HTTP/2" if self.network.http2 else "HTTP/1.1"
        carrier = "httpcore" if self._pulls else "own sockets"
        if self._proxy:
            return f"{carrier}, {version}, through the proxy {self._proxy}"
        if self.network.unix_socket:
            return f"{carrier}, {version}, unix socket {self.network.unix_socket}"
        return f"{carrier}, {version}"

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
        if self._wire is not None:
            await self._wire.close()

    async def warm(self, path: str, n_connections: int) -> None:
        """Have so many connections ready for streams to `path`; a server that opens none shows it with the load."""
        if self._pulls:
            return
        if path not in self._heads:
            await self._make_head(path)
        assert self._wire is not None
        with suppress(WireError):
            await self._wire.warm(n_connections)

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

    async def stream(self, path: str, body: bytes, request_id: str, outcome: StreamOutcome, on_read: OnRead) -> None:
        """POST `body` and hand every read to `on_read(instant_ns, bytes)`, stamped before anything looks at it.

        Fills the outcome's instants up to `stream_end_at_ns`, its status and, when it fails, its error.
        """
        try:
            with anyio.fail_after(self.timeouts.total_s):
                if self._pulls:
                    await self._pull(path, body, request_id, outcome, on_read)
                else:
                    await self._push(path, body, request_id, outcome, on_read)
        except TimeoutError:
            fail(outcome, "total_timeout", f"not finished after {self.timeouts.total_s:g} s")
        except WireError as error:
            fail(outcome, error.error_class, describe(error))
        except httpx.HTTPError as error:
            fail(outcome, classify(error), describe(error))
        finally:
            if outcome.stream_end_at_ns is None:
                outcome.stream_end_at_ns = monotonic_ns()

    async def _push(self, path: str, body: bytes, request_id: str, outcome: StreamOutcome, on_read: OnRead) -> None:
        head = self._heads.get(path) or await self._make_head(path)
        wire = self._wire
        assert wire is not None
        payload = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (head, request_id.encode(), len(body), body)
        refusal = await wire.request(payload, outcome, on_read)
        self._check_status(outcome, refusal)

    async def _make_head(self, path: str) -> bytes:
        """What httpx would send to `path`, up to the headers that differ from request to request."""
        requests: list[httpx.Request] = []

        def take(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            return httpx.Response(204)

        url = self.base_url + path
        async with httpx.AsyncClient(
            headers=self._headers, transport=httpx.MockTransport(take), trust_env=False
        ) as client:
            await client.post(url, headers=STREAM_HEADERS)
        request = requests[0]
        self._wire = self._wire or self._make_wire(request.url)
        lines = [b"POST " + request.url.raw_path + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in request.headers.raw if name.lower() != b"content-length"]
        self._heads[path] = b"\r\n".join(lines) + b"\r\n"
        return self._heads[path]

    def _make_wire(self, url: httpx.URL) -> Wire:
        if url.scheme not in ("http", "https") or not url.host:
            raise httpx.UnsupportedProtocol(f"{self.base_url} is neither http:// nor https://")
        tls = None
        if url.scheme == "https":
            tls = self._ssl_context
            tls.set_alpn_protocols(["http/1.1"])
        port = url.port or (443 if tls else 80)
        times, path = self.timeouts, self.network.unix_socket
        return Wire(url.raw_host.decode("ascii"), port, tls, times.connect_s, times.read_s, KEEPALIVE_S, path)

    async def _pull(self, path: str, body: bytes, request_id: str, outcome: StreamOutcome, on_read: OnRead) -> None:
        request = self._client.build_request(
            "POST", self.base_url + path, content=body, headers={**STREAM_HEADERS, "x-request-id": request_id}
        )
        outcome.sent_at_ns = monotonic_ns()
        response = await self._client.send(request, stream=True)
        try:
            outcome.headers_at_ns = monotonic_ns()
            outcome.http_status = response.status_code
            if not response.is_success:
                self._check_status(outcome, await response.aread())
                return
            async for chunk in response.aiter_raw():
                on_read(monotonic_ns(), chunk)
            outcome.stream_end_at_ns = monotonic_ns()
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    def _check_status(self, outcome: StreamOutcome, refusal: bytes) -> None:
        if outcome.http_status is not None and not 200 <= outcome.http_status < 300:
            text = refusal[:ERROR_TEXT_BYTES].decode("utf-8", "replace")
            fail(outcome, "http_status", f"HTTP {outcome.http_status}: {error_message(text)}")


def fail(outcome: StreamOutcome, error_class: ErrorClass, message: str) -> None:
    """Record the first fault of a request; later ones are its consequences."""
    if outcome.error_class is None:
        outcome.error_class = error_class
        # A server's text may hold control characters, which no terminal and no page should get.
        outcome.error = "".join(c if c.isprintable() else " " for c in message)


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
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)  # asyncio puts its own words into `strerror`
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
