"""Bytes of the model's state: parameters, gradients and what the optimizer keeps.

Mixed precision (bf16, fp16): 2 bytes a parameter, 2 a gradient, and with Adam 12 for the float32 master copy and two
moments: 16 in all. (DeepSpeed's bf16 engine may accumulate gradients in float32, 2 bytes more; not counted here.)
fp32: 4 + 4 + 8 = 16. ZeRO (Rajbhandari et al., 2020) divides over dp: stage 1 the optimizer's part, 2 the gradients
too, 3 the parameters too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from partita.cost.precision import compute_dtype
from partita.errors import InputError, nearest
from partita.graph.model import ITEM_BYTES

MOMENTS = {"adam": 2, "sgd": 0}


@dataclass(frozen=True)
class StateBytes:
    """Bytes on one device for each element of a parameter (or for many, scaled)."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def state_bytes(precision: str, optimizer: str, zero: int, dp: int, elements: int = 1) -> StateBytes:
    """State of that many elements on one of dp devices."""
    if optimizer not in MOMENTS:
        raise InputError(f'there is no optimizer "{optimizer}".{nearest(optimizer, MOMENTS)}')
    item = ITEM_BYTES[compute_dtype(precision)]
    wide = max(4, item)
    kept = MOMENTS[optimizer] * wide + (wide if item < 4 else 0)

    def share(stage: int) -> float:
        return ceil(elements / dp) if zero >= stage else elements

    return StateBytes(share(3) * item, share(2) * item, share(1) * kept)
