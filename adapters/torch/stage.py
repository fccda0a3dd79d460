"""A stage as an ``nn.Module``: its local parameters, and its piece's code over them.

Each block is a submodule (ZeRO-3 gathers a block's parameters when it runs) that owns its parameters under their names
in the model, with "/" for ".": ``dense_name`` gives those back. An adapter can realise ops by modules of its own
(Megatron's layers): it then creates the parameters of those ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from partita.adapters.torch.execute import Call, Context, compiled, is_random, loss_arguments
from partita.adapters.torch.offload import in_host_memory
from partita.adapters.torch.put_off import PutOff
from partita.adapters.torch.turns import units
from partita.adapters.torch.wires import Group, ProcessGroup
from partita.adapters.torch.zero import Divided, Division
from partita.errors import ModelError
from partita.graph import Graph
from partita.spacetime.program import LocalOp, Piece, Segment, Shard

# The forms of ops that an adapter's modules can stand for.
REALISED = ("column", "row", "vocabulary")

# Given an op and its local parameters: a module that stands for it, or None.
Realise = Callable[[LocalOp, "Parameters"], "Realised | None"]


@dataclass(frozen=True)
class Parameters:
    """The local parameters that an op reads: dense name to local shape. ``made`` are all that the stage has already,
    ``shared`` those that more than one op of the model reads.
    """

    shapes: Mapping[str, tuple[int, ...]]
    made: Mapping[str, nn.Parameter]
    shared: Set[str]
    dtype: torch.dtype
    device: torch.device
    group: dist.ProcessGroup


@dataclass(frozen=True)
class Realised:
    """A module that stands for an op: it is given the op's inputs, in their order, but for the parameters that it has.

    ``owns`` maps its parameters' names to dense names, which end in them; ``flipped`` are stored transposed.
    """

    module: nn.Module
    owns: Mapping[str, str]
    flipped: frozenset[str] = frozenset()


class Code:
    """What a stage runs for micro-batches of one shape: its piece, and the constants that this reads.

    A stage's parameters serve any number of codes: other lengths and sample counts, evaluation.
    """

    def __init__(self, graph: Graph, piece: Piece, buffers: Mapping[str, Tensor], device: torch.device):
        self.piece = piece
        self.loss = graph.loss.tensor if graph.loss else None
        # Of a model without a loss, what it returns.
        self.returned = frozenset() if graph.loss else frozenset(graph.outputs).intersection(piece.outputs)
        self.input_shapes = {name: graph.tensor[name].shape for name in piece.batch}
        self.input_dtypes = {name: graph.tensor[name].dtype for name in piece.batch}
        self.differentiable = {name for name in piece.inputs if graph.tensor[name].gradient}
        self.buffers = {name: buffers[name].to(device) for name in piece.buffers}
        # For each op of each segment, what runs it and the values that nothing reads after it.
        self.ops = {segment.block: _with_last_reads(segment, units(segment, device)) for segment in piece.segments}
        self.calls = {local.op.name: compiled(local, device) for local in piece.constants}
        self.fixed = self._fixed(Context(device))

    def _fixed(self, context: Context) -> dict[str, Tensor]:
        """The constants that no batch changes (positions, masks), of those that are read: computed once, and kept.

        Their ops leave ``calls``.
        """
        values, varying = dict(self.buffers), set(self.piece.batch)
        wanted = {*self.piece.outputs, *(name for segment in self.piece.segments for name in segment.inputs)}
        with torch.no_grad():
            for local in self.piece.constants:
                op = local.op
                if is_random(local) or varying.intersection(op.inputs):
                    varying.update(op.outputs)
                    wanted.update(op.inputs)
                else:
                    results = self.calls.pop(op.name)([values[name] for name in op.inputs], context)
                    values.update(zip(op.outputs, results, strict=True))
        return {name: value for name, value in values.items() if name in wanted}


class BlockModule(nn.Module):
    """One block of a stage: parameters, and modules in the place of ops."""

    def __init__(self, block: str, flipped: set[str], division: Division | None):
        super().__init__()
        self.block, self.division = block, division
        # Dense names of parameters that are stored transposed; one set for the whole stage.
        self.flipped = flipped
        self.read: dict[str, nn.Parameter] = {}
        # By what the op is and which parameters it reads, which is the same in every code; and the parameters it has.
        self.realised: dict[tuple[str, ...], tuple[nn.Module, frozenset[str]]] = {}

    def place(self, path: str, item: nn.Module | nn.Parameter) -> None:
        """Register a parameter, or a module that holds some, under its dotted path in the model.

        Directly, with "/" for ".": ZeRO-3 gathers what a module itself owns when the module runs.
        """
        name = path.replace(".", "/")
        if isinstance(item, nn.Parameter):
            self.register_parameter(name, item)
        else:
            self.add_module(name, item)

    def place_of(self, local: LocalOp) -> tuple[str, ...]:
        """Under what an op's module stands in ``realised``."""
        reads = (name for name in local.op.inputs if name in self.read)
        return (local.op.kind, *reads, *(map(str, loss_arguments(local)) if local.op.kind == "cross_entropy" else ()))

    def forward(
        self,
        ops: Sequence[tuple[LocalOp, Call, tuple[str, ...]]],
        outputs: Sequence[str],
        inputs: dict[str, Tensor],
        context: Context,
        again: bool = False,
        beneath: saved_tensors_hooks | None = None,
    ) -> dict[str, Tensor]:
        """The segment's outputs by name, from its inputs and the block's parameters.

        A value goes as soon as no op reads it any more: only what autograd saved outlives the block. ``again``: the
        backward pass computes all of it again. ``beneath``: where what autograd saves goes.
        """
        values: dict[str, Tensor] = self.read | inputs
        saving: AbstractContextManager[object] = beneath or nullcontext()
        if self.division is not None:
            wholes = self.division.read(self.read)
            values |= wholes
            # Hooks of our own would keep checkpoint's from what is saved.
            saving = saving if again else self.division.forgotten(wholes, beneath)
        with saving:
            return self._run(values, ops, outputs, context)

    def _run(
        self, values: dict[str, Tensor], ops: Sequence[tuple[LocalOp, Call, tuple[str, ...]]], outputs: Sequence[str],
        context: Context,
    ) -> dict[str, Tensor]:  # fmt: skip
        for local, call, over in ops:
            op = local.op
            realised = self.realised.get(self.place_of(local)) if local.form in REALISED else None
            if realised is None:
                results = call([values[name] for name in op.inputs], context)
            else:
                module, owned = realised
                results = [module(*(values[name] for name in op.inputs if name not in owned))]
            values.update(zip(op.outputs, results, strict=True))
            for name in over:
                values.pop(name, None)
        return {name: values[name] for name in outputs}


