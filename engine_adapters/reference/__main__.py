"""The engine's process: reads its arguments, opens its port, serves until SIGTERM or Ctrl-C, then exits with 0."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from engine_adapters.reference.config import MODELS, PROCESS_ENVIRONMENT, EngineConfig

KEEP_ALIVE_S = 75
GRACE_S = 3  # requests in flight at SIGTERM get this long to end
BACKLOG = 4096
CONFIG_OPTIONS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks", "max_model_len", "max_waiting")


def main(argv: Sequence[str]) -> None:
    """Serve; a busy port or a bad setting is one line on stderr and exit code 2."""
    if any(os.environ.get(name) != value for name, value in PROCESS_ENVIRONMENT.items()):
        _start_again_in_its_environment(argv)
    args = _parse(argv)
    _end_cleanly_on_signals()
    try:
        config = EngineConfig(**{name: getattr(args, name) for name in CONFIG_OPTIONS})
        sock = _listen(args.host, args.port)
    except ValueError as error:
        _usage_error(str(error))
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        _usage_error(f"cannot listen on {args.host}:{args.port}: {reason}")
    if args.die_with_stdin:
        threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    _serve(args, config, sock)


def _serve(args: argparse.Namespace, config: EngineConfig, sock: socket.socket) -> None:
    # Imported here: numpy must not be imported before the process has its environment.
    import uvicorn

    from engine_adapters.reference.engine import EngineCore
    from engine_adapters.reference.executors.numpy import NumpyExecutor
    from engine_adapters.reference.server import Server
    from engine_adapters.reference.weights import random_weights

    model = MODELS[args.model]
    executor = NumpyExecutor(model, config, random_weights(model, args.seed))
    executor.warmup()
    app = Server(EngineCore(config, executor), model, args.slowdown).app()
    settings = uvicorn.Config(
        app,
        loop="auto",  # uvloop where it is installed
        http="httptools",
        ws="none",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"listening on http://{host}:{sock.getsockname()[1]}", flush=True)
    uvicorn.Server(settings).run(sockets=[sock])


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine_adapters.reference", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--die-with-stdin", action="store_true", help="end when stdin is closed")
    defaults = EngineConfig()
    for name in CONFIG_OPTIONS:
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=getattr(defaults, name))
    args = parser.parse_args(argv)
    if not 1.0 <= args.slowdown <= 100.0:
        parser.error("--slowdown must be from 1 to 100")
    return args


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
    """uvicorn raises a signal again once it has shut down: that, too, must end in exit code 0 and no traceback."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def _end_with_stdin() -> None:
    """Wait until whoever holds the other end of stdin is gone, however it went, then end."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(2 * GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
