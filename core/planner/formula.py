"""The step time of a chain that is cut into stages, in the letters of UniAP (arXiv 2307.16375, section 3).

f_i, b_i are forward and backward seconds of stage i for one micro-batch, p_i = f_i + b_i; of_j, ob_j the transfers of
the boundary after stage j, o_j = of_j + ob_j; c micro-batches; S stages; w_i = S − i the micro-batches that 1F1B keeps
in flight behind stage i; s_i what stage i does once a step (gradients over dp, tied weights, the update).

    GPipe: Σf + Σb + Σo + (c − 1) · [max(f, of) + max(b, ob)] + max s
    1F1B:  Σp + Σo + (c − 1) · max(p, o, cycle) + max s,   cycle_i = (Σ_{k≥i} p_k + Σ_{j≥i} o_j) / w_i

GPipe's is exact where transfers overlap with computation. In 1F1B a micro-batch's round trip lets stage i take one
micro-batch every cycle_i; where c ≤ w_i no micro-batch waits for another's return and there is no such
term. The s_i are not overlapped with the last backward passes: an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np


@dataclass(frozen=True)
class ChainTable:
    """Numbers of one candidate: n blocks, S stages, seconds and bytes of one device for one micro-batch.

    ``forward``, ``backward``: [n]. ``transfer_forward``, ``transfer_backward``: [S − 1, n + 1], of the boundary after
    stage s when it lies before block j. ``sync``: [n + 1, n + 1], seconds once a step of a stage with blocks i…j−1.
    ``fixed_bytes`` (state, temporaries) and ``held_bytes`` (a micro-batch in flight): [n + 1, n + 1].
    """

    forward: np.ndarray
    backward: np.ndarray
    transfer_forward: np.ndarray
    transfer_backward: np.ndarray
    sync: np.ndarray
    fixed_bytes: np.ndarray
    held_bytes: np.ndarray
    memory_limit: float
    micro_batches: int
    stages: int
    schedule: str

    @property
    def blocks(self) -> int:
        return len(self.forward)

    @cached_property
    def held(self) -> tuple[int, ...]:
        """w: the micro-batches that each stage holds."""
        if self.schedule == "gpipe":
            return (self.micro_batches,) * self.stages
        return tuple(min(self.micro_batches, self.stages - stage) for stage in range(self.stages))

    @cached_property
    def cycle(self) -> tuple[float, ...]:
        """w of the cycle term by stage, infinite where the term doesn't exist."""
        if self.schedule == "gpipe":
            return (inf,) * self.stages
        return tuple(float(w) if self.micro_batches > w else inf for w in range(self.stages, 0, -1))

    def memory(self, stage: int) -> np.ndarray:
        """[n + 1, n + 1]: bytes on each device of the stage when it has blocks i…j−1."""
        return self.fixed_bytes + self.held[stage] * self.held_bytes


@dataclass(frozen=True)
class Terms:
    """The terms of the formula for one way to cut: the sum, the two maxima (1F1B has one) and the step's end."""

    total: float
    slowest: float
    slowest_backward: float
    sync: float

    def step_seconds(self, micro_batches: int) -> float:
        return self.total + (micro_batches - 1) * (self.slowest + self.slowest_backward) + self.sync


def segments(values: np.ndarray) -> np.ndarray:
    """[n + 1, n + 1]: sums of values[i:j]; infinite where j ≤ i (no stage is empty)."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    found = sums[None, :] - sums[:, None]
    found[np.tril_indices(len(sums))] = np.inf
    return found


def terms(table: ChainTable, bounds: Sequence[int]) -> Terms:
    """The formula's terms for stages [bounds[s], bounds[s + 1]).

    Sums are taken in the order of the search, so that both see the same floats to the last digit.
    """
    forward = np.concatenate(([0.0], np.cumsum(table.forward))).tolist()
    backward = np.concatenate(([0.0], np.cumsum(table.backward))).tolist()
    spans = list(zip(bounds[:-1], bounds[1:], strict=True))
    f = [forward[j] - forward[i] for i, j in spans]
    b = [backward[j] - backward[i] for i, j in spans]
    of = [float(table.transfer_forward[s, j]) for s, (_, j) in enumerate(spans[:-1])]
    ob = [float(table.transfer_backward[s, j]) for s, (_, j) in enumerate(spans[:-1])]
    p = [x + y for x, y in zip(f, b, strict=True)]
    o = [x + y for x, y in zip(of, ob, strict=True)]
    total = p[-1]
    cycles = [total / table.cycle[-1]]
    for stage in reversed(range(table.stages - 1)):
        total = p[stage] + (total + o[stage])
        cycles.append(total / table.cycle[stage])
    sync = max(float(table.sync[i, j]) for i, j in spans)
    if table.schedule == "gpipe":
        return Terms(total, max(f + of), max(b + ob), sync)
    return Terms(total, max(p + o + cycles), 0.0, sync)


def step_seconds(table: ChainTable, bounds: Sequence[int]) -> float:
    """Seconds of one training step."""
    return terms(table, bounds).step_seconds(table.micro_batches)
