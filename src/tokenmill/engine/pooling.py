"""States of a prompt's tokens to one embedding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class Pool:
    """Adds up states in order of position, in float64: how a prompt was cut into chunks cannot be seen.

    An embedding has unit length, so the sum serves as the mean, and as the state itself where there is one.
    """

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.float64] | None = None

    def add(self, states: torch.Tensor) -> None:
        """`states` is [positions, hidden], float32, the positions that follow those before."""
        for state in states.double().numpy():
            self._sum = state.copy() if self._sum is None else self._sum + state

    def embedding(self) -> bytes:
        """[hidden], little-endian float32, of unit length; all zero where the states add up to zero."""
        if self._sum is None:
            raise RuntimeError("no state was added")
        length = float(np.linalg.norm(self._sum))
        return (self._sum / (length or 1.0)).astype("<f4").tobytes()
