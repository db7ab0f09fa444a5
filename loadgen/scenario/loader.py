"""From a path or a shipped name to a validated Scenario, or to one line a problem with the place of each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from loadgen.scenario.datasets import load_dataset
from loadgen.scenario.errors import ScenarioError, did_you_mean, nearest
from loadgen.scenario.schema import DatasetSpec, Scenario, all_keys, keys_of
from loadgen.scenario.yaml_source import Source, apply_override, parse_yaml


def load_scenario(path_or_name: str, overrides: Sequence[str] = ()) -> Scenario:
    """Read, override, validate; a data set it names is read too (its path counts from the scenario's folder).

    `path_or_name` is a file, or the name of a shipped scenario (`rag`, also as `scenarios/rag.yaml`). Overrides are
    `key.path=value` with a YAML value. ScenarioError holds all problems of the file, one a line.
    """
    text, label, folder = _find(path_or_name)
    source = parse_yaml(text, label)
    if folder is not None:
        _anchor_dataset(source.data, folder)
    for override in overrides:
        apply_override(source, override)
    scenario = _validate(source)
    return _with_dataset(scenario, scenario.workload.prompt.dataset, source)


def shipped_names() -> list[str]:
    """Names of the scenarios inside the installed package."""
    names = (Path(entry.name) for entry in files("scenarios").iterdir())
    return sorted(name.stem for name in names if name.suffix == ".yaml")


def _find(path_or_name: str) -> tuple[str, str, Path | None]:
    """(text, label, folder); the folder is None for a shipped scenario."""
    path = Path(path_or_name)
    if path.is_file():
        return _read(path), path_or_name, path.parent
    if path.is_dir():
        raise ScenarioError(f"{path_or_name}: is a folder, a scenario is a file")
    name = path.stem if path.suffix == ".yaml" and path.parent.name == "scenarios" else path_or_name
    if name in shipped_names():
        return files("scenarios").joinpath(f"{name}.yaml").read_text("utf-8"), f"{name}.yaml", None
    near = nearest(path.stem, shipped_names())
    hint = f"; did you mean '{near}'?" if near else ""
    raise ScenarioError(f"{path_or_name}: no such file or scenario{hint} (shipped: {', '.join(shipped_names())})")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes().count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{path}:{line}: not UTF-8") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None


def _anchor_dataset(data: dict[str, Any], folder: Path) -> None:
    spec: Any = data
    for key in ("workload", "prompt", "dataset"):
        spec = spec.get(key) if isinstance(spec, dict) else None
    if isinstance(spec, dict) and isinstance(spec.get("path"), str):
        spec["path"] = str(folder / spec["path"])


def _with_dataset(scenario: Scenario, spec: DatasetSpec | None, source: Source) -> Scenario:
    if spec is None:
        return scenario
    try:
        scenario._dataset = load_dataset(spec.path, spec.field, spec.max_prompt_tokens)
    except ScenarioError as error:
        _, place = source.place(("workload", "prompt", "dataset", "path"))
        raise ScenarioError(f"{place}: {error}") from None
    return scenario


def _validate(source: Source) -> Scenario:
    try:
        return Scenario.model_validate(source.data)
    except ValidationError as error:
        problems = [_problem(source, item) for item in error.errors(include_url=False)]
    problems = _without_consequences(problems)
    lines = dict.fromkeys(f"{place}: {text}" for (_, place), text, _ in sorted(problems))
    raise ScenarioError("\n".join(lines))


Problem = tuple[tuple[int, str], str, str]  # (place, text, the missing key this explains or "")


def _problem(source: Source, item: Any) -> Problem:
    path = tuple(map(str, item["loc"]))
    texts = {"extra_forbidden": _unknown_key, "missing": _missing_key}
    text, meant = texts.get(item["type"], _bad_value)(path, item)
    if item["type"] == "missing":
        return source.place(path[:-1]), text, meant
    return (source.culprit if item["type"] == "value_error" else source.place)(path), text, meant


def _without_consequences(problems: list[Problem]) -> list[Problem]:
    """A misspelt key also makes the right one missing: say it once."""
    meant = {key for _, text, key in problems if text.startswith("unknown")}
    return [problem for problem in problems if not (problem[1].startswith("missing") and problem[2] in meant)]


def _model_at(path: tuple[str, ...]) -> type[BaseModel]:
    model: type[BaseModel] = Scenario
    for key in path:
        model = keys_of(model).get(key) or model
    return model


def _unknown_key(path: tuple[str, ...], item: Any) -> tuple[str, str]:
    *parents, key = path
    known = keys_of(_model_at(tuple(parents)))
    where = f" in {'.'.join(parents)}" if parents else ""
    elsewhere = [".".join(other) for other in all_keys() if other[-1] == key]
    near = nearest(key, known)
    if near is None and elsewhere:
        return f"unknown key '{key}'{where}; did you mean '{elsewhere[0]}'?", ""
    meant = ".".join([*parents, near]) if near else ""
    return f"unknown key '{key}'{where}{did_you_mean(key, known)}", meant


def _missing_key(path: tuple[str, ...], item: Any) -> tuple[str, str]:
    *parents, key = path
    where = f" in {'.'.join(parents)}" if parents else ""
    return f"missing key '{key}'{where}", ".".join(path)


def _bad_value(path: tuple[str, ...], item: Any) -> tuple[str, str]:
    error = item.get("ctx", {}).get("error")
    if error is not None:
        text = str(error)
    elif item["type"] == "model_type":
        text = f"takes the keys {', '.join(keys_of(_model_at(path)))} (got {item['input']!r})"
    elif item["type"] == "string_pattern_mismatch":
        text = "only letters, digits, '.', '_' and '-'"
    else:
        text = f"{_plain(item['msg'])} (got {item['input']!r})"
    return (f"{'.'.join(path)}: {text}" if path else text), ""


def _plain(message: str) -> str:
    return message.replace("Input should", "should").replace("a valid tuple", "a list")
