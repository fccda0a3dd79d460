"""What a stage may be and how a block may run in it: the choices that the joint search has, listed.

*Families* bound them. In one of alike counts every stage has N / S devices; in one of unlike counts a stage has any
whole number of units, the smallest that leave at most ``MOST_UNITS`` of them. A framework whose stages must all be of
one shape has a family for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from partita.cost.alike import Alike, tp_sizes
from partita.errors import divisors
from partita.graph.attention import insides
from partita.graph.model import Graph
from partita.plan import Recompute
from partita.planner.joint.manner import DIVIDED, PLAIN, Manner
from partita.problem import TARGETS, Problem

Form = Literal["tensor", "batch"]

# More ways to deal out devices than a search goes through in its time.
MOST_UNITS = 8
# Decisions about what divides a copy beside tp: sequence along tensor, context, experts.
INSIDE = ("sp", "cp", "ep")
# Where stages have unlike counts, tp stays inside a node, or under this where nodes are small: wider ones cross nodes.
LEAST_WIDE = 8


@dataclass(frozen=True)
class Shape:
    """How a stage uses its devices. ``mixed``: its blocks may differ in form, and the stage pays for both. ``manner``:
    that of its blocks; it may have more axes than data and tensor.

    ``recompute``: that of all blocks of a mixed stage. Choosing form and recomputation of every block at once takes
    longer than all else together, and buys next to nothing.
    """

    dp: int
    tp: int
    zero: int = 0
    mixed: bool = False
    recompute: Recompute | None = None
    manner: Manner = PLAIN

    @property
    def width(self) -> int:
        """The devices of a copy."""
        return self.manner.width(self.tp)

    @property
    def devices(self) -> int:
        return self.dp * self.width

    @property
    def port(self) -> tuple[int, int]:
        """What a transfer to or from a stage asks of it: its copies, and the devices of each."""
        return self.dp, self.width

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Its axes of space, major first."""
        other = ((axis.name, axis.size) for axis in self.manner.space)
        return ("data", self.dp), *other, ("tensor", self.tp)

    @property
    def forms(self) -> tuple[Form, ...]:
        return ("tensor", "batch") if self.mixed else ("tensor",)


@dataclass(frozen=True)
class Option:
    """How a block runs: what its backward pass computes again, and what the axis ``tensor`` cuts of it: its classes
    of dims, or its samples. ``manner``: one of its own, in a stage of plain ones."""

    recompute: Recompute = "none"
    form: Form = "tensor"
    manner: Manner | None = None

    def run(self, shape: Shape) -> Manner:
        """The manner of a block with the option in a stage of a shape."""
        return DIVIDED if self.form == "batch" else self.manner or shape.manner

    def goes(self, shape: Shape) -> bool:
        """Whether blocks of such a stage may have the option."""
        if self.manner is not None and (shape.mixed or shape.manner is not PLAIN):
            return False
        free = self.manner is None or self.manner.fits(shape.dp, shape.tp)
        return free and self.form in shape.forms and shape.recompute in (None, self.recompute)


@dataclass(frozen=True, eq=False)
class Family:
    """Shapes that stages choose among, on devices in units of ``unit``; all of ``options`` for each block.

    ``stages``: how many there are, where the counts are alike. ``tied``: the tp of all stages with blocks that share
    parameters with others, and the form of these blocks where a stage may choose; None: no blocks do.
    """

    unit: int
    units: int
    shapes: tuple[Shape, ...]
    options: tuple[Option, ...]
    stages: int | None = None
    tied: tuple[int, Form] | None = None

    @cached_property
    def ports(self) -> tuple[tuple[int, int], ...]:
        """All of shapes that a transfer between stages asks, (dp, width), each once."""
        return tuple(dict.fromkeys(shape.port for shape in self.shapes))

    @property
    def most_stages(self) -> int:
        return self.units if self.stages is None else self.stages


def selective_blocks(graph: Graph) -> np.ndarray:
    """[n]: whether a block's attention keeps its inside: as several ops. A fused kernel keeps nothing of it."""
    return np.array([any(len(inside) > 1 for inside in insides(graph, block.name)) for block in graph.blocks])


