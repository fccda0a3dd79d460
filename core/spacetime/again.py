"""Selective recomputation: the ops of each attention of a block side by side, as one run that is computed again.

A graph's order has other ops between them, such as what makes a bias. They go before the run, or after it where they
depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from partita.errors import PlanError
from partita.graph.attention import between
from partita.spacetime.program import LocalOp, Region


def together(
    ops: Sequence[LocalOp], regions: Sequence[Region], attentions: Sequence[Collection[str]], block: str
) -> tuple[list[LocalOp], list[tuple[int, int]]]:
    """The ops in an order in which those of each attention follow each other, and where each begins and ends.

    Whatever lies on a way from one of them to another (collectives) is one of them. Ops stay in their region of turns.
    PlanError where some of an attention runs in turns and some doesn't.
    """
    found, groups = list(ops), []
    for names in attentions:
        inside = between([local.op for local in found], [i for i, o in enumerate(found) if o.op.name in names])
        start, stop = min(inside), max(inside) + 1
        for region in regions:
            turns = [place for place in inside if region.start <= place < region.stop]
            if turns and len(turns) < len(inside):
                odd = next(place for place in sorted(inside) if place not in turns)
                raise PlanError(
                    f'block "{block}" can\'t compute its attention again: op "{found[turns[0]].op.name}" runs in turns '
                    f'of "{region.axis}" and op "{found[odd].op.name}" doesn\'t; recompute=full and none work'
                )
            if not turns and start < region.stop and region.start < stop:
                raise PlanError(
                    f'block "{block}" can\'t compute its attention again: between its ops "{found[start].op.name}" and '
                    f'"{found[stop - 1].op.name}" others run in turns of "{region.axis}"; recompute=full and none work'
                )
        behind, before, after = set[str](), list[LocalOp](), list[LocalOp]()
        for place in range(start, stop):
            local = found[place]
            late = place not in inside and not behind.isdisjoint(local.op.inputs)
            if place in inside or late:
                behind.update(local.op.outputs)
            if place not in inside:
                (after if late else before).append(local)
        groups.append([found[place].op.name for place in sorted(inside)])
        found[start:stop] = [*before, *(found[place] for place in sorted(inside)), *after]
    return found, sorted(_run([local.op.name for local in found], names, block) for names in groups)


def _run(order: Sequence[str], names: Sequence[str], block: str) -> tuple[int, int]:
    """Where ops that follow each other begin and end. PlanError where another attention's ops came between them."""
    start = order.index(names[0])
    if list(order[start : start + len(names)]) != list(names):
        raise PlanError(
            f'block "{block}" can\'t compute its attention again: op "{names[0]}" is one of an attention that '
            "depends on parts of another; recompute=full and none work"
        )
    return start, start + len(names)
