"""How a step begins: every rank takes its micro-batches, and all agree that they can go on and what a token counts for.

A rank that raised alone would leave the others waiting in the queue for what it never sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from partita.adapters.torch.groups import Groups
from partita.adapters.torch.stage import Code, StageModule
from partita.adapters.torch.wires import Group
from partita.errors import InputError, PartitaError
from partita.graph import Loss
from partita.spacetime.program import LocalOp, Piece, Program

Batch = Mapping[str, Tensor]


class Beginning:
    """One rank's view of it. ``take`` is collective over all ranks: one sum of two numbers, once a step."""

    def __init__(self, program: Program, stages: Mapping[int, StageModule], groups: Groups, device: torch.device):
        self.program = program
        self.stages = stages
        self.group = groups.everyone
        self.device = device
        self.turns = program.share(groups.rank).turns
        loss = program.loss
        # Ranks that share a stage's pieces have the same labels: one of them counts.
        stage = program.loss_stage
        counts = stage in stages and program.place(groups.rank, stage).tensor == 0
        self.counted = stages[stage] if loss is not None and loss.weighting == "tokens" and counts else None
        self.loss_ops = loss_ops(self.counted.piece, loss) if self.counted is not None else ()

    def take(self, batches: Iterator[Batch]) -> tuple[list[dict[str, Tensor]], float]:
        """The step's micro-batches, and what the loss of each counts for in the loss of the global batch: one over all
        micro-batches, or over all tokens where losses are sums over tokens.

        InputError, the same one on every rank, when a batch doesn't fit or no label of the global batch counts.
        """
        program, micro, failure = self.program, [], None
        counted = torch.zeros((), dtype=torch.float64, device=self.device)
        try:
            micro = [self._micro_batch(batches, index) for index in range(self.turns)]
            if self.counted is not None:
                counted = count_targets(self.counted, self.counted.code, program.loss, self.loss_ops, micro)
        except Exception as error:  # a user's iterator may raise anything
            failure = error
        tokens = agree(self.group, failure, counted)
        loss = program.loss
        if loss is None or program.loss_stage is None:
            return micro, 0.0
        if loss.weighting == "samples":
            share = program.shares[program.loss_stage]
            return micro, 1.0 / (share.turns * share.dp)
        if loss.weighting == "sum":
            return micro, 1.0
        if tokens == 0:
            raise InputError(f"every label of the global batch is {loss.ignore_index}: no token to learn from")
        return micro, 1.0 / tokens

    def _micro_batch(self, batches: Iterator[Batch], index: int) -> dict[str, Tensor]:
        try:
            batch = next(batches)
        except StopIteration:
            raise InputError(
                f"the iterator ended after {index} micro-batches, the plan needs {self.turns} a step"
            ) from None
        found = {}
        needed = {name: stage.code for stage in self.stages.values() for name in stage.piece.batch}
        for name, code in needed.items():
            if name not in batch:
                raise InputError(f'the batch has no "{name}"; it has {", ".join(batch)}')
            shape, wanted = tuple(batch[name].shape), code.input_shapes[name]
            if shape != wanted:
                raise InputError(
                    f'micro-batch {index}: "{name}" has shape {list(shape)}, the plan was lowered for {list(wanted)}'
                )
            dtype, planned = str(batch[name].dtype).removeprefix("torch."), code.input_dtypes[name]
            if dtype != planned:
                raise InputError(
                    f'micro-batch {index}: "{name}" has dtype {dtype}, the plan was lowered for {planned}; '
                    f"give it as {planned}, or make the example that the plan is lowered with {dtype}"
                )
            found[name] = batch[name].to(self.device)
        return found


def agree(group: Group, failure: Exception | None, number: Tensor) -> float:
    """The sum of every rank's number, on every rank; collective over the group.

    Where a rank has a failure, InputError on every rank, the same one: that of the first rank that has one.
    """
    facts = torch.stack([torch.full_like(number, failure is not None, dtype=torch.float64), number.double()])
    group.sum(facts)
    failed, total = facts.tolist()
    if not failed:
        return float(total)
    mine = None
    if failure is not None:
        mine = str(failure) if isinstance(failure, PartitaError) else f"{type(failure).__name__}: {failure}"
    everyones: list[str | None] = group.objects(mine)
    rank, message = next((rank, text) for rank, text in enumerate(everyones) if text is not None)
    where = "" if all(text == message for text in everyones) else f"rank {rank}: "
    # The traceback of something that isn't ours says where in the user's code it happened.
    raise InputError(f"{where}{message}") from (failure.__cause__ if isinstance(failure, PartitaError) else failure)


def count_targets(
    stage: StageModule, code: Code, loss: Loss | None, ops: tuple[LocalOp, ...], micro: Sequence[Batch]
) -> Tensor:
    """How many targets of these micro-batches count."""
    assert loss is not None
    assert loss.targets is not None
    total = torch.zeros((), dtype=torch.float64, device=stage.context.device)
    for batch in micro:
        total += (stage.constants(batch, stage.context, code, ops)[loss.targets] != loss.ignore_index).sum()
    return total


def loss_ops(piece: Piece, loss: Loss | None) -> tuple[LocalOp, ...]:
    """The constant ops that the targets of the loss need."""
    if loss is None or loss.targets is None:
        return ()
    wanted, found = {loss.targets}, []
    for local in reversed(piece.constants):
        if wanted & set(local.op.outputs):
            found.append(local)
            wanted.update(local.op.inputs)
    return tuple(reversed(found))
