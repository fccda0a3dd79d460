"""What one device holds of each value of a piece, followed op by op from the ops' signatures.

Along each inner axis a value is whole, cut along one dim, or a partial sum. Nothing here is taken from how the piece
was made: the views start at the parameters' shards, and every op must be one that its signature allows on what it is
given (SuperScaler, section 3.1). Gradients mirror the values: a whole value that ops read piece by piece must "enter"
them, so that its gradient is summed. Axes are independent: an op is held against its signature along each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.errors import PlanError
from partita.graph import Graph
from partita.spacetime.parts import Part, State, local_shape, outer_first


@dataclass(frozen=True)
class Value:
    """A tensor of the model as one device has it: its state, and the axes over which its gradient is summed on the way
    back. ``unbiased``: a linear layer's bias isn't in it yet.
    """

    tensor: str
    state: State = field(default_factory=dict)
    entered: frozenset[str] = frozenset()
    unbiased: bool = False

    def with_spread(self, axis: str, spread: Part | None, *, entered: bool = False) -> Value:
        """The value with another state along one axis."""
        state = {other: found for other, found in self.state.items() if other != axis}
        if spread is not None:
            state[axis] = spread
        return replace(self, state=state, entered=self.entered - {axis} | ({axis} if entered else set()))

    def part(self, axis: str) -> Part | None:
        """The cut along the axis."""
        found = self.state.get(axis)
        return found if isinstance(found, Part) else None

    def partial(self, axis: str) -> bool:
        return self.state.get(axis) == "partial"

    def said(self, graph: Graph, axis: str, sizes: Mapping[str, int]) -> str:
        """For a message: the tensor and what the first device along the axis holds of it."""
        if self.partial(axis):
            return f'"{self.tensor}" is a partial sum'
        part = self.part(axis)
        if part is None:
            return f'"{self.tensor}" is whole'
        count, size = sizes[axis], graph.tensor[self.tensor].shape[part.dim]
        first = -(-size // (count * part.parts))
        parts = f" of each of {part.parts} parts" if part.parts > 1 else ""
        device = f"device 0 of {count}" + ("" if axis == "tensor" else f' along "{axis}"')
        return f'"{self.tensor}" is cut: of dim {part.dim} (size {size}) {device} has [0, {first}){parts}'


def shape_of(graph: Graph, value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape on each device, padding included. PlanError where its cuts contradict each other."""
    cuts = outer_first(value.state)
    for index, (axis, outer) in enumerate(cuts):
        for other, inner in cuts[index + 1 :]:
            if inner.dim == outer.dim and inner.parts % (outer.parts * sizes[axis]):
                raise PlanError(
                    f"{value.said(graph, axis, sizes)}; and {value.said(graph, other, sizes)}: neither lies inside a "
                    "piece of the other"
                )
    return local_shape(graph.tensor[value.tensor].shape, value.state, sizes)


def whole_along(graph: Graph, op: str, kind: str, reads: Sequence[Value], axis: str, sizes: Mapping[str, int]) -> None:
    """PlanError unless an op that doesn't work on pieces along the axis gets all of what it reads."""
    for value in reads:
        if value.part(axis) is not None:
            raise PlanError(f'op "{op}" ({kind}) works on whole tensors, but {value.said(graph, axis, sizes)}')
        if axis in value.entered:
            raise PlanError(
                f'op "{op}" ({kind}) works on whole tensors, but the gradient of its input "{value.tensor}" is '
                f"summed over {sizes[axis]} devices: it would be counted {sizes[axis]} times"
            )
