"""The captured model: tensors, ops and blocks.

A graph is a list of ops in execution order. It carries shapes for a known number of ``samples`` (and, for sequence
models, of tokens ``seq``), so that time and memory scale by ``samples``. It never holds weights. Where it comes from
(a configuration file or ``torch.export``) doesn't matter to anything that follows: both give the same blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

from pydantic import ConfigDict

from partita.errors import ModelError

ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "complex64": 8,
}  # fmt: skip

Role = Literal["input", "parameter", "buffer", "value"]


@dataclass(frozen=True)
class Tensor:
    """One tensor.

    ``role``: *input* (from the batch), *parameter*, *buffer* (constant of the model), *value* (an op's output).
    ``gradient`` says whether a gradient flows through it: a trained parameter, or a value that depends on one and on
    which the loss depends (of a graph without a loss, its outputs).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = "value"
    gradient: bool = True

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Op:
    """One operator.

    ``kind`` selects its signature, cost and execution; ``module`` is the path of the module that called it.
    ``attributes`` holds what isn't a tensor, JSON values only. An op that can be executed has ``target`` (the
    operator's full name), ``args`` and ``kwargs``, in which ``{"tensor": i}`` stands for input ``i``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    block: str
    module: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """The planner's unit: the ops between two clean cuts. ``parameters`` are those that no earlier block uses."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Loss:
    """How the losses of micro-batches add up to the loss of the global batch.

    ``tokens``: the mean over elements of ``targets`` that are not ``ignore_index`` (cross entropy);
    ``samples``: the mean over samples; ``sum``: a sum over tokens that is divided by a number in the batch (the tokens
    of the global batch, say).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    tensor: str
    weighting: Literal["tokens", "samples", "sum"] = "samples"
    targets: str | None = None
    ignore_index: int = -100


@dataclass(frozen=True)
class Graph:
    """A model with ``samples`` samples: every op once, in execution order, each in one block."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    samples: int
    seq: int | None
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    blocks: tuple[Block, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loss: Loss | None = None
    aliases: dict[str, str] = field(default_factory=dict)
    version: Literal[1] = 1

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """The op that makes each value."""
        return {output: op for op in self.ops for output in op.outputs}

    @cached_property
    def block_ops(self) -> Mapping[str, tuple[Op, ...]]:
        """Ops of each block, in execution order."""
        found: dict[str, list[Op]] = {block.name: [] for block in self.blocks}
        for op in self.ops:
            found[op.block].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def reached(self) -> frozenset[str]:
        """Parameters and the values made from them; all other tensors are known from the batch and the buffers."""
        found = {tensor.name for tensor in self.tensors if tensor.role == "parameter"}
        for op in self.ops:
            if not found.isdisjoint(op.inputs):
                found.update(op.outputs)
        return frozenset(found)

    @cached_property
    def sampled(self) -> frozenset[str]:
        """Inputs and the values made from them, which differ from sample to sample, and what is laid out once for each
        sample (learned queries, say). All samples share the rest, which is as large whatever their number."""
        found = {tensor.name for tensor in self.tensors if tensor.role == "input"}
        for op in self.ops:
            if not found.isdisjoint(op.inputs) or self._for_each_sample(op):
                found.update(op.outputs)
        return frozenset(found)

    def _for_each_sample(self, op: Op) -> bool:
        """Whether an op repeats what it reads for each sample. Of one sample no shape can tell: there the kind does."""
        if op.kind not in ("expand", "repeat") or not op.inputs:
            return False
        read, made = self.tensor[op.inputs[0]].shape, self.tensor[op.outputs[0]].shape
        return made[:1] == (self.samples,) and (len(read) < len(made) or read[:1] == (1,))

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """For each tensor that an op reads the blocks that do, in order."""
        found: dict[str, dict[str, None]] = {}
        for op in self.ops:
            for name in op.inputs:
                found.setdefault(name, {})[op.block] = None
        return {name: tuple(blocks) for name, blocks in found.items()}

    @cached_property
    def parameter_users(self) -> Mapping[str, tuple[str, ...]]:
        """For each parameter the blocks that use it, in order: the first one owns it."""
        return {name: blocks for name, blocks in self.readers.items() if self.tensor[name].role == "parameter"}

    @cached_property
    def shared_parameters(self) -> dict[str, tuple[str, ...]]:
        """Parameters used by more than one block (tied weights)."""
        return {name: users for name, users in self.parameter_users.items() if len(users) > 1}

    @property
    def parameter_count(self) -> int:
        return sum(tensor.elements for tensor in self.tensors if tensor.role == "parameter")

    def block_parameter_count(self, block: str) -> int:
        (found,) = (b for b in self.blocks if b.name == block)
        return sum(self.tensor[name].elements for name in found.parameters)


def check(graph: Graph) -> Graph:
    """The graph itself, if it hangs together; otherwise a ModelError that names the op and the tensor.

    Checked: unique names, values made before they are used, each parameter owned by exactly one block, blocks in
    one run of ops each, known dtypes, sizes not negative.
    """
    where = f'graph "{graph.name}"'
    known = _tensors(graph, where)
    ready = {tensor.name for tensor in graph.tensors if tensor.role != "value"}
    blocks = [block.name for block in graph.blocks]
    if twice := _twice(blocks):
        raise ModelError(f'{where}: block "{twice}" occurs twice in {blocks}')
    if twice := _twice([op.name for op in graph.ops]):
        raise ModelError(f'{where}: op "{twice}" occurs twice')
    place = {block: index for index, block in enumerate(blocks)}
    current = 0
    for op in graph.ops:
        if op.block not in place:
            raise ModelError(f'op "{op.name}" is in block "{op.block}", which is not among {blocks}')
        if place[op.block] < current:
            raise ModelError(f'op "{op.name}" of block "{op.block}" comes after ops of block "{blocks[current]}"')
        current = place[op.block]
        for name in op.inputs:
            if name not in known:
                raise ModelError(f'op "{op.name}" reads "{name}", which is no tensor of {where}')
            if name not in ready:
                raise ModelError(f'op "{op.name}" reads "{name}" before any op made it')
        for name in op.outputs:
            if name not in known or name in ready:
                raise ModelError(f'op "{op.name}" makes "{name}", which is unknown or was made before')
        ready.update(op.outputs)
    _ends(graph, where, known, ready)
    return graph


def _twice(names: list[str]) -> str | None:
    """The first name that occurs a second time."""
    met: set[str] = set()
    return next((name for name in names if name in met or met.add(name)), None)  # type: ignore[func-returns-value]


def _tensors(graph: Graph, where: str) -> set[str]:
    """Names of all tensors; ModelError where one occurs twice or can't exist."""
    if twice := _twice([tensor.name for tensor in graph.tensors]):
        raise ModelError(f'{where}: tensor "{twice}" is defined twice')
    for tensor in graph.tensors:
        if tensor.dtype not in ITEM_BYTES:
            raise ModelError(f'tensor "{tensor.name}" has dtype "{tensor.dtype}"; known: {", ".join(ITEM_BYTES)}')
        if any(size < 0 for size in tensor.shape):
            raise ModelError(f'tensor "{tensor.name}" has a negative size: {list(tensor.shape)}')
    return {tensor.name for tensor in graph.tensors}


def _ends(graph: Graph, where: str, known: set[str], ready: set[str]) -> None:
    """ModelError where values, owners of parameters, inputs, outputs, loss or aliases don't fit the ops."""
    if missing := sorted(known - ready):
        raise ModelError(f'{where}: no op makes the tensor "{missing[0]}"')
    owned = [name for block in graph.blocks for name in block.parameters]
    parameters = [tensor.name for tensor in graph.tensors if tensor.role == "parameter"]
    if sorted(owned) != sorted(parameters):
        odd = sorted(set(owned) ^ set(parameters)) or sorted({name for name in owned if owned.count(name) > 1})
        raise ModelError(f"each parameter must belong to one block; these don't: {', '.join(odd)}")
    loss = [name for name in (graph.loss.tensor, graph.loss.targets) if name] if graph.loss else []
    for name in (*graph.inputs, *graph.outputs, *loss):
        if name not in ready:
            raise ModelError(f'"{name}" is an input, output or loss of {where}, but no op makes it')
    for name in graph.inputs:
        if graph.tensor[name].role != "input":
            raise ModelError(f'"{name}" is among the inputs of {where} and has the role {graph.tensor[name].role}')
    for name, first in graph.aliases.items():
        if first not in parameters:
            raise ModelError(f'{where}: "{name}" is another name of "{first}", which is none of its parameters')
