"""The manners that ship with Partita, and those of all plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from partita.cost.alike import Alike
from partita.cost.precision import item_bytes
from partita.errors import InputError
from partita.graph.model import Block
from partita.hooks import plugins
from partita.plan import Axis, Cut
from partita.planner.joint.manner import Manner
from partita.problem import Problem

# Sequences of so many tokens on are divided over devices throughout.
LONG = 8192
CONTEXTS = (2, 4, 8)
SHARDS = (2, 4)
# Co-shard is offered where what one block makes of one sample takes so much of a device's memory.
WORKING = 1 / 32
SHARDED = frozenset(("heads", "hidden"))


def offered(problem: Problem, groups: Alike) -> tuple[Manner, ...]:
    """What all plugins offer; InputError where two manners have one name."""
    found: dict[str, Manner] = {}
    for manners in plugins().hook.partita_strategies(problem=problem, groups=groups):
        for manner in manners:
            if manner.name in found:
                raise InputError(f'two plugins offer a manner "{manner.name}"; uninstall one of them')
            found[manner.name] = manner
    return tuple(found.values())


def built_in(problem: Problem, groups: Alike) -> Iterator[Manner]:
    """The manners of core."""
    yield from _of_sequence(problem)
    yield from _of_experts(problem, groups)
    yield from _of_turns(problem, groups)


def _of_sequence(problem: Problem) -> Iterator[Manner]:
    """Tokens along tensor (Korthikanti et al., 2022), along an axis of their own, along both.

    With tokens along tensor less is kept and norms take less time, for one more collective backward: offered for all
    models with a sequence. Context parallelism gathers keys and values in every block: offered where sequences are long
    or it is held.
    """
    seq = problem.graph.seq
    if seq is None:
        return
    held = problem.fix.get("cp")
    contexts = (held,) if isinstance(held, int) and held > 1 else CONTEXTS if seq >= LONG and held is None else ()
    if held in (None, 1):
        yield Manner("sequence", sequence=("tensor",), fits=lambda dp, tp: tp > 1 and seq % tp == 0)
    for size in contexts:
        yield from _contexts(seq, size)


def _contexts(seq: int, size: int) -> Iterator[Manner]:
    axes = (Axis("context", size, "space"),)

    def alone(dp: int, tp: int) -> bool:
        return seq % size == 0

    def both(dp: int, tp: int) -> bool:
        return tp > 1 and seq % (size * tp) == 0

    yield Manner(f"context {size}", axes=axes, sequence=("context",), fits=alone)
    yield Manner(f"context {size}, sequence", axes=axes, sequence=("context", "tensor"), fits=both)


def _of_experts(problem: Problem, groups: Alike) -> Iterator[Manner]:
    """Samples and experts along an axis of their own (Lepikhin et al., 2021), without tensor parallelism beside it."""
    sizes = {cut.size for classes in groups.classes.values() for cut in classes if cut.name == "experts"}
    held = problem.fix.get("ep")
    for count in range(2, min(sizes, default=1) + 1):
        if all(size % count == 0 for size in sizes) and held in (None, count):
            yield Manner(
                f"experts {count}", _experts_apart, (Axis("expert", count, "space"),), batch=("expert",),
                fits=lambda dp, tp: tp == 1,
            )  # fmt: skip


def _experts_apart(block: Block, classes: Sequence[str]) -> list[Cut]:
    return [Cut("experts", ("expert",))] if "experts" in classes else []


def _of_turns(problem: Problem, groups: Alike) -> Iterator[Manner]:
    """Co-shard (SuperScaler, section 5), where what a block takes while it is computed binds memory.

    Measured by the devices' own memory and not by a limit: the least limit that suffices has the same manners.
    """
    graph, item = problem.graph, item_bytes(problem.graph, problem.precision)
    largest = 0.0
    for kind, classes in groups.classes.items():
        if any(cut.name in SHARDED for cut in classes):
            made = (graph.tensor[name] for op in graph.block_ops[graph.blocks[kind].name] for name in op.outputs)
            size = sum(tensor.elements * item(tensor.dtype) for tensor in made if tensor.gradient)
            largest = max(largest, size / graph.samples)
    if largest < WORKING * problem.cluster.weakest().memory_bytes:
        return
    for count in SHARDS:
        axis = Axis(f"shard{count}", count, "turns")
        yield Manner(f"co-shard {count}", _in_turns(axis.name), (axis,), each=True)


def _in_turns(axis: str) -> Callable[[Block, Sequence[str]], list[Cut] | None]:
    def cuts(block: Block, classes: Sequence[str]) -> list[Cut] | None:
        if SHARDED.isdisjoint(classes):
            return None
        return [Cut(name, ("tensor", axis) if name in SHARDED else ("tensor",)) for name in classes]

    return cuts
