"""The ops of a piece, each held against its signature along one axis after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from partita.errors import PlanError
from partita.graph import Graph, Op
from partita.graph.cuts import PADDABLE, SUMS
from partita.graph.flows import label_of, parts_of
from partita.graph.signature import Dim, Signature
from partita.graph.table import argument, signature
from partita.spacetime.parts import Part, Spread, local_shape, outer_first
from partita.spacetime.program import COLLECTIVES, LocalOp
from partita.spacetime.prove_steps import collected
from partita.spacetime.prove_views import Value, shape_of, whole_along

LINEAR = ("linear", "addmm")


def results(
    graph: Graph, ops: Mapping[str, Op], local: LocalOp, reads: Sequence[Value], sizes: Mapping[str, int]
) -> list[Value]:
    """What an op makes of what it is given. PlanError that names the op and the tensor where it can't be right."""
    name = local.op.name
    alone = 1 if local.form in COLLECTIVES else 2 if local.form == "bias" else None
    if alone is not None and (len(reads), len(local.op.outputs)) != (alone, 1):
        raise PlanError(f'op "{name}" ({local.form}) reads {list(local.op.inputs)} and makes {list(local.op.outputs)}')
    if local.form in COLLECTIVES:
        made = [collected(graph, local, reads[0], sizes)]
    else:
        _complete(local, reads, sizes)
        made = [_biased(graph, local, reads, sizes)] if local.form == "bias" else _made(graph, ops, local, reads, sizes)
    shapes = tuple(shape_of(graph, value, sizes) for value in made)
    if shapes != local.shapes:
        axis = next((axis for axis in reversed(local.axes) if axis in made[0].state), "tensor")
        raise PlanError(
            f'op "{name}" makes {list(map(list, local.shapes))} by its piece, but '
            f"{made[0].said(graph, axis, sizes)}: that is {list(map(list, shapes))}"
        )
    return made


def _complete(local: LocalOp, reads: Sequence[Value], sizes: Mapping[str, int]) -> None:
    """Whether nothing that the op reads is a partial sum or lacks its bias."""
    for value in reads:
        if partial := [axis for axis in sizes if value.partial(axis)]:
            raise PlanError(
                f'op "{local.op.name}" ({local.op.kind}) reads "{value.tensor}", which is a partial sum on each of '
                f"{sizes[partial[0]]} devices: the sum over the devices is missing before it"
            )
        if value.unbiased and local.form != "bias":
            raise PlanError(f'op "{local.op.name}" ({local.op.kind}) reads "{value.tensor}", which lacks its bias')


def _biased(graph: Graph, local: LocalOp, reads: Sequence[Value], sizes: Mapping[str, int]) -> Value:
    """The sum of a layer's products and its bias."""
    value, bias = reads
    layer = graph.producer.get(value.tensor)
    wanted = layer.inputs[0 if layer.kind == "addmm" else 2] if value.unbiased and layer else None
    if bias.tensor != wanted:
        raise PlanError(
            f'op "{local.op.name}" adds "{bias.tensor}" to "{value.tensor}"'
            + (", which has its bias: it would be counted twice" if wanted is None else f', whose bias is "{wanted}"')
        )
    last = len(graph.tensor[value.tensor].shape) - 1
    for axis in sizes:
        part = value.part(axis)
        if (part is not None) != (axis in local.axes) or (part and part.dim == last) or bias.part(axis):
            raise PlanError(
                f'op "{local.op.name}" adds all of "{bias.tensor}", but {value.said(graph, axis, sizes)} and '
                f"{bias.said(graph, axis, sizes)}"
            )
        _entering(graph, local.op, bias, axis, cut=part is not None, sizes=sizes)
    return Value(value.tensor, value.state)


