"""Named random streams: one seed, one independent generator for each name, no global state."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def stream(seed: int, name: str, *keys: int | str) -> np.random.Generator:
    """The generator of the child stream `name` of `seed`.

    Philox is counter based: any two keys give independent streams. The 128-bit key is the BLAKE2b hash of seed, name
    and keys, so that a stream depends on nothing but them, and drawing from one leaves every other as it was.
    """
    text = "\x1f".join(str(part) for part in (seed, name, *keys))
    key = int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
