"""What must cross between stages in a step, from the pieces and the model alone; and what of that a device does.

Each value goes once, for each micro-batch, from the stage that makes it to each stage that reads it; its gradient goes
once the other way where one flows; a copy of a parameter sends its gradient and gets the new value. Stages of one
device hand it on without a transfer. Between stages whose turns take unlike samples it goes in parts. The queues are
held against this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.model import ITEM_BYTES
from partita.spacetime.communication import Meshes
from partita.spacetime.program import Program, Transfer


@dataclass(frozen=True)
class Traffic:
    """One stage's transfers. ``arriving`` and ``leaving`` are of values for each micro-batch, ``back_in`` and
    ``back_out`` of gradients, ``parameters`` of shared ones at the end of the step."""

    arriving: frozenset[Transfer]
    leaving: frozenset[Transfer]
    back_in: frozenset[Transfer]
    back_out: frozenset[Transfer]
    parameters: frozenset[Transfer]

    @cached_property
    def gradients(self) -> frozenset[Transfer]:
        return self.back_in | self.back_out

    @cached_property
    def each_micro_batch(self) -> frozenset[Transfer]:
        return self.arriving | self.leaving | self.gradients

    def of_device(self, device: int, stage: int, meshes: Meshes) -> dict[tuple[str, Transfer, int | None], bool]:
        """What a device of the stage sends and receives: (kind, transfer, peer); whether for each micro-batch.

        Of what goes in parts it is the join; which parts it needs is ``prove_parts``' to say.
        """
        found: dict[tuple[str, Transfer, int | None], bool] = {}
        for edge in self.each_micro_batch:
            if edge.parts:
                found |= {("join", edge, None): True} if edge.target == stage else {}
                continue
            if edge.target == stage:
                source = meshes.source(device, stage, edge.source)
                found |= {("receive", edge, source): True} if source != device else {}
            if edge.source == stage:
                peers = meshes.readers(device, stage, edge.target)
                found |= {("send", edge, peer): True for peer in peers if peer != device}
        for edge in self.parameters:
            readers, senders = meshes.shared(edge)
            if edge.source == stage:
                found |= {("send", edge, peer): False for peer in readers.get(device, ())}
            if edge.target == stage:
                found |= {("receive", edge, peer): False for peer in senders.get(device, ())}
        return found


def traffic(graphs: Sequence[Graph], program: Program) -> list[Traffic]:
    """What each stage sends and receives. ``graphs`` are by stage; a shape is the maker's."""
    pieces = program.pieces
    maker = {name: piece.stage for piece in pieces for s in piece.segments for o in s.ops for name in o.op.outputs}
    values, gradients = [], []
    for piece in pieces:
        for name in piece.inputs:
            source, target = maker[name], piece.stage
            tensor, parts = graphs[source].tensor[name], program.shares[source] != program.shares[target]
            size = (tensor.shape, tensor.dtype, tensor.bytes, tensor.gradient, parts)
            values.append(Transfer(name, "value", source, target, *size))
            if tensor.gradient:
                gradients.append(Transfer(name, "gradient", target, source, *size))
    parameters = _parameters(graphs[0], program)
    return [
        Traffic(
            frozenset(edge for edge in values if edge.target == stage),
            frozenset(edge for edge in values if edge.source == stage),
            frozenset(edge for edge in gradients if edge.target == stage),
            frozenset(edge for edge in gradients if edge.source == stage),
            frozenset(edge for edge in parameters if stage in (edge.source, edge.target)),
        )
        for stage in range(len(pieces))
    ]


def _parameters(graph: Graph, program: Program) -> list[Transfer]:
    """Both ways for each copy. A frozen parameter never changes: none."""
    found = []
    for name, (owner, *copies) in program.shared.items():
        tensor = graph.tensor[name]
        if not tensor.gradient:
            continue
        shape, shard, whole = tensor.shape, program.pieces[owner].parameters[name], tensor.bytes
        if shard is not None:
            local = shard.padded // shard.pieces
            shape = (*shape[: shard.dim], local, *shape[shard.dim + 1 :])
            whole = tensor.elements // tensor.shape[shard.dim] * local * ITEM_BYTES[tensor.dtype]
        for copy in copies:
            found.append(Transfer(name, "parameter_gradient", copy, owner, shape, tensor.dtype, whole))
            found.append(Transfer(name, "parameter", owner, copy, shape, tensor.dtype, whole))
    return found


def odd_transfer(found: Transfer, wanted: frozenset[Transfer], where: str) -> PlanError:
    """Why a transfer is none of those that are wanted."""
    ends = (found.tensor, found.what, found.source, found.target)
    for edge in wanted:
        if (edge.tensor, edge.what, edge.source, edge.target) == ends:
            return PlanError(
                f"{where}: the {said(found)} is {list(found.shape)} {found.dtype}, {found.bytes} bytes; the model has "
                f"{list(edge.shape)} {edge.dtype}, {edge.bytes} bytes"
            )
    return PlanError(f"{where}: no stage needs the {said(found)}")


def said(edge: Transfer) -> str:
    """A transfer in a message."""
    what = {"parameter_gradient": "gradient of the parameter", "gradient": "gradient of"}.get(edge.what, edge.what)
    return f'{what} "{edge.tensor}" from stage {edge.source} to stage {edge.target}'
