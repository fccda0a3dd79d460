"""The collectives of a piece: each must get what its form takes, and says where pieces lie. What they make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.errors import PlanError
from partita.graph import Graph
from partita.spacetime.parts import Part, local_parts
from partita.spacetime.program import LocalOp
from partita.spacetime.prove_views import Value, shape_of


def collected(graph: Graph, local: LocalOp, value: Value, sizes: Mapping[str, int]) -> Value:
    """What a device has after a collective over one axis. PlanError that names the op and the tensor."""
    name, tensor, attributes = local.op.name, value.tensor, local.op.attributes
    if len(local.axes) != 1 or local.axes[0] not in sizes:
        raise PlanError(f'op "{name}" ({local.form}) goes over {list(local.axes)}; it must be one of {list(sizes)}')
    (axis,) = local.axes
    count, said = sizes[axis], value.said(graph, axis, sizes)
    if local.form in ("sum", "scatter"):
        if not value.partial(axis):
            raise PlanError(
                f'op "{name}" sums "{tensor}" over {count} devices, but {said}, no partial sum: '
                "it would be counted more than once"
            )
        after = None if local.form == "sum" else _claimed(graph, local, value, attributes, axis, sizes)
        return value.with_spread(axis, after)
    if value.partial(axis):
        raise PlanError(
            f'op "{name}" ({local.form}) reads "{tensor}", which is a partial sum on each of {count} '
            "devices: the sum over the devices is missing before it"
        )
    if local.form == "enter":
        if value.part(axis) is not None or axis in value.entered:
            raise PlanError(
                f'op "{name}" sums the gradient of "{tensor}" over {count} devices, but '
                + ("it is summed already" if axis in value.entered else said)
            )
        return value.with_spread(axis, None, entered=True)
    if local.form == "slice":
        if value.part(axis) is not None or axis in value.entered:
            raise PlanError(
                f'op "{name}" takes pieces of "{tensor}" over {count} devices, but '
                + ("its gradient is summed over them, as if each had all of it" if axis in value.entered else said)
            )
        return value.with_spread(axis, _claimed(graph, local, value, attributes, axis, sizes))
    part = value.part(axis)
    if part is None:
        raise PlanError(f'op "{name}" puts pieces of "{tensor}" together, but {said}')
    if local.form == "exchange":
        _require(name, value, attributes.get("source", {}), part, local_parts(value.state, axis, sizes))
        return value.with_spread(axis, _claimed(graph, local, value, attributes.get("target", {}), axis, sizes))
    _require(name, value, attributes, part, local_parts(value.state, axis, sizes))
    after_gather = value.with_spread(axis, None, entered=local.form == "gather_entered")
    size = shape_of(graph, after_gather, sizes)[part.dim]
    if attributes.get("size") != size:
        raise PlanError(
            f'op "{name}" puts dim {part.dim} of "{tensor}" together to {attributes.get("size")}, but it is of size '
            f"{size}: padding would be counted"
        )
    return after_gather


def _require(name: str, value: Value, attributes: Mapping[str, Any], part: Part, parts: int) -> None:
    """Whether the op takes pieces for what they are."""
    found = attributes.get("dim"), attributes.get("parts")
    if found != (part.dim, parts):
        raise PlanError(
            f'op "{name}" takes "{value.tensor}" for pieces of dim {found[0]} in {found[1]} parts, but dim {part.dim} '
            f"is cut in {parts} parts: a wrong offset"
        )


def _claimed(
    graph: Graph, local: LocalOp, value: Value, attributes: Mapping[str, Any], axis: str, sizes: Mapping[str, int]
) -> Part:
    """The cut that an op makes: what it says of all devices must follow from what it does on one."""
    name, rank = local.op.name, len(graph.tensor[value.tensor].shape)
    dim, parts, of = (attributes.get(key) for key in ("dim", "parts", "of"))
    if not (isinstance(dim, int) and isinstance(parts, int) and isinstance(of, int) and 0 <= dim < rank and of > 0):
        raise PlanError(
            f'op "{name}" cuts dim {dim} of "{value.tensor}" in {parts} of {of} parts: there is no such cut'
        )
    made = value.with_spread(axis, Part(dim, of))
    shape_of(graph, made, sizes)
    if local_parts(made.state, axis, sizes) != parts:
        raise PlanError(
            f'op "{name}" cuts {parts} parts of dim {dim} of "{value.tensor}" on each device, of {of} in all; each has '
            f"{local_parts(made.state, axis, sizes)}: a wrong offset"
        )
    before = shape_of(graph, value.with_spread(axis, None), sizes)[dim]
    if before % (parts * sizes[axis]):
        raise PlanError(
            f'op "{name}" cuts dim {dim} of "{value.tensor}", {before} long on a device, in {parts} × {sizes[axis]} '
            "pieces, which leaves a remainder"
        )
    return Part(dim, of)
