"""What a block keeps for its backward pass, what it computes again, and what exists only while it does.

Inside a class that is cut along turns nothing is kept: what enters it is, and one shard at a time is computed again.
So it is with attention's inside in the selective mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

from partita.cost.attention import scores
from partita.cost.division import Division, Split
from partita.cost.saved import Saved, saved_tensors
from partita.graph.cuts import CutClass
from partita.graph.model import Graph, Op


@dataclass(frozen=True)
class Kept:
    """Bytes on one device. ``shared_bytes``: those of ``saved_bytes`` that don't grow with the samples;
    ``again_bytes``: the largest part that is computed again, there for its gradients alone."""

    saved_bytes: float
    shared_bytes: float
    again_bytes: float
    unknown: frozenset[str]


def kept(
    graph: Graph, ops: tuple[Op, ...], chosen: Sequence[CutClass], division: Division, part: Split,
    item: Callable[[str], int], attentions: Sequence[frozenset[str]] = (),
) -> Kept:  # fmt: skip
    """What a block's ops keep; ``chosen`` are the classes that the division cuts, ``attentions`` the ops of each
    attention that is computed again."""
    cut_of = {cut.name: cut for cut in division.classes}
    sharded = [found for found in chosen if cut_of[found.name].shards > 1]
    outside = [op for op in ops if not any(op.name in found.ops for found in sharded)]

    def size(name: str) -> float:
        tensor = graph.tensor[name]
        return tensor.elements * item(tensor.dtype) * part.rest(name)

    def score_bytes(op: Op) -> float:
        share = part.use(op.inputs[0])
        return scores(graph, op).kept_bytes(item(graph.tensor[op.inputs[0]].dtype)) * share

    beside = score_bytes if division.attention == "unfused" else None
    computed_again = frozenset[str]().union(*attentions)

    def made_bytes(saved: Saved, made: set[str]) -> float:
        return fsum([*sorted(size(name) for name in saved.tensors & made), *saved.extra_bytes.values()])

    def attention_bytes(names: frozenset[str]) -> float:
        inside = [op for op in ops if op.name in names]
        saved = saved_tensors(graph, inside, part.rest, beside, item)
        return made_bytes(saved, {name for op in inside for name in op.outputs})

    rest = saved_tensors(graph, outside, part.rest, beside, item, computed_again)
    names, unknown = set(rest.tensors), set(rest.unknown)
    again = [attention_bytes(one) for one in attentions if not any(one & found.ops for found in sharded)]
    for found in sharded:
        inside = [op for op in ops if op.name in found.ops]
        made = {name for op in inside for name in op.outputs if name in found.dims}
        all_of_it = saved_tensors(graph, inside, part.rest, beside, item, computed_again)
        names |= all_of_it.tensors - made
        unknown |= all_of_it.unknown
        shard = made_bytes(all_of_it, made)
        shard += max((attention_bytes(one) for one in attentions if one & found.ops), default=0.0)
        again.append(shard / cut_of[found.name].shards)
    shared = [size(name) for name in sorted(names - graph.sampled)]
    shared += [rest.extra_bytes[op.name] for op in outside if op.name in rest.extra_bytes and _is_shared(graph, op)]
    return Kept(
        fsum([*sorted(size(name) for name in names), *rest.extra_bytes.values()]), fsum(shared),
        max(again, default=0.0), frozenset(unknown),
    )  # fmt: skip


def _is_shared(graph: Graph, op: Op) -> bool:
    return graph.sampled.isdisjoint(op.outputs)