def _made(
    graph: Graph, ops: Mapping[str, Op], local: LocalOp, reads: Sequence[Value], sizes: Mapping[str, int]
) -> list[Value]:
    """What an op of the model makes."""
    op = ops.get(local.op.name)
    if op is None or op.kind != local.op.kind:
        raise PlanError(f'op "{local.op.name}" ({local.op.kind}) is none of the model\'s')
    inputs = list(op.inputs)
    bias = local.form == "product" and len(inputs) == 3
    if bias:
        del inputs[0 if op.kind == "addmm" else 2]
    found = [value.tensor for value in reads]
    if found != inputs:
        odd = next((pair for pair in zip(found, inputs, strict=False) if pair[0] != pair[1]), (found, inputs))
        raise PlanError(f'op "{op.name}" reads "{odd[0]}" where the model\'s reads "{odd[1]}"')
    if odd_axes := [axis for axis in local.axes if axis not in sizes]:
        raise PlanError(f'op "{op.name}" works on pieces along "{odd_axes[0]}"; its stage has {list(sizes)}')
    if (local.form == "whole") != (not local.axes):
        raise PlanError(f'op "{op.name}" has the form "{local.form}" along the axes {list(local.axes)}')
    for axis in sizes:
        if axis not in local.axes:
            whole_along(graph, op.name, op.kind, reads, axis, sizes)
    states: list[dict[str, Spread]] = [{} for _ in op.outputs]
    if local.axes:
        signed = signature(graph, op)
        if signed is None:
            raise PlanError(f'op "{op.name}" of kind "{op.kind}" has no signature, so that it can\'t work on pieces')
        if bias:
            sides = [side for side, name in zip(signed.inputs, op.inputs, strict=True) if name in inputs]
            signed = Signature(tuple(sides), signed.outputs, signed.reduced, signed.fixed, signed.sizes, signed.placed)
        # Along the axes whose pieces it reads, then those along which it spreads out what is whole.
        for axis in sorted(local.axes, key=lambda axis: all(value.part(axis) is None for value in reads)):
            _OpAlong(graph, op, local, signed, reads, axis, sizes).add(states)
    if local.form == "product" and "partial" not in states[0].values():
        raise PlanError(f'op "{op.name}" ({op.kind}) has the form "product", but makes no partial sum')
    return [Value(name, state, unbiased=bias) for name, state in zip(op.outputs, states, strict=True)]


def _entering(graph: Graph, op: Op, value: Value, axis: str, *, cut: bool, sizes: Mapping[str, int]) -> None:
    """Whether the gradient of a whole input is summed over the axis exactly when each device has a part of it."""
    if value.part(axis) is not None or not graph.tensor[value.tensor].gradient or (axis in value.entered) == cut:
        return
    count = sizes[axis]
    raise PlanError(
        f'op "{op.name}" ({op.kind}) reads all of "{value.tensor}" on each of {count} devices: its gradient '
        + ("is never summed over them" if cut else f"is summed over them, which counts it {count} times")
    )


