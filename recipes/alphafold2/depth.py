"""A stack of any depth from one of three blocks: blocks are alike, and to export each of hundreds takes minutes.

In every pass the middle block of three is repeated; what stands between passes (embeddings, recycling) stays as it is.
The third one's ops say which tensor of a block plays which part: op for op they read and make what the middle one's do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from partita.graph import Graph, Op, Tensor, check
from partita.plugins.capture_torch.fold import owning_blocks

EXPORTED = 3
MIDDLE, LAST = 1, 2
_BLOCK = re.compile(r"(passes\.\d+\.evoformer\.)(\d+)(?=\.|$)")


def deepened(graph: Graph, blocks: int) -> Graph:
    """The graph of three Evoformer blocks a pass as one of ``blocks``, at least three."""
    assert blocks >= EXPORTED, f"{blocks} blocks"
    moved = _renamed(LAST, blocks - 1)
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    found: dict[str, Tensor] = {}
    ops: list[Op] = []
    last_inputs: dict[str, str] = {}
    for block in graph.blocks:
        own = graph.block_ops[block.name]
        number = _number(block.name)
        if number == MIDDLE:
            more, last_inputs = _copies(graph, block.name, blocks - EXPORTED, tensors, found)
            ops += [*own, *more]
        else:
            names = last_inputs if number == LAST else {}
            ops += [_op(op, moved, lambda name, names=names: names.get(name, moved(name))) for op in own]
    for tensor in graph.tensors:
        found.setdefault(moved(tensor.name), replace(tensor, name=moved(tensor.name)))
    aliases: dict[str, str] = {}
    for name, first in graph.aliases.items():
        aliases[moved(name)] = moved(first)
        if _number(name) == MIDDLE:
            copies = [_renamed(MIDDLE, other) for other in range(MIDDLE + 1, blocks - 1)]
            aliases.update((renamed(name), renamed(first)) for renamed in copies)
    return check(
        replace(
            graph, tensors=tuple(found.values()), ops=tuple(ops), blocks=tuple(owning_blocks(ops, found)),
            aliases=aliases,
        )
    )  # fmt: skip


def _copies(
    graph: Graph, block: str, count: int, tensors: Mapping[str, Tensor], found: dict[str, Tensor]
) -> tuple[list[Op], dict[str, str]]:
    """The ops of ``count`` more blocks after the middle one, and what the last block reads instead of its outputs.

    Their tensors are added to ``found``.
    """
    own, after = graph.block_ops[block], graph.block_ops[_renamed(MIDDLE, LAST)(block)]
    plays = {
        mine: theirs
        for one, other in zip(own, after, strict=True)
        for mine, theirs in zip(one.inputs, other.inputs, strict=True)
    }
    made = {name for op in own for name in op.outputs}
    # What the middle block reads of the one before it, and its own output that the last block reads in its place.
    entries = {name: output for name, output in plays.items() if output in made}
    before, ops = dict(zip(entries.values(), entries.values(), strict=True)), []
    for index in range(count):
        moved = _renamed(MIDDLE, MIDDLE + 1 + index)
        names = {name: before[output] for name, output in entries.items()}
        names.update((name, f"{name}.{index}") for name in made)

        def renamed(name: str, names: Mapping[str, str] = names, moved: Callable[[str], str] = moved) -> str:
            return names.get(name, moved(name))

        for op in own:
            ops.append(replace(_op(op, moved, renamed), name=f"{op.name}.{index}"))
            for name in (*op.inputs, *op.outputs):
                found.setdefault(renamed(name), replace(tensors[name], name=renamed(name)))
        before = {output: names[output] for output in entries.values()}
    return ops, before


def _op(op: Op, moved: Callable[[str], str], renamed: Callable[[str], str]) -> Op:
    return replace(
        op, inputs=tuple(renamed(name) for name in op.inputs), outputs=tuple(renamed(name) for name in op.outputs),
        block=moved(op.block), module=moved(op.module),
    )  # fmt: skip


def _renamed(number: int, other: int) -> Callable[[str], str]:
    """Gives a name in block ``number`` of a pass the place of block ``other``, and any other name back."""

    def rename(name: str) -> str:
        return _BLOCK.sub(lambda match: f"{match[1]}{other if int(match[2]) == number else match[2]}", name)

    return rename


def _number(name: str) -> int | None:
    match = _BLOCK.match(name)
    return int(match[2]) if match else None
