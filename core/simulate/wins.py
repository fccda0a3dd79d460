"""Why one simulated plan is faster than another: the seconds that a device spends otherwise, on the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from partita.plan import Plan
from partita.planner.words import duration
from partita.simulate.result import Simulation

# Parts of the best step under which a difference isn't told.
TOLD = 0.005
WORDS = {"computing": "computing", "collectives": "in collectives", "waiting": "waiting"}


@dataclass(frozen=True)
class Contender:
    """A named plan with its simulation."""

    name: str
    plan: Plan
    simulation: Simulation

    @property
    def sample_seconds(self) -> float:
        """Seconds of a sample: plans of different batches can be compared by it."""
        return self.simulation.step_seconds / self.plan.global_batch

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the mean device's step; they add up to the step."""
        uses = list(self.simulation.use.values())
        return {
            "computing": fsum(use.compute_seconds for use in uses) / len(uses),
            "collectives": fsum(use.collective_seconds for use in uses) / len(uses),
            "waiting": fsum(use.waiting_seconds for use in uses) / len(uses),
        }

    @property
    def peak_bytes(self) -> int:
        """Of the device that holds most."""
        return max(peak.total for peak in self.simulation.peaks.values())

    @property
    def moved_bytes(self) -> float:
        """Of the device that sends most."""
        return max(use.moved_bytes for use in self.simulation.use.values())


def ranked(contenders: Sequence[Contender]) -> list[Contender]:
    """The fastest first; of equals the first."""
    return sorted(contenders, key=lambda contender: contender.sample_seconds)


def reasons(order: Sequence[Contender]) -> list[str]:
    """What each of the others does longer, or less long, than the first; for the batch of the first."""
    best = order[0]
    step, mine = best.simulation.step_seconds, best.parts
    found = []
    for other in order[1:]:
        scale = best.plan.global_batch / other.plan.global_batch
        theirs = other.parts
        differences = {name: theirs[name] * scale - mine[name] for name in mine}
        more = other.sample_seconds / best.sample_seconds - 1 if best.sample_seconds else 0.0
        told = [
            f"{duration(abs(value))} {'more' if value > 0 else 'less'} {WORDS[name]}"
            for name, value in sorted(differences.items(), key=lambda item: -abs(item[1]))
            if abs(value) >= TOLD * step
        ]
        if more < 1e-9:
            found.append(f"{other.name} is as fast as {best.name}.")
        else:
            found.append(
                f"{other.name} takes {more:.1%} more: {', '.join(told)}." if told
                else f"{other.name} takes {more:.1%} more, a little of everything."
            )  # fmt: skip
    return found
