"""One virtual environment for each client under a cache folder, made once; a failed one is made anew next time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from peers import Client

DONE = "installed.txt"
TIMEOUT_S = 1800.0


class InstallFailed(Exception):
    """The client can't be had here; the text tells why, in one line."""


def programs(client: Client, cache: Path) -> Path:
    """The folder of the client's commands; installs it when it is not there. Raises InstallFailed."""
    venv = cache / "venvs" / "-".join([client.name, *(p.rpartition("==")[2] for p in client.packages)])
    if not (venv / DONE).is_file():
        shutil.rmtree(venv, ignore_errors=True)
        install(client, venv)
    return venv / "bin"


def install(client: Client, venv: Path) -> None:
    """Make the environment and install the pinned packages, with pip's output beside it; raises InstallFailed."""
    log = venv.with_suffix(".log")
    venv.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            for command in steps(client, venv):
                subprocess.run(command, stdout=output, stderr=output, check=True, timeout=TIMEOUT_S)
        except (subprocess.SubprocessError, OSError):
            raise InstallFailed(f"{' '.join(client.packages)}: {reason(log)} (whole output: {log})") from None
    if client.known_as:
        name_it(venv, *client.known_as.split("=="))
    (venv / DONE).write_text("\n".join(client.packages) + "\n")


def steps(client: Client, venv: Path) -> Iterator[list[str]]:
    """The commands that make the environment."""
    pip = [str(venv / "bin/python"), "-m", "pip"]
    yield [python_for(client), "-m", "venv", str(venv)]
    yield [*pip, "install", *client.packages]
    if client.without:
        yield [*pip, "uninstall", "--yes", *client.without]


def name_it(venv: Path, name: str, version: str) -> None:
    """Metadata of that name and version, beside the package's own."""
    (site_packages,) = venv.glob("lib/python*/site-packages")
    folder = site_packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def reason(log: Path) -> str:
    """pip's own word on what went wrong."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")[:200]


def python_for(client: Client) -> str:
    """An interpreter that is new enough for the client; raises InstallFailed."""
    if sys.version_info[:2] >= client.python:
        return sys.executable
    for candidate in interpreters(client.python):
        if works(candidate, client.python):
            return candidate
    raise InstallFailed(f"{client.name} needs Python {client.python[0]}.{client.python[1]} or newer; none was found")


def interpreters(at_least: tuple[int, int]) -> Iterator[str]:
    """Where a newer Python may be: on the path, or among pyenv's."""
    major, minor = at_least
    for newer in range(minor, minor + 4):
        name = f"python{major}.{newer}"
        if found := shutil.which(name):
            yield found
        versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
        yield from (str(path / "bin" / name) for path in sorted(versions.glob(f"{major}.{newer}.*"), reverse=True))


def works(python: str, at_least: tuple[int, int]) -> bool:
    """Whether it runs (a shim may not) and is new enough."""
    check = f"import sys, venv; sys.exit(sys.version_info[:2] < {at_least})"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
