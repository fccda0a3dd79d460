"""From a stage's axes and a block's strategy to the division that is priced, by the planner and by the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from partita.cost.division import AttentionKernel, ClassCut, Division
from partita.errors import PlanError
from partita.graph.cuts import CutClass
from partita.graph.flows import FLOWS
from partita.plan import Stage, Strategy


def division(
    stage: Stage, block: str, strategy: Strategy, classes: Sequence[CutClass], attention: AttentionKernel
) -> Division:
    """How the strategy divides the block among the stage's devices and turns.

    PlanError for dims that the block doesn't have, and for classes whose size the pieces don't divide.
    """
    size = {axis.name: axis.size for axis in stage.axes}
    turns = {axis.name for axis in stage.axes if axis.kind == "turns"}
    known = {cut.name: cut for cut in classes}
    if odd := [axis for cut in strategy.cuts for axis in cut.axes if axis not in size]:
        raise PlanError(f'block "{block}" is cut along "{odd[0]}"; its stage has {", ".join(size)}')
    flows: dict[str, tuple[str, ...]] = {"batch": (), "sequence": ()}
    found: list[ClassCut] = []
    for cut in strategy.cuts:
        if cut.dim in FLOWS:
            flows[cut.dim] = tuple(axis for axis in cut.axes if axis not in turns and axis != "data")
    for cut in strategy.cuts:
        space = [axis for axis in cut.axes if axis not in turns]
        pieces, shards = (prod(size[axis] for axis in axes) for axes in (space, set(cut.axes) & turns))
        if cut.dim in FLOWS or pieces * shards == 1:
            continue
        if cut.dim not in known:
            has = ", ".join(known) or "none"
            raise PlanError(f'block "{block}" has no dims "{cut.dim}" that could be cut; it has {has}')
        for same in classes:
            if same.name == cut.dim:
                same.require(pieces * shards, block, [axis for axis in size if axis in cut.axes and size[axis] > 1])
        axis = "tensor" if "tensor" in space or not space else space[0]
        found.append(ClassCut(cut.dim, pieces, shards, axis, joins=bool(set(space) & set(flows["batch"]))))
    return Division(
        tuple(found),
        sequence=prod(size[axis] for axis in flows["sequence"] if axis == "tensor"),
        context=prod(size[axis] for axis in flows["sequence"] if axis != "tensor"),
        context_axis=next((axis for axis in flows["sequence"] if axis != "tensor"), "context"),
        samples=prod(size[axis] for axis in flows["batch"]),
        selective=strategy.recompute == "selective",
        attention=attention,
    )


def whole_samples(found: Division) -> tuple[Division, int]:
    """The division with the samples whole, and into how many parts it divides them: a block of a part of the samples
    costs what a block of so many does. Not where what joins devices takes in all of their samples."""
    if found.samples == 1 or any(cut.joins for cut in found.classes):
        return found, 1
    return replace(found, samples=1), found.samples
