"""The bundled engine as the server of a run: started, described, stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine_adapters.reference.calibrate import CalibrationError, Ceilings, combine, measure_ceilings
from engine_adapters.reference.config import reference_model_shape
from engine_adapters.reference.process import EngineProcess
from loadgen.bound_spec import Spec, spec_for_bundled
from loadgen.collectors.machine import memory_bytes


@dataclass
class Bundled:
    """A running engine of ours and what this machine can give it at most."""

    url: str
    model: str
    flags: str
    _ceilings: Ceilings | None = field(default=None)

    def bound_spec(self) -> Spec:
        """Measure the machine's ceilings (seconds, so never while load runs); the larger ones so far count."""
        shape = reference_model_shape(self.model)
        try:
            found = measure_ceilings(sum(shape["params"].values()) * shape["bytes_per_weight"])
            self._ceilings = combine(self._ceilings, found) if self._ceilings else found
        except CalibrationError:
            pass  # what was measured before, or "bound unknown", which the report says
        return spec_for_bundled(shape, self._ceilings, memory_bytes())


@contextmanager
def bundled_engine(model: str) -> Iterator[Bundled]:
    """Start the engine on a free port for the length of the block."""
    shape = reference_model_shape(model)
    with EngineProcess(model=model) as engine:
        flags = (
            f"max_num_seqs={shape['max_num_seqs']}, num_blocks={shape['num_blocks']}, block_size={shape['block_size']}"
        )
        yield Bundled(engine.url, model, flags)
