"""The ops of one block as a device runs them, with the collectives between them.

Op by op: what it needs (``needs``), the way there from what the device has (``convert``), and what it makes. Along an
axis of turns a class of ops becomes a region that runs once for each turn (co-shard).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partita.errors import PlanError
from partita.graph import Graph, Op
from partita.graph.flows import Tags
from partita.spacetime.convert import Step, steps
from partita.spacetime.localise import bias_of, form_of, localised, summed_loss
from partita.spacetime.needs import ClassCut, Need, need, settled
from partita.spacetime.parts import State, local_shape
from partita.spacetime.program import Form, LocalOp, Region

# How the result of a collective is named after its value.
RESULTS: Mapping[Form, str] = {
    "enter": "entered", "sum": "summed", "scatter": "scattered", "gather": "whole", "gather_entered": "gathered",
    "slice": "slice", "exchange": "exchanged",
}  # fmt: skip


@dataclass
class StageState:
    """What the blocks of a stage share. ``sizes`` are its inner axes longer than 1, major first, ``turns`` some of it.

    ``whole`` are the values that others get, so that every device must have all of them; ``values`` are the forms of
    each value that there are so far: local name to state. ``reads`` says how the gradient of a trained parameter comes
    out of its readers along an axis, ``partial`` or ``full``; along those in ``entered`` it is summed where it is read.
    """

    graph: Graph
    sizes: dict[str, int]
    turns: frozenset[str]
    tags: Tags
    whole: frozenset[str]
    entered: frozenset[tuple[str, str]]
    values: dict[str, dict[str, State]] = field(default_factory=dict)
    reads: dict[tuple[str, str], set[str]] = field(default_factory=dict)


class BlockCutter:
    """Cuts one block: ``ops`` and ``regions`` grow op by op."""

    def __init__(self, stage: StageState, block: str, classes: Sequence[ClassCut], flows: Mapping[str, str]):
        self.stage, self.graph, self.sizes = stage, stage.graph, stage.sizes
        self.block, self.flows, self.classes = block, flows, classes
        self.owner = {name: cut for cut in classes for name in cut.ops}
        self.ops: list[LocalOp] = []
        self.regions: list[Region] = []
        # Collectives that there are: (from, form, what) to the local name of the result.
        self.done: dict[tuple[str, Form, str], str] = {}
        self.names: set[str] = set()
        # While a region is cut: its axis of turns, its ops, what they make, and the ops after it.
        self.turn: str | None = None
        self.inner: list[LocalOp] = []
        self.inside: set[str] = set()
        self.after: list[LocalOp] = []

    def cut(self, free: Collection[str]) -> None:
        """All of the block's ops but those that are computed from the batch alone."""
        order = [op for op in self.graph.block_ops[self.block] if op.name not in free]
        repeated = [cut for cut in self.classes if self.stage.turns.intersection(cut.axes)]
        for cut in repeated:
            order = _together(order, cut, self.block)
        done: set[str] = set()
        for op in order:
            cut_of = self.owner.get(op.name)
            if cut_of is None or cut_of not in repeated:
                self._add(op)
            elif op.name not in done:
                done |= cut_of.ops
                self._region(cut_of, [other for other in order if other.name in cut_of.ops])

    def _region(self, cut: ClassCut, ops: Sequence[Op]) -> None:
        (self.turn,) = self.stage.turns.intersection(cut.axes)
        for op in ops:
            self._add(op)
        self.regions.append(Region(len(self.ops), len(self.ops) + len(self.inner), self.turn, self.sizes[self.turn]))
        self.ops += [*self.inner, *self.after]
        self.done = {key: name for key, name in self.done.items() if name not in self.inside}
        self.turn, self.inner, self.inside, self.after = None, [], set(), []

    def _add(self, op: Op) -> None:
        """One op, after what brings its inputs into the states that it needs."""
        cut = self.owner.get(op.name)
        found = need(self.graph, op, cut, self.flows, self.stage.tags, self.sizes)
        op = summed_loss(self.graph, op)
        own = cut.axes if cut else ()
        ends = [self._end(name, state) for name, state in zip(op.outputs, found.outputs, strict=True)]
        scattered = self.turn is not None or any(axis in end for end in ends for axis in own)
        form = form_of(op, cut.found.name if cut else None, found, scattered=scattered)
        makes = found.outputs
        if form in ("row", "vocabulary"):
            # They complete their sum themselves.
            makes = tuple({a: s for a, s in state.items() if a not in own or s != "partial"} for state in makes)
        bias = bias_of(op) if form == "product" else None
        bias_name = op.inputs[bias] if bias is not None else ""
        inputs = tuple(self._read(op, found, index) for index in range(len(op.inputs)) if index != bias)
        shapes = tuple(self._shape(name, state) for name, state in zip(op.outputs, makes, strict=True))
        if found.axes:
            op = replace(op, attributes=localised(self.graph, op, found, shapes, self.sizes))
        ways = [
            (name, self._way(name, state), self._kept(name, self._end(name, state)))
            for name, state in zip(op.outputs, makes, strict=True)
        ]
        firsts = tuple(f"{name}.partial" if way or bias is not None else kept for name, way, kept in ways)
        self._emit(LocalOp(replace(op, inputs=inputs, outputs=firsts), form, shapes, found.axes))
        for (name, way, kept), local, state in zip(ways, firsts, makes, strict=True):
            for step in way:
                last = step is way[-1] and bias is None
                target = kept if last else self._fresh(f"{name}.{RESULTS[step.form]}", step.axis)
                local = self._step(name, local, step, target, late=step.axis != self.turn)
            if bias is not None:
                self._bias(name, local, bias_name, kept, self._end(name, state))
            self._keep(name, kept, self._end(name, state))

    def _end(self, name: str, state: State) -> State:
        """The state in which the block keeps what an op makes."""
        return settled(name, state, self.graph.tensor[name].shape, self.flows, self.stage.tags, self.sizes)

    def _way(self, name: str, state: State) -> list[Step]:
        return self._between(name, state, self._end(name, state))

    def _between(self, name: str, before: State, after: State, entered: Collection[str] = ()) -> list[Step]:
        """The collectives from one state of a value to another."""
        return steps(self.graph.tensor[name].shape, before, after, entered, self.sizes, self.stage.turns)

    def _kept(self, name: str, state: State) -> str:
        """What a value is called in its block: by its own name, unless others get the whole by that."""
        return f"{name}.piece" if state and name in self.stage.whole else name

    def _keep(self, name: str, kept: str, state: State) -> None:
        """A value is there; put it together for others if they get it."""
        self.stage.values[name] = {kept: state}
        if kept == name:
            return
        way = self._between(name, state, {})
        local = kept
        for step in way:
            target = name if step is way[-1] else self._fresh(f"{name}.{RESULTS[step.form]}", step.axis)
            local = self._step(name, local, step, target, late=True)
        self.stage.values[name][name] = {}

    def _bias(self, name: str, local: str, bias: str, kept: str, state: State) -> None:
        """Add the bias to the sum of a layer's products, once on each element."""
        axes = tuple(axis for axis in self.sizes if axis in state)
        found = Need(({}, {}), (state,), axes)
        added = self._read_parameter(bias, found, 1, late=True)
        op = Op(f"{name}.bias", "bias", (local, added), (kept,), self.block)
        self._emit(LocalOp(op, "bias", (self._shape(name, state),), axes), late=True)

    def _read(self, op: Op, found: Need, index: int) -> str:
        """The local name under which an op reads an input."""
        name = op.inputs[index]
        tensor = self.graph.tensor[name]
        if tensor.role == "parameter":
            return self._read_parameter(name, found, index)
        return self._provide(name, found.inputs[index], found.entering(index) if tensor.gradient else ())

    def _read_parameter(self, name: str, found: Need, index: int, late: bool = False) -> str:
        """The same for a parameter; and how its gradient comes out.

        Where what flows is cut, each device has a partial gradient, which is summed once, at the end of the step.
        """
        into = found.entering(index) if self.graph.tensor[name].gradient else ()
        partial = [axis for axis in into if axis not in found.own and (name, axis) not in self.stage.entered]
        for axis in self.sizes:
            if axis not in self.stage.turns and axis not in found.inputs[index]:
                self.stage.reads.setdefault((name, axis), set()).add("partial" if axis in partial else "full")
        return self._provide(name, found.inputs[index], [axis for axis in into if axis not in partial], late)

    def _provide(self, name: str, state: State, entered: Collection[str], late: bool = False) -> str:
        """The local name of a value in a state, after the collectives that bring it there."""
        # Constants and what comes from other stages is there as a whole.
        here = self.stage.values.get(name, {name: {}})
        ways = {local: self._between(name, before, state, entered) for local, before in here.items()}
        local = min(ways, key=lambda local: len(ways[local]))
        for step in ways[local]:
            key = (local, step.form, f"{step.axis} {step.attributes}")
            if key not in self.done:
                outside = local not in self.inside and step.axis not in self.stage.turns
                target = self._fresh(f"{name}.{RESULTS[step.form]}", step.axis)
                self.done[key] = self._step(name, local, step, target, late=late, early=outside)
            local = self.done[key]
        return local

    def _step(self, name: str, local: str, step: Step, target: str, *, late: bool = False, early: bool = False) -> str:
        """Emit a collective; the local name of its result."""
        shape = self._shape(name, step.after)
        kind = "sum_devices" if step.form == "sum" else step.form
        title = self._fresh(f"{name}.{step.form}", step.axis)
        op = Op(title, kind, (local,), (target,), self.block, attributes=step.attributes)
        self._emit(LocalOp(op, step.form, (shape,), (step.axis,)), late=late, early=early)
        return target

    def _emit(self, local: LocalOp, *, late: bool = False, early: bool = False) -> None:
        """Add an op; while a region is cut, to it, unless it belongs before (``early``) or after it (``late``)."""
        if self.turn is None or early:
            self.ops.append(local)
        elif late:
            self.after.append(local)
        else:
            self.inner.append(local)
            self.inside.update(local.op.outputs)

    def _shape(self, name: str, state: State) -> tuple[int, ...]:
        return local_shape(self.graph.tensor[name].shape, state, self.sizes)

    def _fresh(self, name: str, axis: str) -> str:
        """A name that the block doesn't have yet."""
        base = name if axis == "tensor" else f"{name}.{axis}"
        found, number = base, 2
        while found in self.names:
            found, number = f"{base}.{number}", number + 1
        self.names.add(found)
        return found


def _together(order: Sequence[Op], cut: ClassCut, block: str) -> list[Op]:
    """The block's ops, those of a class side by side. PlanError where the class reads what depends on its result."""
    own = [op for op in order if op.name in cut.ops]
    start, stop = order.index(own[0]), order.index(own[-1])
    behind: set[str] = set()
    before, after = [], []
    for op in order[start : stop + 1]:
        inside = op.name in cut.ops
        if inside and (odd := [name for name in op.inputs if name in behind]):
            raise PlanError(
                f'block "{block}" can\'t run its dims "{cut.found.name}" in turns: op "{op.name}" reads "{odd[0]}", '
                "which depends on what they add up to"
            )
        late = not inside and not behind.isdisjoint(op.inputs)
        if late or (inside and not set(cut.found.reductions).isdisjoint(op.outputs)):
            behind.update(op.outputs)
        if late:
            after.append(op)
        elif not inside:
            # It reads a value of the class that isn't its result: then it must be of the class.
            before.append(op)
    return [*order[:start], *before, *own, *after, *order[stop + 1 :]]
