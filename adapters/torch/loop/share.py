"""Moving batches, results and their gradients between the ranks of one copy of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from partita.adapters.torch.loop.batch import Given, Shape


@dataclass(frozen=True)
class Move:
    """One tensor from a rank to a rank: what it is called on both, and how it looks."""

    name: tuple[Any, ...]
    source: int
    target: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def move(
    moves: Iterable[Move],
    held: Mapping[tuple[Any, ...], Tensor],
    rank: int,
    group: dist.ProcessGroup,
    device: torch.device,
) -> dict[tuple[Any, ...], Tensor]:
    """Carry out the moves that concern this rank, all at once; what arrived (or was here already) by name."""
    found: dict[tuple[Any, ...], Tensor] = {}
    operations = []
    for one in moves:
        if one.source == one.target == rank:
            found[one.name] = held[one.name]
        elif one.source == rank:
            operations.append(dist.P2POp(dist.isend, held[one.name].detach().contiguous(), one.target, group))
        elif one.target == rank:
            found[one.name] = torch.empty(one.shape, dtype=one.dtype, device=device)
            operations.append(dist.P2POp(dist.irecv, found[one.name], one.source, group))
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    return found


def share_shapes(mine: object, group: dist.ProcessGroup | None, device: torch.device) -> list[Any]:
    """What every rank of the copy tells of its call, in order of ranks.

    One exchange of two numbers where all tell the same, which is the rule.
    """
    if group is None:
        return [mine]
    digest = int.from_bytes(hashlib.blake2b(repr(mine).encode(), digest_size=7).digest(), "big")
    ends = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    size = dist.get_world_size(group)
    if ends[0] == -ends[1]:
        return [mine] * size
    everyones: list[Any] = [None] * size
    dist.all_gather_object(everyones, mine, group=group)
    return everyones


def batch_moves(shapes: Sequence[tuple[int, Shape]], wanted: Mapping[int, set[str]]) -> list[Move]:
    """Every batch to the ranks that need it: ``shapes`` are (owner's rank, shape) of each batch, ``wanted`` are the
    arguments that each rank reads."""
    return [
        Move((batch, name), owner, target, shape, dtype)
        for batch, (owner, given) in enumerate(shapes)
        for name, shape, dtype in given.tensors
        for target, names in wanted.items()
        if name in names
    ]


def own(batches: Sequence[Given], first: int) -> dict[tuple[Any, ...], Tensor]:
    """This rank's batches under the names of their moves; its first batch is number ``first`` of the copy."""
    return {(first + index, name): value for index, one in enumerate(batches) for name, value in one.tensors.items()}
