"""What one device holds of each value of a piece, followed op by op from the ops' signatures.

A value is whole, cut along one dim, or a partial sum. Nothing here is taken from how the piece was made: the views
start at the parameters' shards, and every op must be one that its signature allows on what it is given (SuperScaler,
section 3.1). Gradients mirror the values: a whole value that ops read piece by piece must "enter" them, so that its
gradient is summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from partita.errors import PlanError
from partita.graph import Graph, Op
from partita.graph.cuts import PADDABLE, SUMS
from partita.graph.signature import Dim, Signature
from partita.graph.table import signature
from partita.spacetime.program import LocalOp


@dataclass(frozen=True)
class Value:
    """A tensor of the model as one device has it: ``dim`` is cut (of ``parts`` equal parts each), or nothing is."""

    tensor: str
    dim: int | None = None
    parts: int = 1
    partial: bool = False
    entered: bool = False

    def shape(self, graph: Graph, tp: int) -> tuple[int, ...]:
        """The shape on each of ``tp`` devices, padding included."""
        shape = list(graph.tensor[self.tensor].shape)
        if self.dim is not None:
            shape[self.dim] = -(-shape[self.dim] // (tp * self.parts)) * self.parts
        return tuple(shape)

    def said(self, graph: Graph, tp: int) -> str:
        """For a message: the tensor and what the first device holds of it."""
        if self.partial:
            return f'"{self.tensor}" is a partial sum'
        if self.dim is None:
            return f'"{self.tensor}" is whole'
        size = graph.tensor[self.tensor].shape[self.dim]
        first = self.shape(graph, tp)[self.dim] // self.parts
        parts = f" of each of {self.parts} parts" if self.parts > 1 else ""
        return f'"{self.tensor}" is cut: of dim {self.dim} (size {size}) device 0 of {tp} has [0, {first}){parts}'


def results(graph: Graph, ops: Mapping[str, Op], local: LocalOp, reads: Sequence[Value], tp: int) -> list[Value]:
    """What an op makes of what it is given. PlanError that names the op and the tensor where it can't be right."""
    name = local.op.name
    for value in reads:
        if value.partial and local.form != "sum":
            raise PlanError(
                f'op "{name}" ({local.op.kind}) reads "{value.tensor}", which is a partial sum on each of {tp} '
                "devices: the sum over the devices is missing before it"
            )
    if local.form in ("enter", "sum", "gather"):
        made = [_added(graph, local, reads, tp)]
    else:
        op = ops.get(name)
        if op is None or op.kind != local.op.kind:
            raise PlanError(f'op "{name}" ({local.op.kind}) is none of the model\'s')
        found = [value.tensor for value in reads]
        if found != list(op.inputs):
            odd = next((pair for pair in zip(found, op.inputs, strict=False) if pair[0] != pair[1]), (found, op.inputs))
            raise PlanError(f'op "{name}" reads "{odd[0]}" where the model\'s reads "{odd[1]}"')
        made = _whole(graph, op, reads, tp) if local.form == "whole" else _cut(graph, op, local, reads, tp)
    shapes = tuple(value.shape(graph, tp) for value in made)
    if shapes != local.shapes:
        raise PlanError(
            f'op "{name}" makes {list(map(list, local.shapes))} by its piece, but '
            f"{made[0].said(graph, tp)}: that is {list(map(list, shapes))}"
        )
    return made


def _added(graph: Graph, local: LocalOp, reads: Sequence[Value], tp: int) -> Value:
    """An op that only the piece has."""
    (value,) = reads
    name, tensor = local.op.name, value.tensor
    if local.form == "sum":
        if not value.partial:
            raise PlanError(
                f'op "{name}" sums "{tensor}" over {tp} devices, but {value.said(graph, tp)}, no partial sum: '
                "it would be counted more than once"
            )
        return replace(value, partial=False)
    if local.form == "enter":
        if value.dim is not None or value.entered:
            raise PlanError(
                f'op "{name}" sums the gradient of "{tensor}" over {tp} devices, but '
                + ("it is summed already" if value.entered else value.said(graph, tp))
            )
        return replace(value, entered=True)
    if value.dim is None or value.parts != 1:
        raise PlanError(f'op "{name}" puts pieces of "{tensor}" together, but {value.said(graph, tp)}')
    size = graph.tensor[tensor].shape[value.dim]
    if (local.op.attributes.get("dim"), local.op.attributes.get("size")) != (value.dim, size):
        raise PlanError(
            f'op "{name}" puts dim {local.op.attributes.get("dim")} of "{tensor}" together to '
            f"{local.op.attributes.get('size')}, but dim {value.dim} of size {size} is cut: padding would be counted"
        )
    return Value(tensor)


def _whole(graph: Graph, op: Op, reads: Sequence[Value], tp: int) -> list[Value]:
    for value in reads:
        if value.dim is not None:
            raise PlanError(f'op "{op.name}" ({op.kind}) works on whole tensors, but {value.said(graph, tp)}')
        if value.entered:
            raise PlanError(
                f'op "{op.name}" ({op.kind}) works on whole tensors, but the gradient of its input "{value.tensor}" is '
                f"summed over {tp} devices: it would be counted {tp} times"
            )
    return [Value(name) for name in op.outputs]


