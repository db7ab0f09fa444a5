"""The generator's own counter of requests in flight, kept as a step function so that it can be integrated."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt


class InFlight:
    """Counts sent requests that have not ended; remembers every change with its instant."""

    def __init__(self, start_ns: int) -> None:
        self.value = 0
        self.peak = 0
        self._at_ns = array("q", [start_ns])
        self._steps = array("b", [0])

    def enter(self, at_ns: int) -> None:
        """A request goes out."""
        self._change(at_ns, 1)

    def leave(self, at_ns: int) -> None:
        """A request has ended, in whatever way; its end may be noticed, and told here, a little later than it was."""
        self._change(at_ns, -1)

    def _change(self, at_ns: int, step: int) -> None:
        self.value += step
        self.peak = max(self.peak, self.value)
        self._at_ns.append(at_ns)
        self._steps.append(step)

    def mean(self, start_ns: int, end_ns: int) -> float | None:
        """Time average over [start, end); None when the interval is empty."""
        if end_ns <= start_ns:
            return None
        area = self._area(np.array([start_ns, end_ns], dtype=np.int64))
        return float((area[1] - area[0]) / (end_ns - start_ns))

    def bins(self, start_ns: int, end_ns: int, bin_ns: int) -> list[float]:
        """Time averages over consecutive whole bins from `start_ns` on."""
        edges = np.arange(start_ns, end_ns + 1, bin_ns, dtype=np.int64)
        return [round(float(mean), 6) for mean in np.diff(self._area(edges)) / bin_ns]

    def _area(self, until_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Integral of the counter from its start to each instant."""
        at = np.asarray(self._at_ns, dtype=np.int64)
        order = np.argsort(at, kind="stable")
        at, values = at[order], np.cumsum(np.asarray(self._steps, dtype=np.float64)[order])
        area = np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(at))))
        step = np.clip(np.searchsorted(at, until_ns, side="right") - 1, 0, None)
        result: npt.NDArray[np.float64] = area[step] + values[step] * np.maximum(until_ns - at[step], 0)
        return result
