"""Which errors are the user's, the server's or the system's: they become one line and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine_adapters.base import PreflightError
from loadgen.bound_spec import BoundProblem
from loadgen.collectors.run_folder import FolderError
from loadgen.commands.common import UsageProblem
from loadgen.scenario.errors import ScenarioError
from loadgen.session import ProbeError

PROBLEMS = (PreflightError, ProbeError, FolderError, BoundProblem, ScenarioError)


@contextmanager
def users_problems() -> Iterator[None]:
    """Turn them into UsageProblem; what is left is an error of ours."""
    try:
        yield
    except PROBLEMS as error:
        raise UsageProblem(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that is missing or can't be written
        raise UsageProblem(f"{error.filename or 'writing'}: {error.strerror or error}") from None