def _cut(graph: Graph, op: Op, local: LocalOp, reads: Sequence[Value], tp: int) -> list[Value]:
    """An op on pieces: its form must say what the cut labels of its signature do."""
    found = signature(graph, op)
    if found is None:
        raise PlanError(f'op "{op.name}" of kind "{op.kind}" has no signature, so that it can\'t work on pieces')
    labels = _labels(graph, op, local, found, reads, tp)
    for label, parts in labels.items():
        _may_be_cut(graph, op, found, reads, label, parts, tp)
    reduced = labels.keys() & found.reduced
    _form(graph, op, local, found, reads, labels, tp)
    for value, dims in zip(reads, found.inputs, strict=True):
        for position, dim in enumerate(dims):
            if dim.factors[0] in labels and value.dim != position:
                raise PlanError(
                    f'op "{op.name}" ({op.kind}) works on pieces of dim {position} of "{value.tensor}", '
                    f"but {value.said(graph, tp)}"
                )
        _entering(graph, op, value, bool(reduced), tp)
    made = []
    for name, dims in zip(op.outputs, found.outputs, strict=True):
        at = [position for position, dim in enumerate(dims) if dim.factors[0] in labels]
        if len(at) > 1:
            raise PlanError(f'op "{op.name}" ({op.kind}) would cut the dims {at} of "{name}" along the same devices')
        parts = labels[dims[at[0]].factors[0]] * dims[at[0]].parts if at else 1
        made.append(Value(name, at[0] if at else None, parts, partial=bool(reduced) and local.form == "local"))
    return made


def _labels(graph: Graph, op: Op, local: LocalOp, found: Signature, reads: Sequence[Value], tp: int) -> dict[str, int]:
    """The cut labels with the parts of each, from what is read; else from what is made (a whole value spread out)."""
    labels: dict[str, int] = {}
    for value, dims in zip(reads, found.inputs, strict=True):
        if value.dim is None:
            continue
        dim = dims[value.dim]
        parts, rest = divmod(value.parts, dim.parts)
        if rest or labels.setdefault(dim.factors[0], parts) != parts:
            raise PlanError(
                f'op "{op.name}" ({op.kind}) takes dim {value.dim} of "{value.tensor}" for {dim.parts} equal parts, '
                f"but {value.said(graph, tp)}: the pieces have the wrong offset"
            )
    if not labels:
        for name, shape, dims in zip(op.outputs, local.shapes, found.outputs, strict=True):
            for size, here, dim in zip(graph.tensor[name].shape, shape, dims, strict=True):
                if size != here:
                    labels[dim.factors[0]] = 1
    if not labels:
        raise PlanError(
            f'op "{op.name}" ({op.kind}) is said to work on pieces ({local.form}), but all that it reads is whole'
        )
    return labels


def _may_be_cut(
    graph: Graph, op: Op, found: Signature, reads: Sequence[Value], label: str, parts: int, tp: int
) -> None:
    about = next((value for value in reads if value.dim is not None), None)
    what = about.said(graph, tp) if about else f'"{op.outputs[0]}" is cut over {tp} devices'
    if not found.cuttable(label):
        raise PlanError(f'op "{op.name}" ({op.kind}) needs that dim whole, or a reduction over the devices, but {what}')
    size = found.sizes[label]
    if size % (tp * parts) and (parts > 1 or op.kind not in PADDABLE):
        raise PlanError(f'op "{op.name}" ({op.kind}) would count padding: {what}, and {tp} doesn\'t divide {size}')


def _form(
    graph: Graph, op: Op, local: LocalOp, found: Signature, reads: Sequence[Value], labels: Mapping[str, int], tp: int
) -> None:
    """Whether the form completes what the cut labels leave partial, no less and no more."""
    reduced = labels.keys() & found.reduced
    linear = op.kind in ("linear", "addmm")
    what = ", ".join(value.said(graph, tp) for value in reads if value.dim is not None)
    if local.form == "vocabulary":
        right = bool(reduced) and op.kind in ("embedding", "cross_entropy")
        if right and any(labels[label] > 1 for label in reduced):
            raise PlanError(
                f'op "{op.name}" ({op.kind}) counts rows on from its device\'s first: {what}: a wrong offset'
            )
        real = graph.tensor[op.inputs[0]].shape[-1]
        if op.kind == "cross_entropy" and "target" in local.op.attributes:
            counted = local.op.attributes.get("vocabulary")
            if counted != real:
                raise PlanError(
                    f'op "{op.name}" counts {counted} classes of "{op.inputs[0]}", which has {real}: '
                    "padding would be counted"
                )
    elif local.form == "row":
        right = bool(reduced) and linear
    elif local.form == "column":
        right = not reduced and linear
    else:
        # A table looked up by rows that other devices have is no partial sum.
        right = not reduced or (op.kind in SUMS and op.kind != "embedding")
        # What has no part of the sum (a bias) would be added on each device.
        alone = [value.tensor for value, dims in zip(reads, found.inputs, strict=True) if not _has(dims, reduced)]
        if right and reduced and alone:
            raise PlanError(
                f'op "{op.name}" ({op.kind}) makes a partial sum on each of {tp} devices and adds all of "{alone[0]}" '
                f"to each: it would be counted {tp} times"
            )
    if not right:
        need = "a sum over the devices" if reduced else "no sum over the devices"
        raise PlanError(f'op "{op.name}" ({op.kind}) has the form "{local.form}", but needs {need}: {what}')


def _has(dims: Sequence[Dim], labels: Set[str]) -> bool:
    return any(dim.factors[0] in labels for dim in dims)


def _entering(graph: Graph, op: Op, value: Value, reduced: bool, tp: int) -> None:
    """Whether the gradient of a whole input is summed exactly when each device has a part of it."""
    if value.dim is not None or not graph.tensor[value.tensor].gradient:
        return
    if value.entered == reduced:
        raise PlanError(
            f'op "{op.name}" ({op.kind}) reads all of "{value.tensor}" on each of {tp} devices: its gradient '
            + (f"is summed over them, which counts it {tp} times" if reduced else "is never summed over them")
        )
