"""Counter-based random numbers: the position asked for gives the number, no state is kept.

So a seed gives the same text whatever else runs in the batch, and after any preemption.
"""

from __future__ import annotations

import hashlib
import struct


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in (0, 1) for one draw. `seed` is any 64-bit integer, `position` the output position."""
    packed = struct.pack("<QII", seed & (2**64 - 1), choice, position)
    digest = hashlib.blake2b(packed, digest_size=8, person=b"tokenmill-rng").digest()
    # 53 bits, moved off zero by half a step.
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53 + 2.0**-54
