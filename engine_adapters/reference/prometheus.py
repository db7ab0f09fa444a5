"""The Prometheus text format, and the histograms behind it; no dependency, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

Labels = Mapping[str, str]
Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Histogram:
    """How many observations fell under each of `bounds` (inclusive, ascending), and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last one is beyond all bounds
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


def family(name: str, kind: Kind, text: str, samples: Iterable[tuple[Labels, float]]) -> str:
    """A counter or a gauge: one sample for each set of labels."""
    return _head(name, kind, text) + "".join(_sample(name, labels, value) for labels, value in samples)


def histogram(name: str, text: str, series: Iterable[tuple[Labels, Histogram]]) -> str:
    """A histogram for each set of labels: cumulative buckets by `le`, then count and sum."""
    return _head(name, "histogram", text) + "".join(_series(name, labels, each) for labels, each in series)


def _series(name: str, labels: Labels, values: Histogram) -> str:
    lines, seen = [], 0
    for bound, count in zip([*map(str, map(float, values.bounds)), "+Inf"], list(values.counts), strict=True):
        seen += count
        lines.append(_sample(name + "_bucket", {**labels, "le": bound}, seen))
    lines += [_sample(name + "_count", labels, seen), _sample(name + "_sum", labels, values.sum)]
    return "".join(lines)


def _head(name: str, kind: Kind, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{labels[key].translate(_ESCAPES)}"' for key in sorted(labels))
    return f"{name}{{{pairs}}} {float(value)}\n" if pairs else f"{name} {float(value)}\n"
