"""What a plan's ranks hold of a model: of each parameter the box or boxes that a device of a copy has.

From the model's graph and the plan alone, as lowering finds it; a copy's devices are numbered stage by stage, as
DeepSpeed's files are. Data-parallel copies hold the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from partita.adapters.checkpoint.catalogue import BUFFER, PARAMETER, Catalogue, Entry
from partita.adapters.torch.boxes import shard_boxes
from partita.adapters.torch.stage import local_parameter_shape
from partita.errors import InputError, PlanError, listed, nearest
from partita.graph import Graph
from partita.plan import Plan
from partita.redistribution.view import Box
from partita.spacetime.lower import require_blocks, stage_code
from partita.spacetime.program import Piece, Shard
from partita.spacetime.transform import transform


@dataclass(frozen=True)
class Part:
    """One device's part of a parameter: the dense ``shape``, how it is cut, which piece. ``copy``: another stage's.

    ``flipped``: stored with its two dims exchanged.
    """

    name: str
    shape: tuple[int, ...]
    shard: Shard | None
    piece: int
    copy: bool
    flipped: bool = False

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part, padding included, as the model keeps it."""
        return local_parameter_shape(self.shape, self.shard)

    @property
    def boxes(self) -> list[tuple[Box, Box]]:
        """Pairs of a box of the dense tensor and the same elements' box in the part."""
        return shard_boxes(self.shape, self.shard, self.piece)


@dataclass(frozen=True)
class Target:
    """A plan for a model; ``ranks`` are the devices of one copy, each with its parts by name."""

    plan: Plan
    graph: Graph
    ranks: tuple[Mapping[str, Part], ...]

    @property
    def words(self) -> str:
        """The plan in a few words."""
        stage = self.plan.stages[0]
        zero = listed(sorted({strategy.zero for stage in self.plan.stages for strategy in stage.strategies}))
        inner = " ".join(f"{axis.name}{axis.size}" for axis in stage.inner if axis.name != "tensor")
        return f"pp{len(self.plan.stages)} dp{stage.dp} tp{stage.tp}{' ' + inner if inner else ''} ZeRO {zero}"


def target(plan: Plan, graph: Graph | None) -> Target:
    """What the ranks of a plan hold of the model. PlanError where the plan isn't this model's."""
    assert graph is not None
    require_blocks(graph, plan)
    if len(widths := {stage.width for stage in plan.stages}) > 1:
        raise PlanError(
            f"stages on {sorted(widths)} devices a copy: their ranks have no common numbers; one width works"
        )
    pieces = transform(graph, [stage_code(stage) for stage in plan.stages])
    ranks = []
    for piece, stage in zip(pieces, plan.stages, strict=True):
        for place in range(stage.width):
            at, rest = {}, place
            for axis in reversed(stage.inner):
                rest, at[axis.name] = divmod(rest, axis.size)
            ranks.append(_parts(graph, piece, at))
    return Target(plan, graph, tuple(ranks))


def _parts(graph: Graph, piece: Piece, at: Mapping[str, int]) -> dict[str, Part]:
    return {
        name: Part(
            name, graph.tensor[name].shape, shard, 0 if shard is None else at[shard.axis], name in piece.copies
        )
        for name, shard in piece.parameters.items()
    }  # fmt: skip


def entry_of(catalogue: Catalogue, graph: Graph, name: str, state: str) -> Entry | None:
    """A parameter's tensor in a checkpoint, under its own name or another that the model or the checkpoint has."""
    aliases = [alias for alias, first in graph.aliases.items() if first == name]
    known = [one for alias, one in catalogue.aliases.items() if alias in (name, *aliases)]
    for candidate in (name, *aliases, *known):
        if (candidate, state) in catalogue.tensors:
            return catalogue.tensors[candidate, state]
    return None


def buffers_apart(catalogue: Catalogue, graph: Graph) -> Catalogue:
    """The checkpoint with what the model says is a buffer as such: a file of weights doesn't tell them from others."""
    names = {tensor.name for tensor in graph.tensors if tensor.role == "buffer"}
    tensors = {
        (name, BUFFER if state == PARAMETER and name in names else state): entry
        for (name, state), entry in catalogue.tensors.items()
    }
    return replace(catalogue, tensors=tensors)


def require_model(catalogue: Catalogue, graph: Graph) -> None:
    """InputError where the checkpoint isn't this model's: a parameter that lacks, has another shape, or is unknown."""
    names = dict.fromkeys(tensor.name for tensor in graph.tensors if tensor.role == "parameter")
    parameters = catalogue.parameters
    for name in names:
        entry = entry_of(catalogue, graph, name, PARAMETER)
        if entry is None:
            raise InputError(
                f'{catalogue.path}: is no checkpoint of "{graph.name}": that has a parameter "{name}", the checkpoint '
                f"none.{nearest(name, parameters) if len(parameters) < 10000 else ''}"
            )
        if entry.shape != graph.tensor[name].shape:
            raise InputError(
                f'{catalogue.path}: is no checkpoint of "{graph.name}": "{name}" is {list(entry.shape)} in it, '
                f"{list(graph.tensor[name].shape)} in the model"
            )
    known = {*names, *graph.aliases}
    if odd := [name for name in parameters if name not in known and catalogue.aliases.get(name) not in known]:
        raise InputError(
            f'{catalogue.path}: is no checkpoint of "{graph.name}": {len(odd)} of its parameters are not the model\'s, '
            f'"{odd[0]}" the first'
        )
