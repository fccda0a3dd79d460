"""How the work of one block is divided: what a strategy and the axes of its stage come to for one device.

Along an axis of *space* a device has one of the pieces; along an axis of *turns* (co-shard, SuperScaler section 3.4) it
has them all, one after another, keeps none of what is inside them and computes it again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from partita.graph.cuts import CutClass
from partita.graph.flows import flow_tags
from partita.graph.model import Graph

# fused: scores exist in registers alone (flash attention). unfused: four kernels, whose results lie in memory.
AttentionKernel = Literal["fused", "unfused"]


@dataclass(frozen=True)
class ClassCut:
    """One class of dims: in ``pieces`` along the space axis ``axis``, each in ``shards`` along turns.

    ``joins``: the same devices divide the samples outside the class (experts), so that what enters and leaves it goes
    from all to all.
    """

    name: str
    pieces: int
    shards: int = 1
    axis: str = "tensor"
    joins: bool = False


@dataclass(frozen=True)
class Division:
    """One block on one device.

    ``sequence``: pieces of the sequence in which the devices of the tensor axis hold what no class cuts (Korthikanti et
    al., 2022, section 4.2.2). ``context``: pieces of the sequence of the whole block, for which attention gathers keys
    and values along ``context_axis`` (priced as one axis, where there are several). ``samples``: pieces of a copy's
    samples. ``selective``: attention's inside is computed again in the backward pass (the same paper, section 5).
    """

    classes: tuple[ClassCut, ...] = ()
    sequence: int = 1
    context: int = 1
    context_axis: str = "context"
    samples: int = 1
    selective: bool = False
    attention: AttentionKernel = "fused"


# The inputs and values that have the sequence, and their dims that do, each with its equal parts (``graph.flows``).
Along = Mapping[str, Mapping[int, int]]


def along_sequence(graph: Graph) -> Along:
    """What ``sequence`` and ``context`` divide."""
    found: dict[str, dict[int, int]] = {}
    for (name, dim), parts in flow_tags(graph, ("sequence",))["sequence"].items():
        if graph.tensor[name].role in ("value", "input"):
            found.setdefault(name, {})[dim] = parts
    return found


def tensor_division(classes: Sequence[CutClass], tp: int) -> Division:
    """All of a block's classes in tp pieces: what the planner chooses among."""
    names = dict.fromkeys(cut.name for cut in classes) if tp > 1 else {}
    return Division(tuple(ClassCut(name, tp) for name in names))


@dataclass(frozen=True)
class Split:
    """The parts of tensors that one device has: of parameters, of values at rest, of values while ops work on them."""

    parameter: Callable[[str], float]
    rest: Callable[[str], float]
    use: Callable[[str], float]


def split_fraction(classes: Sequence[CutClass], pieces: Mapping[str, int]) -> Callable[[str], float]:
    """The part of a tensor that one device holds when classes are cut into that many pieces; padding rounds up."""
    found: dict[str, float] = {}
    for cut in classes:
        if (count := pieces.get(cut.name, 1)) > 1:
            fraction = ceil(cut.size / count) / cut.size if cut.pads else 1 / count
            found.update(dict.fromkeys(cut.dims, fraction))
    return lambda name: found.get(name, 1.0)


def split(graph: Graph, classes: Sequence[CutClass], division: Division, along: Along) -> Split:
    """The parts that a division gives one device; ``along`` are the values that have the sequence."""
    pieces = {cut.name: cut.pieces for cut in division.classes}
    of_class = split_fraction(classes, pieces)
    # Devices that join hold all samples of their own experts: as much as of their own samples for all experts.
    value_class = split_fraction(classes, {cut.name: cut.pieces for cut in division.classes if not cut.joins})
    inside = {name for cut in classes if pieces.get(cut.name, 1) > 1 for name in cut.dims}

    def use(name: str) -> float:
        found = value_class(name) / division.samples
        return found / division.context if name in along else found

    def rest(name: str) -> float:
        return use(name) / division.sequence if name in along and name not in inside else use(name)

    return Split(of_class, rest, use)
