"""What a block keeps for its backward pass, what it computes again, and what exists only while it does.

Inside a class that is cut along turns nothing is kept: what enters it is, and one shard at a time is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

from partita.cost.attention import scores
from partita.cost.division import ClassCut, Division, Split
from partita.cost.kinds import ATTENTION
from partita.cost.saved import saved_tensors
from partita.graph.cuts import CutClass
from partita.graph.model import Graph, Op


@dataclass(frozen=True)
class Kept:
    """Bytes on one device. ``again_bytes``: the largest part that is computed again, there for its gradients alone."""

    saved_bytes: float
    again_bytes: float
    unknown: frozenset[str]


def kept(
    graph: Graph, ops: tuple[Op, ...], chosen: Sequence[CutClass], division: Division, part: Split,
    item: Callable[[str], int],
) -> Kept:  # fmt: skip
    """What a block's ops keep; ``chosen`` are the classes that the division cuts."""
    cut_of = {cut.name: cut for cut in division.classes}
    sharded = [found for found in chosen if cut_of[found.name].shards > 1]
    outside = [op for op in ops if not any(op.name in found.ops for found in sharded)]

    def size(name: str) -> float:
        tensor = graph.tensor[name]
        return tensor.elements * item(tensor.dtype) * part.rest(name)

    def score_bytes(op: Op) -> float:
        share = part.use(op.inputs[0])
        return scores(graph, op).kept_bytes(item(graph.tensor[op.inputs[0]].dtype)) * share

    beside = None
    if division.selective:
        beside = _nothing
    elif division.attention == "unfused":
        beside = score_bytes
    rest = saved_tensors(graph, outside, part.rest, beside, item)
    names, extra, unknown = set(rest.tensors), [*rest.extra_bytes.values()], set(rest.unknown)
    again = [0.0]
    for found in sharded:
        inside = [op for op in ops if op.name in found.ops]
        made = {name for op in inside for name in op.outputs if name in found.dims}
        all_of_it = saved_tensors(graph, inside, part.rest, beside, item)
        names |= all_of_it.tensors - made
        unknown |= all_of_it.unknown
        shard = fsum([*sorted(size(name) for name in all_of_it.tensors & made), *all_of_it.extra_bytes.values()])
        again.append(shard / cut_of[found.name].shards)
    if division.selective and division.attention == "unfused":
        again += [score_bytes(op) / _shards(op, chosen, cut_of) for op in ops if op.kind in ATTENTION]
    return Kept(fsum([*sorted(size(name) for name in names), *extra]), max(again), frozenset(unknown))


def _nothing(op: Op) -> float:
    return 0.0


def _shards(op: Op, chosen: Sequence[CutClass], cut_of: dict[str, ClassCut]) -> int:
    return next((cut_of[found.name].shards for found in chosen if op.name in found.ops), 1)
