"""Where the mock server comes from: built once, never half, and replaced by its twin where it can't be built."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.mock_client import how

from engine_adapters.mock import process
from engine_adapters.mock.process import MockError, MockServer, build, twin


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "openloop"


def test_it_is_built_once_and_nothing_else_is_left(cache: Path) -> None:
    how("C")
    first = build()
    built_at = os.stat(first.command[0]).st_mtime_ns
    assert build() == first
    assert os.stat(first.command[0]).st_mtime_ns == built_at
    assert [str(path) for path in cache.iterdir()] == [first.command[0]]


def test_another_source_is_another_binary(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = how("C")
    changed = tmp_path / "changed.c"
    changed.write_text(process.SOURCE.read_text() + "\n")
    monkeypatch.setattr(process, "SOURCE", changed)
    assert build().command != first.command


def test_without_a_compiler_the_twin_serves_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = build()
    assert found.kind == "Python"
    assert "no C compiler" in (found.note or "")
    with MockServer(how=found) as mock:
        assert mock.truth().request_id == []


def test_a_source_that_does_not_build_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how("C")
    broken = tmp_path / "broken.c"
    broken.write_text("int main(void) { return nothing; }")
    monkeypatch.setattr(process, "SOURCE", broken)
    found = build()
    assert found.kind == "Python"
    assert "did not build it" in (found.note or "")
    assert sorted(path.name[:10] for path in cache.iterdir()) == ["mockserver"]


def test_a_cache_that_can_not_be_written_means_the_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how("C")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = build()
    assert found.kind == "Python"
    assert "could not be built" in (found.note or "")


def test_a_wrong_option_is_told_at_once() -> None:
    with pytest.raises(MockError, match="did not start"):
        MockServer(tokens_per_event=0, how=twin("")).__enter__()


def test_the_source_is_in_the_package() -> None:
    assert process.SOURCE.is_file()
    assert process.SOURCE.parent.name == "mock"


def test_it_is_pinned_where_asked() -> None:
    how("C")  # Linux, where cores can be chosen
    core = min(os.sched_getaffinity(0))
    with MockServer(cores={core}) as mock:
        assert os.sched_getaffinity(mock.pid) == {core}
