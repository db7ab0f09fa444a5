"""What `run`, `sweep` and `gate` share: options, the endpoint that they name, and errors that are the user's."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from engine_adapters.base import API_NAMES

F = TypeVar("F", bound=Callable[..., Any])


class UsageProblem(click.ClickException):
    """A mistake that the user can mend; one line, exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """The message as it is: scenario errors already begin with file and line."""
        from loadgen.redaction import redact

        click.echo(redact(self.message), err=True, file=file)


class InvalidRun(UsageProblem):
    """Nothing in the run can be believed; exit code 4."""

    exit_code = 4


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator out of several, in reading order."""

    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


ask_options = together(
    click.option("--api", metavar="NAME", help=f"{', '.join(API_NAMES)} [scenario's, or the server's own]."),
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="tokenizer.json, where a server counts nothing.",
    ),
    click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key."),
    click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File that holds it."),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="'NAME: VALUE'",
        help="Extra header; repeatable. VALUE may be $VARIABLE or @FILE, which `ps` does not show.",
    ),
)
reach_options = together(
    click.option("--insecure", is_flag=True, help="Believe any TLS certificate."),
    click.option("--ca-file", metavar="FILE", help="Who vouches for the server's certificate (PEM)."),
    click.option("--cert", "cert_file", metavar="FILE", help="The client's own certificate (PEM), with --key."),
    click.option("--key", "key_file", metavar="FILE", help="Its key [in the file of --cert]."),
    click.option("--trust-env", is_flag=True, help="Follow HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."),
    click.option("--http2", is_flag=True, help="HTTP/2 instead of HTTP/1.1."),
    click.option("--unix-socket", metavar="PATH", help="Connect there; --url is then only the Host header's."),
)
scenario_options = together(
    click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override any scenario key; repeatable."
    ),
    click.option("--seed", type=int, help="Shorthand for --set seed=N."),
)
hardware_options = together(
    click.option(
        "--hardware", metavar="NAME", help="The server's device, for the bound (h100-sxm, h200-sxm, mi300x, ...)."
    ),
    click.option("--devices", type=click.IntRange(min=1), help="How many of them serve one replica."),
    click.option("--precision", metavar="P", help="Weights: bf16, fp16, fp8, int8, int4, fp32."),
    click.option("--model-config", type=click.Path(path_type=Path), metavar="FILE", help="The model's HF config.json."),
)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run folder to create [runs/...]."
)


def all_overrides(overrides: tuple[str, ...], **values: Any) -> list[str]:
    """`--set` values followed by the shorthands that were given."""
    return [*overrides, *(f"{key}={value}" for key, value in values.items() if value is not None)]


def located(url: str | None, unix_socket: str | None) -> str | None:
    """The server's URL, which a unix socket does not need."""
    return url or ("http://localhost" if unix_socket else None)


def base_url(url: str) -> str:
    """The server's root: a trailing `/v1` is the API's own, and secrets do not belong into a record."""
    from loadgen.commands.credentials import clean_url, has_credentials

    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018  # raises for what is no port
    except ValueError:
        raise UsageProblem(f"--url {clean_url(url)}: a port is a number up to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageProblem(f"--url {clean_url(url)}: a URL looks like http://host:8000")
    if has_credentials(url):
        raise UsageProblem(
            "--url holds a password or a query, which would be recorded: give credentials with --api-key-env NAME or "
            "a --header"
        )
    return re.sub(r"/v1/?$", "", url.rstrip("/"))


def new_folder(out: Path | None, name: str) -> Path:
    """Where the run goes; an existing --out is refused before anything is sent."""
    if out is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        wanted = Path("runs") / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:80]}-{stamp}"
        free = (wanted.with_name(f"{wanted.name}-{n}") for n in count(2))
        return wanted if not wanted.exists() else next(path for path in free if not path.exists())
    if not str(out).strip(". "):
        raise UsageProblem(f"--out '{out}': name a folder to create")
    if out.exists():
        raise UsageProblem(f"--out {out} exists already; a run is never overwritten, choose another folder")
    return out
