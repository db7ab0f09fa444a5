"""HTTP, and the only module that imports httpx, which makes the requests: streams then go over `wire`."""

from __future__ import annotations

import errno
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns, time
from typing import Any

import anyio
import httpx

from engine_adapters.base import ErrorClass, PreflightError, StreamOutcome
from engine_adapters.connection import OnRead, Refusal, WireError
from engine_adapters.network import Network, without_credentials
from engine_adapters.retry_after import advised_wait_s
from engine_adapters.sockets import kernel_stamps
from engine_adapters.stream import error_sentence
from engine_adapters.wire import Wire

# An idle connection is dropped before servers drop it (uvicorn, and with it vLLM and SGLang, after 5 s), so that
# no request meets a connection that the other side is closing.
KEEPALIVE_S = 4.0
STREAMS_A_CONNECTION = 100  # of HTTP/2: httpcore and most servers allow no more, and further ones would wait
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
    the caller's get every request through httpx instead; `via` says which way it is. What a server says when it
    refuses, which may repeat what it was sent, goes through `redact`.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        network: Network | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeouts = timeouts or Timeouts()
        self._redact = redact
        self._headers = {"accept-encoding": "identity", **(headers or {})}
        self.network = network or Network()
        self._proxy = self.network.proxy_for(self.base_url)
        self._pulls = transport is not None or self.network.http2 or self._proxy is not None
        self._ssl_context = self.network.ssl_context(httpx.create_ssl_context(trust_env=False))
        self.kernel_stamped = (
            kernel_stamps() and not self._pulls and not self.network.unix_socket and self.base_url.startswith("http:")
        )
        self._heads: dict[str, bytes] = {}
        self._wire: Wire | None = None
        self._limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S)
        if transport is None and self.network.unix_socket and not self.network.http2:
            transport = httpx.AsyncHTTPTransport(uds=self.network.unix_socket, limits=self._limits)
        self._transport = transport
        self._client = self._make_client()
        self._lanes = [Lane(self._client)]

    def _make_client(self) -> httpx.AsyncClient:
        """Follows no proxy of the environment by itself: that is `Network.proxy_for`'s to decide."""
        http2, transport = self.network.http2, self._transport
        try:
            if transport is None and self.network.unix_socket:
                transport = httpx.AsyncHTTPTransport(
                    uds=self.network.unix_socket, limits=self._limits, verify=self._ssl_context, http1=False, http2=True
                )
            return httpx.AsyncClient(
                headers=self._headers,
                limits=self._limits,
                timeout=httpx.Timeout(self.timeouts.read_s, connect=self.timeouts.connect_s),
                transport=transport,
                verify=self._ssl_context,
                http1=not http2,  # who asks for HTTP/2 gets no other
                http2=http2,
                proxy=self._proxy,
                trust_env=False,
            )
        except ImportError:
            raise PreflightError("HTTP/2 needs a package: pip install 'openloop[http2]'") from None

    @property
    def via(self) -> str:
        """What carries the streams, for the manifest; never with a password."""
        parts = ["httpcore" if self._pulls else "own sockets", "HTTP/2" if self.network.http2 else "HTTP/1.1"]
        if self._proxy:
            parts.append(f"through the proxy {without_credentials(self._proxy)}")
        if self.network.unix_socket:
            parts.append(f"unix socket {self.network.unix_socket}")
        if self.base_url.startswith("https:") and self.network.insecure:
            parts.append("TLS, certificate not verified")
        elif self.base_url.startswith("https:"):
            parts.append("TLS")
        return ", ".join(parts)

    def stamp_when_read(self) -> None:
        """From now on, stamp reads when they are made, as where the kernel can't: for a fair comparison with such."""
        assert self._wire is None, "before the first stream"
        self.kernel_stamped = False

    async def close(self) -> None:
        """Close all connections."""
        for lane in self._lanes:
            await lane.client.aclose()
        if self._wire is not None:
            await self._wire.close()

    async def warm(self, path: str, n_connections: int) -> None:
        """Have so many connections ready for streams to `path`, with 0 none at all.

        A server that opens none shows it with the load. What httpx carries stays as it is.
        """
        if self._pulls:
            return
        if path not in self._heads:
            await self._make_head(path)
        assert self._wire is not None
        if not n_connections:
            self._wire.cool()
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
            raise PreflightError(f"no answer from {url}: {describe(error)}{self._hint(error)}") from None
        try:
            data = response.json()
        except ValueError:
            data = None
        return Reply(response.status_code, dict(response.headers), response.text, data)

    def hide(self, outcome: StreamOutcome) -> None:
        """Take secrets out of what an answer leaves in the records."""
        if outcome.error is not None:
            outcome.error = self._redact(outcome.error)
        if outcome.finish_reason is not None:
            outcome.finish_reason = self._redact(outcome.finish_reason)

    def _hint(self, error: Exception) -> str:
        """What to do about it, where one of our options helps."""
        if certificate_fault(error) is not None:
            return "; --ca-file FILE names who vouches for it, --insecure believes any certificate"
        spoken_to = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
        return "; does it speak HTTP/2, as --http2 asks?" if self.network.http2 and spoken_to else ""

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
            outcome.fail("total_timeout", f"not finished after {self.timeouts.total_s:g} s")
        except WireError as error:
            outcome.fail(error.error_class, describe(error))
        except httpx.HTTPError as error:
            outcome.fail(classify(error), describe(error))
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

    def _lane(self) -> Lane:
        """The client for one more stream; for HTTP/2 another one, and with it a connection, when all are full."""
        if not self.network.http2:
            return self._lanes[0]
        free = next((lane for lane in self._lanes if lane.n_streams < STREAMS_A_CONNECTION), None)
        if free is None:
            free = Lane(self._make_client())
            self._lanes.append(free)
        return free

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
        host = url.raw_host.decode("ascii")
        return Wire(host, port, tls, times.connect_s, times.read_s, KEEPALIVE_S, path, stamps=self.kernel_stamped)

    async def _pull(self, path: str, body: bytes, request_id: str, outcome: StreamOutcome, on_read: OnRead) -> None:
        lane, begun_ns = self._lane(), monotonic_ns()
        request = lane.client.build_request(
            "POST",
            self.base_url + path,
            content=body,
            headers={**STREAM_HEADERS, "x-request-id": request_id},
            extensions={"trace": stamping(outcome)},
        )
        lane.n_streams += 1
        try:
            response = await lane.client.send(request, stream=True)
            try:
                outcome.sent_at_ns = outcome.sent_at_ns or begun_ns  # a transport of the caller's may tell nothing
                await self._read(response, outcome, on_read)
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        finally:
            lane.n_streams -= 1

    async def _read(self, response: httpx.Response, outcome: StreamOutcome, on_read: OnRead) -> None:
        outcome.headers_at_ns = monotonic_ns()
        outcome.http_status = response.status_code
        if not response.is_success:
            self._check_status(outcome, Refusal(await response.aread(), dict(response.headers)))
            return
        async for chunk in response.aiter_raw():
            on_read(monotonic_ns(), chunk)
        outcome.stream_end_at_ns = monotonic_ns()

    def _check_status(self, outcome: StreamOutcome, refusal: Refusal) -> None:
        status = outcome.http_status
        if status is None or 200 <= status < 300:
            return
        outcome.advised_wait_s = advised_wait_s(refusal.advice, time())
        rejected = status == 429 or (status == 503 and outcome.advised_wait_s is not None)
        text = refusal.body.decode("utf-8", "replace")
        outcome.fail("rejected" if rejected else "http_status", f"HTTP {status}: {error_message(text)}")


