"""The import rules of ARCHITECTURE.md, held by reading every module's imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("loadgen", "engine_adapters", "reports", "scenarios")
PURE = (
    "loadgen.scenario.schedule",
    "loadgen.scenario.lengths",
    "loadgen.scenario.arrivals",
    "loadgen.analysis.metrics",
    "loadgen.analysis.percentiles",
    "loadgen.analysis.gate",
    "loadgen.analysis.validity",
    "loadgen.analysis.knee",
    "loadgen.analysis.summary",
    "loadgen.self_test.ladder",
    "loadgen.self_test.rung",
    "loadgen.self_test.telling",
    "loadgen.analysis.admission",
    "loadgen.analysis.timeouts",
    "loadgen.generator.limit",
    "loadgen.generator.retries",
    "engine_adapters.retry_after",
    "engine_adapters.sse",
    "engine_adapters.ndjson",
    "engine_adapters.stream",
    "engine_adapters.reference.scheduler",
    "engine_adapters.reference.block_pool",
    "engine_adapters.reference.kv_cache",
    "engine_adapters.reference.request",
    "engine_adapters.reference.request_queue",
    "engine_adapters.reference.admission",
    "engine_adapters.reference.api",
    "engine_adapters.reference.answers",
    "engine_adapters.reference.stop_strings",
    "engine_adapters.reference.faults",
    "engine_adapters.reference.engine_stats",
    "engine_adapters.reference.prometheus",
)
CLOCKS = {
    "loadgen.generator.clock",
    "engine_adapters.transport",
    "engine_adapters.wire",
    "engine_adapters.connection",  # the wire's sockets, which stamp each read
    "engine_adapters.sockets",
}

SERVERS = ("engine_adapters.reference", "engine_adapters.mock")  # processes of their own, with a truth of their own


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def imports(path: Path) -> set[str]:
    """Every module that is imported, also inside functions; `from a import b` counts as a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def users_of(*libraries: str) -> set[str]:
    """Modules of ours that import any of the libraries."""
    return {name for name, path in modules() if any(i.split(".")[0] in libraries for i in imports(path))}


def ours(path: Path) -> set[str]:
    return {i for i in imports(path) if i.split(".")[0] in PACKAGES}


ALL = dict(modules())


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("engine_adapters")])
def test_adapters_import_nothing_of_ours_but_the_roofline(name: str) -> None:
    assert all(i.startswith(("engine_adapters", "loadgen.roofline")) for i in ours(ALL[name]))


@pytest.mark.parametrize("name", [n for n in ALL if n.startswith("loadgen") and not n.startswith("loadgen.commands")])
def test_loadgen_knows_adapters_only_by_their_contract(name: str) -> None:
    foreign = {i for i in ours(ALL[name]) if not i.startswith("loadgen")}
    assert all(i.startswith("engine_adapters.base") for i in foreign)
    assert not any(i.startswith("loadgen.commands") for i in ours(ALL[name]))


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("loadgen.roofline")])
def test_the_roofline_is_a_leaf(name: str) -> None:
    assert all(i.startswith("loadgen.roofline") for i in ours(ALL[name]))


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("reports")])
def test_reports_import_loadgen_and_never_its_commands(name: str) -> None:
    assert all(i.startswith(("reports", "loadgen")) and not i.startswith("loadgen.commands") for i in ours(ALL[name]))


def test_only_the_transport_imports_httpx() -> None:
    assert users_of("httpx", "httpcore", "h11") == {"engine_adapters.transport"}


def test_pages_and_figures_are_drawn_in_reports_alone() -> None:
    assert all(name.startswith("reports") for name in users_of("matplotlib", "jinja2", "pandas"))


def test_no_torch_outside_the_reference_engine() -> None:
    assert all(name.startswith("engine_adapters.reference") for name in users_of("torch", "triton"))


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_have_no_clock_no_io_and_no_global_randomness(name: str) -> None:
    assert not imports(ALL[name]) & {"time", "random", "os", "socket", "pathlib", "datetime", "anyio", "asyncio"}


def test_the_generator_reads_the_clock_in_one_place() -> None:
    hot = ("loadgen.generator", "engine_adapters.")
    readers = {name for name, path in modules() if "time" in imports(path) and name.startswith(hot)}
    assert {name for name in readers if not name.startswith(SERVERS)} == CLOCKS


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from loadgen.cli import bench\n"
        "try: bench(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & "
        "{'numpy', 'httpx', 'pydantic', 'matplotlib', 'jinja2', 'anyio', 'rich', 'yaml', 'starlette'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip().endswith("[]")


def test_no_path_of_a_machine_is_named() -> None:
    home, work = str(Path.home()) + "/", str(ROOT.parent) + "/"
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    texts = ((name, ROOT / name) for name in tracked if (ROOT / name).is_file())
    assert [n for n, p in texts if any(x in p.read_bytes().decode("utf-8", "ignore") for x in (home, work))] == []
