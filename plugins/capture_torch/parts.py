"""What runs outside of layers, divided so that no branch of a model depends on another through a block of both.

A run of ops falls into *pieces*: ops that are connected through values made in the run itself, not through parameters
or what was there before. Two pieces stay one part where they feed the same layers and one is fed by all that feeds the
other (a T5 encoder's last norm and its decoder's embedding): no layer depends on more for it. Pieces of two towers are
two parts. A part without parameters joins the part whose values it reads; where it joins branches, the one that reads
it, if all other readers depend on that; or else it stays a part of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from partita.graph import Op

# The ops of a run, and the path of the layer (or of the root's child) that they are; "" for what is outside of layers.
Run = tuple[str, list[Op]]


@dataclass(eq=False)
class Part:
    """Ops that become one block. ``run`` counts the runs; ``feeds`` says whether a layer depends on them; one that
    ``joins`` has no block of its own if another part can take it. ``above`` are the parts that it depends on."""

    ops: list[Op]
    run: int
    path: str = ""
    feeds: bool = True
    joins: bool = False
    above: set[Part] = field(default_factory=set)


def pieces(ops: Sequence[Op]) -> list[list[Op]]:
    """The ops by what they are connected with through values of their own, in the order of their first ops."""
    number: dict[str, int] = {}
    found: dict[int, list[int]] = {}
    for index, op in enumerate(ops):
        mine = {number[name] for name in op.inputs if name in number}
        first = min(mine, default=index)
        members = sorted(one for other in mine for one in found.pop(other))
        found[first] = [*members, index]
        number.update((name, first) for one in found[first] for name in ops[one].outputs)
    return [[ops[one] for one in found[first]] for first in sorted(found)]


def divided(runs: Sequence[Run]) -> list[list[Part]]:
    """For each run its parts: a layer is one, what is outside of layers is divided."""
    above, below = _layers_above(runs), _layers_below(runs)
    found: list[list[Part]] = []
    for number, (path, ops) in enumerate(runs):
        if path:
            found.append([Part(ops, number, path)])
            continue
        groups: list[tuple[set[str], set[str], list[Op]]] = []
        for piece in pieces(ops):
            fed = {path for op in piece for name in op.inputs for path in above.get(name, ())}
            feeds = {path for op in piece for name in op.outputs for path in below.get(name, ())}
            for other_fed, other_feeds, members in groups:
                if feeds == other_feeds and (fed <= other_fed or fed >= other_fed):
                    members += piece
                    other_fed |= fed
                    break
            else:
                groups.append((fed, feeds, piece))
        found.append([Part(members, number, feeds=bool(feeds)) for _, feeds, members in groups])
    return found


def placed(parts: Iterable[Part]) -> list[Part]:
    """The parts that become blocks, in an order in which each reads what earlier ones make; the others are in them.

    A part joins the one of its makers that depends on all others, or the one of its readers that all others depend on:
    so nothing depends on more than before.
    """
    maker: dict[str, Part] = {}
    layers: dict[str, Part] = {}
    found: list[Part] = []
    for part in parts:
        makers = {maker[name]: None for op in part.ops for name in op.inputs if name in maker}
        # A layer that runs again is one part with its first run.
        home = layers.setdefault(part.path, part) if part.path else part
        if part.joins:
            home = next((one for one in makers if one.above >= makers.keys() - {one}), part)
        if home is part:
            found.append(part)
        else:
            home.ops += part.ops
        for one in makers.keys() - {home}:
            home.above |= {one, *one.above}
        maker.update((name, home) for op in part.ops for name in op.outputs)
    for part in [part for part in reversed(found) if part.joins]:
        made = {name for op in part.ops for name in op.outputs}
        readers = [
            other for other in found if other is not part and any(not made.isdisjoint(op.inputs) for op in other.ops)
        ]
        reader = next(
            (one for one in readers if all(one in other.above for other in readers if other is not one)), None
        )
        if reader is not None:
            reader.ops += part.ops
            found.remove(part)
    return found


def _layers_above(runs: Iterable[Run]) -> Mapping[str, set[str]]:
    """The layers that each value depends on."""
    found: dict[str, set[str]] = {}
    for path, ops in runs:
        for op in ops:
            mine = {path} if path else set()
            mine.update(*(found[name] for name in op.inputs if name in found))
            found.update((name, mine) for name in op.outputs)
    return found


def _layers_below(runs: Sequence[Run]) -> Mapping[str, set[str]]:
    """The layers that depend on each value."""
    found: dict[str, set[str]] = {}
    for path, ops in reversed(runs):
        for op in reversed(ops):
            mine = {path} if path else set()
            mine.update(*(found[name] for name in op.outputs if name in found))
            for name in op.inputs:
                found.setdefault(name, set()).update(mine)
    return found