@dataclass
class Lane:
    """One httpx client and the streams that it carries now."""

    client: httpx.AsyncClient
    n_streams: int = 0


def stamping(outcome: StreamOutcome) -> Callable[[str, Any], Awaitable[None]]:
    """A trace for httpcore that tells connecting from sending; a request through a tunnel is sent by its last write."""

    async def trace(event: str, _: Any) -> None:
        now_ns = monotonic_ns()
        if event == "connection.connect_tcp.complete":
            outcome.tcp_connected_at_ns = outcome.connected_at_ns = now_ns
        elif event.endswith((".start_tls.complete", ".connect_unix_socket.complete")):
            outcome.connected_at_ns = now_ns
        elif event.endswith(".send_request_headers.started"):
            outcome.sent_at_ns = now_ns

    return trace


def classify(error: httpx.HTTPError) -> ErrorClass:
    """The class under which a transport fault is counted."""
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return "connect_timeout"
    if isinstance(error, httpx.TimeoutException):
        return "read_timeout"
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return "connect"
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.CloseError | httpx.RemoteProtocolError):
        return "disconnected"
    return "protocol"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, the outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def certificate_fault(error: BaseException) -> str | None:
    """What is wrong with the server's certificate; None when it is something else that failed."""
    found = (cause for cause in causes(error) if isinstance(cause, ssl.SSLCertVerificationError))
    return next((cause.verify_message for cause in found), None)


def describe(error: Exception) -> str:
    """One line for people, with the operating system's reason instead of a class name where there is one."""
    fault = certificate_fault(error)
    if fault is not None:
        return f"TLS: certificate verification failed ({fault})"
    for cause in causes(error):
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {cause.reason or cause}"
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)  # asyncio puts its own words into `strerror`
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    return str(error) or type(error).__name__


def error_message(text: str) -> str:
    """The sentence in an error body: JSON with a message or detail somewhere, or plain text."""
    try:
        return error_sentence(json.loads(text))
    except ValueError:
        return " ".join(text.split())[:200]
