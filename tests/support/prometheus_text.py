"""A second reading of the Prometheus text format, independent of what writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    """One metric: its type, and each sample by name and labels."""

    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def labels(self, name: str) -> set[frozenset[str]]:
        """The sets of label names under which `name` occurs."""
        return {frozenset(key for key, _ in labels) for found, labels in self.samples if found == name}


def parse(text: str) -> dict[str, Family]:
    """Families by name; raises AssertionError for text that a scraper would refuse."""
    families: dict[str, Family] = {}
    current = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in families, f"{current} twice"
            families[current] = Family(kind)
        elif not line.startswith("# HELP "):
            name, labels, value = sample(line)
            assert belongs(name, current, families[current].kind), f"{name} among {current}"
            key = (name, labels)
            assert key not in families[current].samples, f"{line} twice"
            families[current].samples[key] = value
    for name, each in families.items():
        if each.kind == "histogram":
            check_histogram(name, each)
    return families


def sample(line: str) -> tuple[str, Labels, float]:
    match = SAMPLE.fullmatch(line)
    assert match, line
    inner = match[2] or ""
    assert LABEL.sub("", inner) == "", line
    return match[1], frozenset(LABEL.findall(inner)), float(match[3])


def belongs(name: str, current: str, kind: str) -> bool:
    suffixes = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
    return name in [current + suffix for suffix in suffixes]


def check_histogram(name: str, each: Family) -> None:
    """Buckets rise, end in +Inf, and +Inf is the count."""
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (found, labels), value in each.samples.items():
        if found == name + "_bucket":
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    for labels, buckets in series.items():
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts), name
        assert max(buckets)[0] == float("inf"), name
        assert counts[-1] == each.samples[name + "_count", labels], name
        assert (name + "_sum", labels) in each.samples, name
