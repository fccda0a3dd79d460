"""Collects the tensors, ops and blocks of a graph while a family walks through its forward pass.

What is here knows nothing of any model: it names ops after the modules that call them, hands out each parameter once
to the block that uses it first, and tells whether a gradient flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from partita.graph import Block, Graph, Loss, Op, Tensor, check

Shape = tuple[int, ...]


class Builder:
    """A graph in the making. Ops go to the block opened last; parameters belong to the block that names them first."""

    def __init__(self, name: str, samples: int, seq: int | None, dtype: str):
        self.name, self.samples, self.seq, self.dtype = name, samples, seq, dtype
        self.inputs: list[str] = []
        self._tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []
        self._blocks: dict[str, list[str]] = {}
        self._block = ""
        self._aliases: dict[str, str] = {}
        self._used: Counter[str] = Counter()

    def block(self, name: str) -> None:
        """Open the next block."""
        assert name not in self._blocks, name
        self._blocks[name] = []
        self._block = name

    def input(self, name: str, shape: Shape, dtype: str = "int64") -> Tensor:
        """A tensor of the batch."""
        self.inputs.append(name)
        return self._add(Tensor(name, shape, dtype, "input", False))

    def buffer(self, name: str, shape: Shape, dtype: str = "int64") -> Tensor:
        """A constant that an op reads (positions, masks)."""
        return self._tensors.get(name) or self._add(Tensor(name, shape, dtype, "buffer", False))

    def parameter(self, name: str, *shape: int) -> Tensor:
        """A parameter, by the name it has in the model; the same one whenever the name comes again (tied weights)."""
        found = self._tensors.get(name)
        if found is None:
            found = self._add(Tensor(name, shape, self.dtype, "parameter", True))
            self._blocks[self._block].append(name)
        assert found.shape == shape, (name, found.shape, shape)
        return found

    def tie(self, name: str, first: str) -> None:
        """Record a further name of a parameter, as the model's state dict has it."""
        self._aliases[name] = first

    def op(
        self, kind: str, inputs: Sequence[Tensor], shape: Shape, module: str, *, name: str | None = None,
        out_dtype: str | None = None, **attributes: Any,
    ) -> Tensor:  # fmt: skip
        """One op with one output of the op's name; its dtype is the first input's unless ``out_dtype`` is told."""
        (made,) = self.op_with_outputs(kind, inputs, [shape], module, name=name, out_dtype=out_dtype, **attributes)
        return made

    def op_with_outputs(
        self, kind: str, inputs: Sequence[Tensor], shapes: Sequence[Shape], module: str, *, name: str | None = None,
        out_dtype: str | None = None, **attributes: Any,
    ) -> list[Tensor]:  # fmt: skip
        """One op and its outputs, named after the module that calls it unless it is a module of its own (``name``)."""
        name = name or (f"{module}.{kind}" if module else kind)
        times = self._used[name]
        self._used[name] = times + 1
        if times:
            name = f"{name}_{times}"
        dtype = out_dtype or inputs[0].dtype
        # An integer value carries no gradient, whatever it was computed from.
        gradient = "int" not in dtype and any(tensor.gradient for tensor in inputs)
        names = [name] if len(shapes) == 1 else [f"{name}.{index}" for index in range(len(shapes))]
        made = [self._add(Tensor(n, s, dtype, "value", gradient)) for n, s in zip(names, shapes, strict=True)]
        self._ops.append(
            Op(name, kind, tuple(tensor.name for tensor in inputs), tuple(names), self._block, module, attributes)
        )
        return made

    def graph(self, outputs: Sequence[Tensor], loss: Loss | None) -> Graph:
        """The finished graph, checked."""
        return check(
            Graph(
                name=self.name,
                samples=self.samples,
                seq=self.seq,
                tensors=tuple(self._tensors.values()),
                ops=tuple(self._ops),
                blocks=tuple(Block(name, tuple(own)) for name, own in self._blocks.items()),
                inputs=tuple(self.inputs),
                outputs=tuple(tensor.name for tensor in outputs),
                loss=loss,
                aliases=self._aliases,
            )
        )

    def _add(self, tensor: Tensor) -> Tensor:
        assert tensor.name not in self._tensors, tensor.name
        self._tensors[tensor.name] = tensor
        return tensor