class _OpAlong:
    """An op on pieces along one axis: its form must say what the cut labels of its signature do."""

    def __init__(
        self, graph: Graph, op: Op, local: LocalOp, found: Signature, reads: Sequence[Value], axis: str,
        sizes: Mapping[str, int],
    ):  # fmt: skip
        self.graph, self.op, self.local, self.found, self.reads = graph, op, local, found, reads
        self.axis, self.sizes, self.count = axis, sizes, sizes[axis]
        self.what = ", ".join(self._said(value) for value in reads if value.part(axis) is not None)

    def _said(self, value: Value) -> str:
        return value.said(self.graph, self.axis, self.sizes)

    def _fail(self, text: str) -> None:
        raise PlanError(f'op "{self.op.name}" ({self.op.kind}) {text}')

    def add(self, states: list[dict[str, Spread]]) -> None:
        """Put what the op makes along the axis into the states of its outputs."""
        labels = self._labels(states)
        for label, parts in labels.items():
            self._may_be_cut(label, parts)
        summed = {label for label in labels if label in self.found.reduced or self._summed_tokens(label)}
        self._form(labels, summed)
        for value, dims in zip(self.reads, self.found.inputs, strict=True):
            for position, dim in enumerate(dims):
                part = value.part(self.axis)
                if labels.keys() & set(dim.factors) and (part is None or part.dim != position):
                    self._fail(f'works on pieces of dim {position} of "{value.tensor}", but {self._said(value)}')
            _entering(self.graph, self.op, value, self.axis, cut=not summed, sizes=self.sizes)
        completed = self.local.form in ("row", "vocabulary") and self.axis == self.local.axes[-1]
        for name, dims, state in zip(self.op.outputs, self.found.outputs, states, strict=True):
            at = [(place, label) for place, dim in enumerate(dims) for label in labels if label in dim.factors]
            if len(at) > 1:
                places = [place for place, _ in at]
                self._fail(f'would cut the dims {places} of "{name}" along the same devices')
            if at:
                ((place, label),) = at
                state[self.axis] = Part(place, parts_of(self.found, dims[place], label, labels[label]))
            elif summed and not completed:
                state[self.axis] = "partial"

    def _labels(self, states: Sequence[Mapping[str, Spread]]) -> dict[str, int]:
        """The cut labels with the parts of each, from what is read; else from what is made (a whole, spread out)."""
        labels: dict[str, int] = {}
        for value, dims in zip(self.reads, self.found.inputs, strict=True):
            part = value.part(self.axis)
            if part is None:
                continue
            at = label_of(self.found, dims[part.dim], part.parts)
            if at is None or labels.setdefault(at[0], at[1]) != at[1]:
                self._fail(
                    f'takes dim {part.dim} of "{value.tensor}" for {dims[part.dim].parts} equal parts, '
                    f"but {self._said(value)}: the pieces have the wrong offset"
                )
            assert at is not None
        if not labels:
            sides = zip(self.op.outputs, self.local.shapes, self.found.outputs, states, strict=True)
            for name, shape, dims, state in sides:
                size_of = local_shape(self.graph.tensor[name].shape, state, self.sizes)
                for position, (size, here, dim) in enumerate(zip(size_of, shape, dims, strict=True)):
                    if size != here:
                        inside = [self.sizes[axis] for axis, part in outer_first(state) if part.dim == position]
                        parts = 1
                        for length in inside:
                            parts *= length
                        labels.setdefault(dim.factors[0], parts)
        if not labels:
            self._fail(f"is said to work on pieces ({self.local.form}), but all that it reads is whole")
        return labels

    def _may_be_cut(self, label: str, parts: int) -> None:
        what = self.what or f'"{self.op.outputs[0]}" is cut over {self.count} devices'
        if label in self.found.fixed and not self._placed(label):
            self._fail(f"needs that dim whole, or a reduction over the devices, but {what}")
        size = self.found.sizes[label]
        if size % (self.count * parts) and (parts > 1 or self.op.kind not in PADDABLE):
            self._fail(f"would count padding: {what}, and {self.count} doesn't divide {size}")

    def _placed(self, label: str) -> bool:
        """Whether the op is told which part of the label its device has, or adds the parts up."""
        if label not in self.found.placed:
            return False
        if self.op.kind == "cross_entropy":
            return self._summed_tokens(label)
        if "target" not in self.op.attributes:
            return True
        return self.local.form == "queries"

    def _row_axes(self) -> list[str]:
        """The axes that cut the rows of an attention, major first, from the queries that it reads."""
        rows = len(self.graph.tensor[self.op.inputs[0]].shape) - 2
        return [axis for axis, part in outer_first(self.reads[0].state) if part.dim == rows]

    def _summed_tokens(self, label: str) -> bool:
        """Whether the label are the tokens of a cross entropy that adds up its losses."""
        if self.op.kind != "cross_entropy" or label not in self.found.placed:
            return False
        if "target" in self.local.op.attributes:
            return bool(argument(self.local.op, 3, "reduction", 1) == 2)
        loss = self.graph.loss
        return loss is not None and loss.weighting == "tokens" and loss.tensor in self.op.outputs

    def _form(self, labels: Mapping[str, int], summed: Collection[str]) -> None:
        """Whether the form completes what the cut labels leave partial, no less and no more."""
        form, kind = self.local.form, self.op.kind
        last = self.axis == self.local.axes[-1]
        if form == "queries":
            rows, wanted = self.local.op.attributes.get("rows"), [[a, self.sizes[a]] for a in self._row_axes()]
            if kind != "scaled_dot_product_attention" or rows != wanted:
                self._fail(f"counts its rows along {rows}, but they are cut along {wanted}: a wrong offset")
        if form == "vocabulary" and last:
            right = bool(summed) and kind in ("embedding", "cross_entropy")
            if right and any(labels[label] > 1 for label in summed):
                self._fail(f"counts rows on from its device's first: {self.what}: a wrong offset")
            self._classes()
        elif form == "row" and last:
            right = bool(summed) and kind in LINEAR
        elif form == "column" and last:
            right = not summed and kind in LINEAR
        else:
            # A table looked up by rows that other devices have is no partial sum.
            tokens = all(self._summed_tokens(label) for label in summed)
            right = not summed or tokens or (kind in SUMS and kind != "embedding")
            right = right and (form != "product" or kind in LINEAR)
            # What has no part of the sum (a bias) would be added on each device.
            sides = zip(self.reads, self.found.inputs, strict=True)
            alone = [value.tensor for value, dims in sides if not _has(dims, summed)]
            if right and summed and alone:
                raise PlanError(
                    f'op "{self.op.name}" ({kind}) makes a partial sum on each of {self.count} devices and adds all of '
                    f'"{alone[0]}" to each: it would be counted {self.count} times'
                )
        if not right:
            need = "a sum over the devices" if summed else "no sum over the devices"
            raise PlanError(f'op "{self.op.name}" ({kind}) has the form "{form}", but needs {need}: {self.what}')

    def _classes(self) -> None:
        """Whether a cross entropy knows which of the columns are classes."""
        real = self.graph.tensor[self.op.inputs[0]].shape[-1]
        if self.op.kind == "cross_entropy" and "target" in self.local.op.attributes:
            counted = self.local.op.attributes.get("vocabulary")
            if counted != real:
                raise PlanError(
                    f'op "{self.op.name}" counts {counted} classes of "{self.op.inputs[0]}", which has {real}: '
                    "padding would be counted"
                )


def _has(dims: Sequence[Dim], labels: Collection[str]) -> bool:
    return any(factor in labels for dim in dims for factor in dim.factors)