def _with_last_reads(
    segment: Segment, ops: Sequence[tuple[LocalOp, Call]]
) -> list[tuple[LocalOp, Call, tuple[str, ...]]]:
    """Each op of a segment with what runs it and the values that nothing reads after it."""
    kept, found = set(segment.outputs), []
    for local, call in reversed(ops):
        over = tuple(name for name in dict.fromkeys((*local.op.inputs, *local.op.outputs)) if name not in kept)
        kept.update(over)
        found.append((local, call, over))
    return found[::-1]


class StageModule(nn.Module):
    """All of a stage. ``forward(batch, inputs, key)`` gives the outputs of its code by name.

    ``finish`` is called with each block when its parameters exist, before the next block is made. ``parameters`` are
    those that the device has already, because another stage of its reads them too. ``division`` has those whose state
    is divided over data-parallel copies.
    """

    def __init__(
        self,
        graph: Graph,
        piece: Piece,
        *,
        buffers: Mapping[str, Tensor],
        device: torch.device,
        groups: Mapping[str, Group] | None = None,
        coordinates: Mapping[str, int] | None = None,
        parameters: Mapping[str, nn.Parameter] | None = None,
        division: Division | None = None,
        realise: Realise | None = None,
        finish: Callable[[BlockModule], None] | None = None,
    ):
        super().__init__()
        self.piece = piece
        self.flipped: set[str] = set()
        self.division = division
        self.context = Context(device, groups or {}, coordinates or {})
        # What its backward turns put off: a list while a forward turn of a schedule with weight turns runs.
        self.put_off: PutOff | None = None
        self.parameters_by_name: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in (parameters or {}).items() if name in piece.parameters
        }
        self.code = Code(graph, piece, buffers, device)
        readers = Counter(name for op in graph.ops for name in set(op.inputs))
        self.shared = {name for name in piece.parameters if readers[name] > 1}
        for segment in piece.segments:
            block = self._block(graph, segment, realise)
            # Weights are filled in (and with ZeRO-3 partitioned again) block by block: no more than one is ever whole.
            if finish is not None:
                finish(block)
            self.add_module(segment.block.replace(".", "/"), block)

    def _block(self, graph: Graph, segment: Segment, realise: Realise | None) -> BlockModule:
        block = BlockModule(segment.block, self.flipped, self.division)
        for local in segment.ops:
            names = [n for n in local.op.inputs if n in self.piece.parameters]
            shapes = {n: local_parameter_shape(graph.tensor[n].shape, self.piece.parameters[n]) for n in names}
            found = None
            group = self.context.groups.get("tensor")
            if realise and isinstance(group, ProcessGroup) and local.form in REALISED:
                dtype = getattr(torch, graph.tensor[names[0]].dtype) if names else torch.get_default_dtype()
                parameters = Parameters(
                    shapes, self.parameters_by_name, self.shared, dtype, self.context.device, group.process_group
                )
                found = realise(local, parameters)
                if found is not None:
                    self._adopt(graph, block, local, found)
            for name in names:
                self._read(graph, block, name, shapes[name])
            if found is not None:
                block.realised[block.place_of(local)] = (found.module, frozenset(found.owns.values()))
        return block

    def _read(self, graph: Graph, block: BlockModule, name: str, shape: tuple[int, ...]) -> None:
        if name in block.read:
            return
        parameter = self.parameters_by_name.get(name)
        if parameter is None:
            tensor = graph.tensor[name]
            empty = torch.empty(shape, dtype=getattr(torch, tensor.dtype), device=self.context.device)
            parameter = nn.Parameter(empty, requires_grad=tensor.gradient)
            self._own(name, parameter)
        block.place(name, parameter)
        block.read[name] = parameter

    def _adopt(self, graph: Graph, block: BlockModule, local: LocalOp, found: Realised) -> None:
        self.flipped |= found.flipped
        inside = dict(found.module.named_parameters())
        for inner, name in found.owns.items():
            self._own(name, inside[inner].requires_grad_(graph.tensor[name].gradient))
            block.read[name] = inside[inner]
        # Where its parameters get the names that they have in the model; without any, a name that no model uses.
        path = next((name.removesuffix(f".{inner}") for inner, name in found.owns.items()), f"op {local.op.name}")
        block.place(path, found.module)

    def _own(self, name: str, parameter: nn.Parameter) -> None:
        """Keep a new parameter, marked as a piece or whole: so Megatron and DeepSpeed count it once in a norm."""
        shard = self.piece.parameters[name]
        parameter.tensor_model_parallel = shard is not None  # type: ignore[attr-defined]
        if shard is not None:
            dim = 1 - shard.dim if name in self.flipped else shard.dim
            parameter.partition_dim = dim  # type: ignore[attr-defined]
            parameter.partition_stride = shard.parts  # type: ignore[attr-defined]
        self.parameters_by_name[name] = parameter

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that this stage's optimizer updates, by dense name: not the copies of another stage's."""
        return {
            name: parameter
            for name, parameter in self.parameters_by_name.items()
            if parameter.requires_grad and name not in self.piece.copies
        }

    @property
    def updated(self) -> dict[str, nn.Parameter]:
        """What this stage's optimizer updates, by dense name: a parameter, or the device's flat chunk of it."""
        return {
            name: divided.chunk if (divided := self.divided(name)) else parameter
            for name, parameter in self.trained.items()
        }

    def divided(self, name: str) -> Divided | None:
        """How the state of a parameter is divided over data-parallel copies; None where it isn't."""
        return None if self.division is None else self.division.divided.get(name)

    def counts(self, name: str) -> bool:
        """Whether this device is the one that counts the parameter in a norm over all of them: each part once."""
        shard = self.piece.parameters[name]
        return not any(place for axis, place in self.context.coordinates.items() if not shard or axis != shard.axis)

    @property
    def blocks(self) -> list[BlockModule]:
        return [module for module in self.children() if isinstance(module, BlockModule)]

    def another(self, graph: Graph, piece: Piece, buffers: Mapping[str, Tensor]) -> Code:
        """The code of the same stage for another shape. ModelError where the model reads other parameters there."""
        odd = [name for name, shard in piece.parameters.items() if self.piece.parameters.get(name, "no") != shard]
        if odd or [s.block for s in piece.segments] != [block.block for block in self.blocks]:
            what = f'"{odd[0]}"' if odd else "other blocks"
            raise ModelError(
                f'for these inputs "{graph.name}" uses {what}, which is not so for those it was planned for'
            )
        return Code(graph, piece, buffers, self.context.device)

    def forward(
        self,
        batch: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
        key: tuple[int, ...],
        code: Code | None = None,
    ) -> dict[str, Tensor]:
        """Outputs of the piece by name, from a micro-batch's inputs and the values that came from other stages."""
        code = code or self.code
        context = replace(self.context, key=key, put_off=self.put_off)
        values = self.constants(batch, context, code, code.piece.constants)
        values.update(inputs)
        for block, segment in zip(self.blocks, code.piece.segments, strict=True):
            # No more than it reads: a block that is computed again holds on to its inputs until then.
            read = {name: values[name] for name in segment.inputs}
            arguments = (code.ops[segment.block], segment.outputs, read, context)
            if segment.recompute and torch.is_grad_enabled():
                values.update(checkpoint(block, *arguments, True, use_reentrant=False, preserve_rng_state=False))
            else:
                values.update(block(*arguments, beneath=in_host_memory() if segment.offload else None))
        return {name: values[name] for name in code.piece.outputs}

    def constants(
        self, batch: Mapping[str, Tensor], context: Context, code: Code, ops: tuple[LocalOp, ...]
    ) -> dict[str, Tensor]:
        """What depends on the batch alone."""
        values = {name: batch[name] for name in code.piece.batch}
        values.update(code.fixed)
        with torch.no_grad():
            for local in ops:
                if call := code.calls.get(local.op.name):
                    results = call([values[name] for name in local.op.inputs], context)
                    values.update(zip(local.op.outputs, results, strict=True))
        return values


def local_parameter_shape(shape: tuple[int, ...], shard: Shard | None) -> tuple[int, ...]:
    """The shape of one rank's part of a parameter, padding included."""
    if shard is None:
        return shape
    return (*shape[: shard.dim], shard.padded // shard.pieces, *shape[shard.dim + 1 :])


def dense_name(name: str) -> str:
    """The model's name of a stage module's parameter: without the block, with dots again."""
    return name.split(".", 1)[1].replace("/", ".")
