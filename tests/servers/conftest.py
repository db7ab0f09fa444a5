"""The servers of `make test-servers`, each started once for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.live import Held, started


@pytest.fixture(scope="session")
def vllm() -> Iterator[str]:
    with started("vllm") as (url, _):
        yield url


@pytest.fixture(scope="session")
def llamacpp() -> Iterator[str]:
    with started("llamacpp") as (url, _):
        yield url


@pytest.fixture(scope="session")
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.write()
