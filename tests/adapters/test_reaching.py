"""How a server is reached: TLS, unix sockets, proxies, timeouts, open files; over real sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Pair, make_pair
from support.proxy import Proxy, proxying
from support.raw_server import OK, answering, forever, serving, take_request

from engine_adapters.base import PreflightError, Request, StreamOutcome
from engine_adapters.dialect import Asking, DialectAdapter
from engine_adapters.network import Network, is_loopback
from engine_adapters.openai import CHAT
from engine_adapters.transport import HttpClient, Timeouts

ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
STREAM = OK + b"content-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
Run = Callable[..., Any]


async def stream(url: str, timeouts: Timeouts | None = None, n: int = 1, **network: Any) -> StreamOutcome:
    """The last of n requests, one after the other."""
    adapter = DialectAdapter(HttpClient(url, {}, timeouts, network=Network(**network)), CHAT, Asking("m"))
    body = adapter.encode(Request("hi", 1))
    for i in range(n):
        outcome = StreamOutcome()
        await adapter.stream(body, f"r{i}", outcome)
    await adapter.close()
    return outcome


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    """Certificates of a server and of a client."""
    folder = tmp_path_factory.mktemp("tls")
    return make_pair(folder, "server"), make_pair(folder, "client")


# --- TLS ----------------------------------------------------------------------------------------------------------


def test_insecure_believes_any_certificate_and_says_so(run: Run, pairs: tuple[Pair, Pair]) -> None:
    async def main() -> tuple[StreamOutcome, StreamOutcome]:
        async with serving(forever(STREAM), pairs[0].server()) as port:
            url = f"https://127.0.0.1:{port}"
            return await stream(url), await stream(url, insecure=True)

    verified, insecure = run(main)
    assert (verified.error_class, verified.error) == (
        "connect", "TLS: certificate verification failed (self-signed certificate)",
    )  # fmt: skip
    assert insecure.ok
    assert HttpClient("https://h", network=Network(insecure=True)).via.endswith("TLS, certificate not verified")
    assert "not verified" not in HttpClient("http://h", network=Network(insecure=True)).via


def test_a_preflight_that_distrusts_a_certificate_names_the_options(run: Run, pairs: tuple[Pair, Pair]) -> None:
    async def main() -> None:
        async with serving(forever(STREAM), pairs[0].server()) as port:
            client = HttpClient(f"https://127.0.0.1:{port}")
            try:
                await client.get("/v1/models")
            finally:
                await client.close()

    with pytest.raises(PreflightError, match=r"certificate verification failed.*--ca-file FILE.*--insecure"):
        run(main)


def test_a_client_certificate_opens_a_server_that_asks_for_one(run: Run, pairs: tuple[Pair, Pair]) -> None:
    server, client = pairs

    async def main() -> tuple[StreamOutcome, StreamOutcome]:
        async with serving(forever(STREAM), server.server(ask=client.cert)) as port:
            url, ca = f"https://127.0.0.1:{port}", {"ca_file": str(server.cert)}
            without = await stream(url, **ca)
            return without, await stream(url, **ca, cert_file=str(client.cert), key_file=str(client.key))

    without, shown = run(main)
    assert without.error_class in ("connect", "disconnected")
    assert shown.ok, shown.error


def test_an_encrypted_key_is_refused_and_asks_for_nothing(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "locked", passphrase="open sesame")
    with pytest.raises(PreflightError, match="asks for no passphrase"):
        HttpClient("https://h", network=Network(cert_file=str(pair.cert), key_file=str(pair.key)))


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
def test_a_file_that_is_no_certificate_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.pem").write_text("not PEM")
    with pytest.raises(PreflightError, match=r"x\.pem' can't be used") as caught:
        HttpClient("https://h", network=Network(**{name: str(tmp_path / "x.pem")}))
    assert "not PEM" not in str(caught.value)


# --- unix sockets and proxies -------------------------------------------------------------------------------------


def test_a_unix_socket_carries_streams_and_questions(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def main() -> tuple[StreamOutcome, int]:
        async with serving(forever(STREAM), path=path):
            client = HttpClient("http://localhost", network=Network(unix_socket=path))
            reply = await client.get("/v1/models")
            await client.close()
            outcome = await stream("http://localhost", n=2, unix_socket=path)
        return outcome, reply.status

    outcome, status = run(main)
    assert (outcome.error, outcome.text, status) == (None, "x", 200)
    assert outcome.connected_at_ns is None  # the second request found the connection open


def through_a_proxy(run: Run, monkeypatch: pytest.MonkeyPatch, url: str, **network: Any) -> tuple[StreamOutcome, Proxy]:
    """One stream with HTTP_PROXY and HTTPS_PROXY set to a proxy behind which every host answers."""

    async def main() -> tuple[StreamOutcome, Proxy]:
        tls = network.pop("tls", None)
        async with serving(forever(STREAM), tls) as port:
            proxy = Proxy(port)
            async with proxying(proxy) as address:
                for name in ("http_proxy", "https_proxy"):
                    monkeypatch.setenv(name, f"http://me:secretword@{address}")
                target = url.replace("PORT", str(port))
                return await stream(target, Timeouts(connect_s=5.0, read_s=5.0), **network), proxy

    found: tuple[StreamOutcome, Proxy] = run(main)
    return found


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
def test_a_proxy_of_the_environment_is_followed_only_when_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://surely-nowhere.invalid"
    outcome, proxy = through_a_proxy(run, monkeypatch, url)
    assert (outcome.error_class, proxy.heads) == ("connect", [])
    outcome, proxy = through_a_proxy(run, monkeypatch, url, trust_env=True)
    assert (outcome.error, outcome.text) == (None, "x")
    assert proxy.asked == [b"POST http://surely-nowhere.invalid/v1/chat/completions HTTP/1.1"]
    assert b"proxy-authorization: basic" in proxy.heads[0].lower()
    assert outcome.connected_at_ns is not None
    assert outcome.sent_at_ns is not None
    assert outcome.connected_at_ns <= outcome.sent_at_ns


@pytest.mark.usefixtures("no_proxies")
def test_tls_goes_through_the_proxy_in_a_tunnel_and_is_sent_after_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, pairs: tuple[Pair, Pair]
) -> None:
    outcome, proxy = through_a_proxy(
        run, monkeypatch, "https://surely-nowhere.invalid", trust_env=True, insecure=True, tls=pairs[0].server()
    )
    assert (outcome.error, outcome.text) == (None, "x")
    assert proxy.asked == [b"CONNECT surely-nowhere.invalid:443 HTTP/1.1"]
    instants = [outcome.tcp_connected_at_ns, outcome.connected_at_ns, outcome.sent_at_ns, outcome.first_token_at_ns]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]


@pytest.mark.usefixtures("no_proxies")
def test_this_machine_is_reached_without_a_proxy_even_when_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, proxy = through_a_proxy(run, monkeypatch, "http://127.0.0.1:PORT", trust_env=True)  # case B61
    assert outcome.ok
    assert proxy.heads == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("h", False)],
)
def test_loopback_is_known_by_name_and_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_proxy_is_named_without_its_password() -> None:
    network = Network(trust_env=True)
    assert network.proxy_for("http://h", {"http": "http://me:secretword@p:3128"}) == "http://me:secretword@p:3128"
    assert network.proxy_for("http://h", {"all": "p:3128"}) == "http://p:3128"
    assert network.proxy_for("https://h", {"http": "http://p:3128"}) is None
    for bad in ("socks5://me:secretword@p:1080", "http://me:secret/word@p:1"):
        with pytest.raises(PreflightError) as caught:
            network.proxy_for("http://h", {"http": bad})
        assert "secret" not in str(caught.value)


# --- timeouts -----------------------------------------------------------------------------------------------------


def test_each_timeout_has_its_own_class(run: Run) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        await reader.read()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # takes the TCP connection, and answers no TLS handshake

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(OK + b"content-type: text/event-stream\r\n\r\n")
        while not reader.at_eof():
            writer.write(b": still here\n\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def classes() -> list[str | None]:
        found = []
        for handler, scheme, times in (
            (deaf, "https", Timeouts(connect_s=0.1)),
            (silent, "http", Timeouts(read_s=0.1)),
            (endless, "http", Timeouts(total_s=0.1)),
        ):
            async with serving(handler) as port:
                found.append((await stream(f"{scheme}://127.0.0.1:{port}", times)).error_class)
        return found

    assert run(classes) == ["connect_timeout", "read_timeout", "total_timeout"]


def test_no_read_timeout_stands_in_the_way_of_a_slow_first_token() -> None:
    assert Timeouts().read_s > 60  # case B64: httpx's own is 5 s


# --- rejections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "error_class", "wait_s"),
    [
        (b"429 Slow\r\nretry-after: 3", "rejected", 3.0),
        (
            b"429 Slow\r\nRetry-After: Wed, 21 Oct 2015 07:28:30 GMT\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT",
            "rejected",
            30,
        ),
        (b"429 Slow", "rejected", None),
        (b"503 Busy\r\nretry-after: 0", "rejected", 0.0),
        (b"503 Busy", "http_status", None),
        (b"500 Oops\r\nretry-after: 9", "http_status", 9.0),
    ],
)
@pytest.mark.parametrize("stock", [False, True])
def test_a_rejection_is_told_from_other_refusals(
    run: Run, head: bytes, error_class: str, wait_s: float | None, stock: bool
) -> None:
    import httpx

    answer = b"HTTP/1.1 " + head + b"\r\ncontent-length: 4\r\n\r\nbusy"

    async def main() -> StreamOutcome:
        async with serving(answering(answer)) as port:
            transport = httpx.AsyncHTTPTransport() if stock else None
            adapter = DialectAdapter(HttpClient(f"http://127.0.0.1:{port}", transport=transport), CHAT, Asking("m"))
            outcome = StreamOutcome()
            await adapter.stream(b"{}", "r", outcome)
            await adapter.close()
            return outcome

    outcome = run(main)
    assert (outcome.error_class, outcome.advised_wait_s) == (error_class, wait_s)
    assert (outcome.error or "").endswith("busy")


# --- connections --------------------------------------------------------------------------------------------------


def test_connecting_is_stamped_apart_from_the_send(run: Run, pairs: tuple[Pair, Pair]) -> None:
    async def main() -> StreamOutcome:
        async with serving(forever(STREAM), pairs[0].server()) as port:
            return await stream(f"https://localhost:{port}", insecure=True)

    found = run(main)
    instants = [found.resolved_at_ns, found.tcp_connected_at_ns, found.connected_at_ns, found.sent_at_ns]
    assert None not in instants
    assert instants == sorted(instants)


def test_warm_connections_are_found_and_cold_ones_opened(run: Run) -> None:
    async def main() -> list[bool]:
        opened = []
        async with serving(forever(STREAM)) as port:
            adapter = DialectAdapter(HttpClient(f"http://127.0.0.1:{port}"), CHAT, Asking("m"))
            for n_warm in (3, 0, 1):
                await adapter.warm(n_warm)
                outcome = StreamOutcome()
                await adapter.stream(adapter.encode(Request("hi", 1)), "r", outcome)
                opened.append(outcome.connected_at_ns is not None)
            await adapter.close()
        return opened

    assert run(main) == [False, True, False]


LIMITED = """
import resource, sys
from engine_adapters.network import allow_descriptors
soft, hard, sure, possible = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    allow_descriptors(sure, possible)
except Exception as error:
    print(type(error).__name__, error)
else:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((300, 900, 10, 10), "300"),  # enough
        ((300, 900, 500, 500), "600"),  # raised to what is needed
        ((300, 900, 10, 5000), "900"),  # as far as it goes
        ((300, 900, 5000, 5000), "PreflightError 5,000 connections at once need 5,100 open files"),
    ],
)
def test_the_limit_of_open_files_is_raised_or_refused_before_the_start(limits: tuple[int, ...], expected: str) -> None:
    command = [sys.executable, "-c", LIMITED, *map(str, limits)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(expected)


def test_a_connection_is_found_in_as_many_steps_however_many_are_idle(run: Run) -> None:
    async def steps(n_idle: int) -> int:
        """Looks at idle connections while 50 requests are made."""
        import engine_adapters.connection as module

        looks = 0
        usable = module.Connection.usable

        def counted(self: Any) -> bool:
            nonlocal looks
            looks += 1
            return bool(usable.fget(self))  # type: ignore[attr-defined]

        async with serving(forever(STREAM)) as port:
            adapter = DialectAdapter(HttpClient(f"http://127.0.0.1:{port}"), CHAT, Asking("m"))
            await adapter.warm(n_idle)
            module.Connection.usable = property(counted)  # type: ignore[method-assign,assignment]
            try:
                for i in range(50):
                    outcome = StreamOutcome()
                    await adapter.stream(adapter.encode(Request("hi", 1)), f"r{i}", outcome)
                    assert outcome.connected_at_ns is None
            finally:
                module.Connection.usable = usable  # type: ignore[method-assign]
            await adapter.close()
        return looks

    assert run(steps, 400) == run(steps, 4)


def test_a_server_that_closes_idle_connections_as_requests_come_fails_none(run: Run) -> None:
    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await asyncio.wait_for(take_request(reader), 0.03)
            except TimeoutError:
                return
            writer.write(STREAM)

    async def main() -> list[StreamOutcome]:
        outcomes = []
        async with serving(impatient) as port:  # case B60, thirty times faster
            adapter = DialectAdapter(HttpClient(f"http://127.0.0.1:{port}"), CHAT, Asking("m"))
            for i in range(20):
                outcomes.append(StreamOutcome())
                await adapter.stream(adapter.encode(Request("hi", 1)), f"r{i}", outcomes[-1])
                await asyncio.sleep(0.029 + 0.0002 * i)
            await adapter.close()
        return outcomes

    outcomes = run(main)
    assert [outcome.error for outcome in outcomes] == [None] * 20
    for outcome in outcomes:  # a second try is a connection of its own, and no part of TTFT
        assert outcome.first_token_at_ns - outcome.sent_at_ns < 500_000_000
    assert any(outcome.connected_at_ns is not None for outcome in outcomes[1:])


def test_a_port_that_nobody_listens_on_is_a_refused_connection(run: Run) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        outcome = run(stream, f"http://127.0.0.1:{probe.getsockname()[1]}")
    assert (outcome.error_class, outcome.sent_at_ns) == ("connect", None)
