"""Stages that are all alike: one way to use the devices and one way to run blocks, as people write plans by hand.

The joint search chooses among far more. Here a way is given, and its table says what any cuts of it take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from partita.plan import Plan, Recompute, Search
from partita.planner.joint.build import build
from partita.planner.joint.manner import PLAIN
from partita.planner.joint.price import Pricing, Schedule
from partita.planner.joint.search import best
from partita.planner.joint.smallest import smallest
from partita.planner.joint.space import Family, Option, Shape
from partita.planner.joint.table import Chosen, JointTable


@dataclass(frozen=True, order=True)
class Uniform:
    """``pp`` stages of dp · tp devices each. ``micro`` is the samples of a copy's micro-batch, ``micro_batches`` their
    number c."""

    pp: int = 1
    tp: int = 1
    dp: int = 1
    zero: int = 0
    recompute: Recompute = "none"
    micro: int = 1
    micro_batches: int = 1

    @property
    def devices(self) -> int:
        return self.pp * self.tp * self.dp

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.micro * self.micro_batches * self.dp


class Way:
    """The table of a uniform way. Its batch and its devices are its own, all else is as ``pricing`` has it."""

    def __init__(self, pricing: Pricing, uniform: Uniform, schedule: Schedule = "1f1b"):
        self.uniform = uniform
        if (pricing.problem.global_batch, pricing.devices) != (uniform.batch, uniform.devices):
            pricing = pricing.on(replace(pricing.problem, global_batch=uniform.batch), uniform.devices)
        self.pricing = pricing
        shape, option = Shape(uniform.dp, uniform.tp, uniform.zero), Option(uniform.recompute)
        self.family = uniform_family(pricing, uniform.pp, shape, option)
        self.table: JointTable = pricing.table(self.family, uniform.micro_batches, schedule)

    def fastest(self) -> tuple[Chosen, ...] | None:
        """The stages with the least step time among those that fit; None where none do."""
        found = best(self.table)
        return None if found is None else found.stages

    def smallest(self) -> tuple[Chosen, ...]:
        """The stages whose heaviest device holds the least; there must be as many blocks as stages."""
        found = smallest(self.table)
        assert found is not None, "there are enough blocks"
        return found.stages

    def plan(self, chosen: Sequence[Chosen]) -> Plan:
        """The plan with these stages, and the formula's prediction. Nothing is said to be searched."""
        return build(self.pricing, self.family, self.table, chosen, Search("given", False, 0.0, 0))


def uniform_family(pricing: Pricing, stages: int, shape: Shape, option: Option) -> Family:
    """The family whose stages are all of one shape and whose blocks all run one way."""
    tied = (shape.tp, option.form) if pricing.problem.graph.shared_parameters else None
    return Family(shape.devices, stages, (shape,), (option,), stages, tied)


def uniform_families(pricing: Pricing) -> list[Family]:
    """All of these that the problem allows in which data, tensor and stages alone divide the model."""
    found = {
        (family.stages, shape, option): None
        for family in pricing.families if family.stages is not None
        for shape in family.shapes if not shape.mixed and shape.manner is PLAIN
        for option in family.options if option.form == "tensor" and option.manner is None
    }  # fmt: skip
    return [uniform_family(pricing, *each) for each in found]


def cut(bounds: Sequence[int]) -> tuple[Chosen, ...]:
    """The stages of a uniform way that are cut at ``bounds``: the first block of each, and the number of blocks."""
    return tuple(Chosen(i, j, unit, 0, (0,) * (j - i)) for unit, (i, j) in enumerate(pairwise(bounds)))
