"""Lower bounds of a candidate's step time and memory, cheap enough to order all candidates by."""

from __future__ import annotations

from partita.cost.state import state_bytes
from partita.planner.candidates import Candidate
from partita.planner.numbers import Numbers

# Bounds are computed in another order than the formula: their last digits may differ.
SAFETY = 1 - 1e-12


class Bounds:
    """Bounds of one problem's candidates; totals that candidates share are computed once."""

    def __init__(self, numbers: Numbers):
        self.numbers = numbers
        self._totals: dict[int, tuple[float, ...]] = {}
        self._moved: dict[tuple[object, ...], float] = {}
        self._memory: dict[tuple[object, ...], tuple[float, float, float]] = {}

    def seconds(self, candidate: Candidate) -> float:
        """No cuts of this candidate take less: the sum, and an even share or the largest block as the slowest stage."""
        pp, numbers = candidate.pp, self.numbers
        seconds = numbers.seconds(candidate)
        if id(seconds) not in self._totals:
            f, b = seconds.forward, seconds.backward
            self._totals[id(seconds)] = tuple(map(float, (f.sum(), b.sum(), f.max(), b.max(), (f + b).max())))
        f_sum, b_sum, f_max, b_max, p_max = self._totals[id(seconds)]
        total = f_sum + b_sum + self._transfers(candidate)
        if candidate.schedule == "gpipe":
            slowest = max(f_max, f_sum / pp) + max(b_max, b_sum / pp)
        else:
            cycle = total / pp if candidate.micro_batches > pp else 0.0
            slowest = max(p_max, (f_sum + b_sum) / pp, cycle)
        sync = numbers.least_sync(candidate)
        return (total + (candidate.micro_batches - 1) * slowest + sync) * SAFETY

    def _transfers(self, candidate: Candidate) -> float:
        """The least Σo: each boundary at the cut where least crosses."""
        if candidate.pp == 1:
            return 0.0
        key = (candidate.micro, self.numbers.placement(candidate).boundary_crosses)
        if key not in self._moved:
            forward, backward = self.numbers.transfers(candidate)
            self._moved[key] = float((forward + backward)[:, 1:-1].min(axis=1).sum())
        return self._moved[key]

    def memory(self, candidate: Candidate) -> float:
        """No cuts of this candidate have a heaviest stage with less: an even share of everything, or one block."""
        numbers, c = self.numbers, candidate
        framework = float(numbers.device.framework_bytes)
        key = (c.tp, c.dp, c.zero, c.recompute, c.micro)
        if key not in self._memory:
            # What a block borrows from an earlier one may be in its own stage: it isn't counted here.
            per = state_bytes(numbers.problem.precision, numbers.problem.optimizer, 0, 1)
            lent = numbers.borrowed(c.tp).diagonal(1) * (per.parameters + per.gradients)
            own = numbers.state_segments(c).diagonal(1) - framework - lent
            held = numbers.held(c)
            heaviest = float((own + held + numbers.temporary(c)).max())
            # Sharding rounds up block by block; a stage rounds once.
            self._memory[key] = (heaviest, float(own.sum()) - 16.0 * len(own), float(held.sum()))
        heaviest, own_sum, held_sum = self._memory[key]
        in_flight = c.micro_batches if c.schedule == "gpipe" else 1
        return (framework + max(heaviest, (own_sum + in_flight * held_sum) / c.pp)) * SAFETY
