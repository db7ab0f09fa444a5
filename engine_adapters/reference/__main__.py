"""The engine's process: reads its arguments, opens its port, serves until SIGTERM or Ctrl-C, then exits with 0."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from engine_adapters.reference import options
from engine_adapters.reference.config import PROCESS_ENVIRONMENT

if TYPE_CHECKING:
    from engine_adapters.reference.server import Server

MARGIN_S = 5  # beyond the grace time, until a process that should have ended is ended
BACKLOG = 4096


def main(argv: Sequence[str]) -> None:
    """Serve; a busy port, a bad setting or a model that can't be read is one line on stderr and exit code 2."""
    if any(os.environ.get(name) != value for name, value in PROCESS_ENVIRONMENT.items()):
        _start_again_in_its_environment(argv)
    args = options.parse(argv)
    _end_cleanly_on_signals()
    try:
        sock = _listen(args.host, args.port)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        _usage_error(f"cannot listen on {args.host}:{args.port}: {reason}")
    if args.die_with_stdin:
        threading.Thread(target=_end_with_stdin, args=(args.grace,), name="stdin", daemon=True).start()
    try:
        server = _make_server(args)
    except ValueError as error:
        _usage_error(str(error))
    _serve(args, server, sock)


def _make_server(args: argparse.Namespace) -> Server:
    # Imported here: numpy must not be imported before the process has its environment.
    from engine_adapters.reference.assembly import assemble
    from engine_adapters.reference.server import Server

    engine = assemble(args)
    return Server(
        engine.core,
        engine.name,
        engine.vocab_size,
        args.slowdown if args.executor == "numpy" else 1.0,  # a simulated machine is slow by itself
        tokenizer=engine.tokenizer,
        faults=args.faults,
        ceilings=engine.ceilings,
        grace_s=args.grace,
    )


def _serve(args: argparse.Namespace, server: Server, sock: socket.socket) -> None:
    from engine_adapters.reference.http_server import DrainingServer

    if args.faults.faults:  # an answer that is cut on purpose is no error to be logged
        logging.getLogger("uvicorn.error").addFilter(lambda record: "without completing" not in record.getMessage())
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"listening on http://{host}:{sock.getsockname()[1]}", flush=True)
    DrainingServer(server).run(sockets=[sock])
    server.core.executor.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Accepted sockets inherit it. asyncio alone would leave Nagle on here, which holds tokens back for 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _usage_error(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _start_again_in_its_environment(argv: Sequence[str]) -> NoReturn:
    """Replace this process by itself with PROCESS_ENVIRONMENT set; the process id stays."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "engine_adapters.reference", *argv]
    os.execve(sys.executable, command, os.environ | PROCESS_ENVIRONMENT)


def _end_cleanly_on_signals() -> None:
    """Until it serves: then the HTTP server has its own way to end."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def _end_with_stdin(grace_s: int) -> None:
    """Wait until whoever holds the other end of stdin is gone, however it went, then end."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(grace_s + MARGIN_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
