"""Rules for every test: in CI a skip counts only when it is listed here with its reason."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

# A skip whose reason contains one of these is allowed under OPENLOOP_STRICT_SKIPS; any other one is a failure, because
# a missing install would otherwise look like a passed suite.
LISTED_SKIPS = (
    "shared/",  # published points and cases that lie beside some checkouts only
    "C compiler",  # the mock server's C file; its Python twin is tested everywhere
    "openloop[reference-tests]",  # transformers and torch; what they compute is recorded and tested everywhere
    "chromium",  # the rendered page is looked at where a browser is installed
)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, None, None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if not report.skipped or hasattr(report, "wasxfail") or not os.environ.get("OPENLOOP_STRICT_SKIPS"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(listed in reason for listed in LISTED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"unlisted skip: {reason}"
