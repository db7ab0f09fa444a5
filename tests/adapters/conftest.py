"""Fixtures of the adapters' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import engine_adapters.wire as wire_module


@pytest.fixture(params=["asyncio", "uvloop", "asyncio, own stamps", "uvloop, own stamps"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a coroutine function on either event loop, with the kernel's receive stamps and without."""
    if request.param.startswith("uvloop"):
        pytest.importorskip("uvloop")
    if request.param.endswith("own stamps"):
        monkeypatch.setattr(wire_module, "kernel_stamps", lambda: False)
    options = {"use_uvloop": request.param.startswith("uvloop")}
    return lambda main, *args: anyio.run(main, *args, backend_options=options)