def families(
    problem: Problem, groups: Alike, devices: int, most_units: int = MOST_UNITS, manners: Sequence[Manner] = ()
) -> Iterator[Family]:
    """All families on that many devices that keep what ``problem.fix`` holds; ``manners``: those that are offered
    beside the plain one."""
    target, blocks, held = TARGETS[problem.target], len(problem.graph.blocks), problem.fix
    tps = tp_sizes(problem.graph, groups, devices)
    free = problem.target == "partita"
    counts = [count for count in divisors(devices) if count <= blocks and held.get("pp", count) == count]
    for stages in counts:
        zeros = target.zero_alone if stages == 1 else target.zero_in_pipeline
        shapes = _shapes(problem, devices // stages, tps, zeros, manners)
        if free and shapes:
            yield from _families(problem, devices // stages, stages, shapes, stages, manners)
        elif not free:
            yield from (_family(problem, devices // stages, stages, (shape,), stages, None, ()) for shape in shapes)
    unit = next(unit for unit in divisors(devices) if devices // unit <= most_units)
    units = devices // unit
    # While devices share cores, how fast each is depends on how many stages there are.
    if free and units > 1 and blocks > 1 and "pp" not in held and problem.cluster.slowdown(devices) == 1.0:
        tps = [tp for tp in tps if tp <= max(*problem.cluster.nodes, LEAST_WIDE)]
        widths = range(unit, devices + 1, unit)
        unlike = tuple(s for g in widths for s in _shapes(problem, g, tps, target.zero_in_pipeline, manners))
        if unlike:
            yield from _families(problem, unit, units, unlike, None, manners)


def _families(
    problem: Problem, unit: int, units: int, shapes: tuple[Shape, ...], stages: int | None, manners: Sequence[Manner]
) -> Iterator[Family]:
    """One family, or where blocks share parameters one for each tp of the stages that hold these and for each form:
    all must have the same parts of them."""
    if not problem.graph.shared_parameters:
        yield _family(problem, unit, units, shapes, stages, None, manners)
        return
    forms = {(shape.tp, form): None for shape in shapes for form in shape.forms}
    for tied in forms:
        yield _family(problem, unit, units, shapes, stages, tied, manners)


def _family(
    problem: Problem, unit: int, units: int, shapes: tuple[Shape, ...], stages: int | None,
    tied: tuple[int, Form] | None, manners: Sequence[Manner],
) -> Family:  # fmt: skip
    forms: tuple[Form, ...] = ("tensor", "batch") if any(shape.mixed for shape in shapes) else ("tensor",)
    recomputes = _recomputes(problem)
    options = tuple(Option(recompute, form) for form in forms for recompute in recomputes)
    plain = any(shape.manner is PLAIN for shape in shapes)
    own = [manner for manner in manners if manner.each and plain]
    options += tuple(Option(recompute, manner=manner) for manner in own for recompute in recomputes)
    return Family(unit, units, shapes, options, stages, tied)


def _recomputes(problem: Problem) -> list[Recompute]:
    selective = problem.target == "partita" and bool(selective_blocks(problem.graph).any())
    offered: tuple[Recompute, ...] = ("none", "selective", "full") if selective else ("none", "full")
    return [recompute for recompute in offered if problem.fix.get("recompute", recompute) == recompute]


def _shapes(
    problem: Problem, devices: int, tps: Sequence[int], zeros: Sequence[int], manners: Sequence[Manner]
) -> tuple[Shape, ...]:
    """The shapes of that many devices; with dp = 1 every ZeRO stage is the same, and one of them is listed. Where dp or
    tp is held it is that of every block: no stage is mixed."""
    batch, held, found = problem.global_batch, problem.fix, []
    recomputes = _recomputes(problem)
    mixed = problem.target == "partita" and held.keys().isdisjoint(("dp", "tp"))
    for manner in (PLAIN, *(manner for manner in manners if not manner.each)):
        if any(held.get(name, manner.held(name)) != manner.held(name) for name in INSIDE):
            continue
        for tp in (tp for tp in tps if held.get("tp", tp) == tp):
            dp, left = divmod(devices, manner.width(tp))
            if left or batch % (dp * manner.parts(tp)) or held.get("dp", dp) != dp or not manner.fits(dp, tp):
                continue
            chosen = zeros if dp > 1 else (0,)
            if "zero" in held:
                chosen = [zero for zero in zeros if zero == held["zero"]]
            for zero in chosen:
                found.append(Shape(dp, tp, zero, manner=manner))
                if mixed and manner is PLAIN and tp > 1 and batch % devices == 0:
                    found += [Shape(dp, tp, zero, True, recompute) for recompute in recomputes]
    return tuple(found)
