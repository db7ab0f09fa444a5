"""YAML text and `--set` overrides as plain data, with the place where each key was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from loadgen.scenario.errors import ScenarioError

Path = tuple[str, ...]
OVERRIDE = 10**9  # sorts behind all lines
# An override of one key takes away its rival, which the file may have set.
_RIVALS: dict[Path, Path] = {
    ("load", "rates"): ("load", "concurrency"),
    ("load", "concurrency"): ("load", "rates"),
    ("workload", "prompt", "tokens"): ("workload", "prompt", "dataset"),
    ("workload", "prompt", "dataset"): ("workload", "prompt", "tokens"),
}


@dataclass(slots=True)
class Source:
    """A tree of plain values; `places` maps key paths to (order, text such as `rag.yaml:14` or `--set a.b=1`)."""

    data: dict[str, Any]
    label: str
    places: dict[Path, tuple[int, str]] = field(default_factory=dict)

    def place(self, path: Path) -> tuple[int, str]:
        """Where `path`, or its nearest parent that was written, stands."""
        for n_keys in range(len(path), 0, -1):
            if path[:n_keys] in self.places:
                return self.places[path[:n_keys]]
        return (1, f"{self.label}:1")

    def culprit(self, path: Path) -> tuple[int, str]:
        """Where to look for a contradiction inside the mapping `path`: an override in it, else its own place."""
        below = [place for known, place in self.places.items() if place[0] == OVERRIDE and known[: len(path)] == path]
        return below[-1] if below else self.place(path)


def parse_yaml(text: str, label: str) -> Source:
    """The mapping in `text`. ScenarioError for YAML errors, duplicate keys and aliases, one line each."""
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            raise ScenarioError(f"{label}:1: the file is empty")
        if not isinstance(node, yaml.MappingNode):
            raise ScenarioError(f"{label}:{_line(node)}: a scenario is a mapping of keys, not a plain value or a list")
        source = Source({}, label)
        source.data = _Walk(source, loader).mapping(node, ())
        return source
    except RecursionError:
        raise ScenarioError(f"{label}: nested too deeply to be a scenario") from None
    except yaml.YAMLError as error:
        raise ScenarioError(_yaml_error(error, label)) from None
    finally:
        if loader is not None:
            loader.dispose()


def apply_override(source: Source, override: str) -> None:
    """Set one key, `load.rates=[1,2,4]`, in place; the value is YAML. ScenarioError says what is wrong with it."""
    label = f"--set {override}"
    dotted, equals, text = override.partition("=")
    path = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(path):
        raise ScenarioError(f"{label}: write --set key.path=value, for example --set load.rates=[1,2,4]")
    try:
        value = yaml.safe_load(text)
    except RecursionError:
        raise ScenarioError(f"{label}: nested too deeply to be a scenario") from None
    except yaml.YAMLError as error:
        raise ScenarioError(_yaml_error(error, label, with_line=False)) from None
    _forget_rivals(source, path)
    _put(source, path, value, label)


def _put(source: Source, path: Path, value: Any, label: str) -> None:
    mapping: dict[str, Any] = source.data
    for depth, key in enumerate(path[:-1], start=1):
        if mapping.get(key) is None:
            mapping[key] = {}
        if not isinstance(mapping[key], dict):
            raise ScenarioError(
                f"{label}: {'.'.join(path[:depth])} is a plain value in {source.label}; set it as a whole"
            )
        mapping = mapping[key]
    mapping[path[-1]] = value
    for known in [known for known in source.places if known[: len(path)] == path]:
        del source.places[known]
    source.places[path] = (OVERRIDE, label)


def _forget_rivals(source: Source, path: Path) -> None:
    for chosen, rival in _RIVALS.items():
        parent: Any = source.data
        for key in rival[:-1]:
            parent = parent.get(key) if isinstance(parent, dict) else None
        if path[: len(chosen)] == chosen and isinstance(parent, dict):
            parent.pop(rival[-1], None)


@dataclass(slots=True)
class _Walk:
    """Turns YAML nodes into values and notes the line of every key."""

    source: Source
    loader: yaml.SafeLoader
    seen: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, path: Path) -> Any:
        # Without aliases no node is met twice; with them a small file can grow without bound, or into itself.
        if id(node) in self.seen:
            raise ScenarioError(f"{self.source.label}:{_line(node)}: YAML aliases (*name) are not supported")
        self.seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.item(child, (*path, str(i))) for i, child in enumerate(node.value)]
        return self.loader.construct_object(node)

    def item(self, node: yaml.Node, path: Path) -> Any:
        self.note(node, path)
        return self.value(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ScenarioError(f"{self.source.label}:{_line(key_node)}: a key must be a word")
            key = str(key_node.value)
            if key in values:
                first = self.source.places[(*path, key)][0]
                text = f"duplicate key '{key}'; it already stands in line {first}"
                raise ScenarioError(f"{self.source.label}:{_line(key_node)}: {text}")
            self.note(key_node, (*path, key))
            values[key] = self.value(value_node, (*path, key))
        return values

    def note(self, node: yaml.Node, path: Path) -> None:
        self.source.places[path] = (_line(node), f"{self.source.label}:{_line(node)}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _yaml_error(error: yaml.YAMLError, label: str, with_line: bool = True) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    context = getattr(error, "context", None)
    place = f"{label}:{mark.line + 1}" if with_line and mark else label
    return f"{place}: not YAML: {f'{context}: ' if context else ''}{problem}".replace("\n", " ")
