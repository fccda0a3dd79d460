"""From what a device has of a value to what an op needs of it: the collectives between, in order.

Each has its transpose as backward pass, so that gradients follow from forward views by rule (SuperScaler, section 3.2):

===============  ==========================  ==============================================
form             forward                     backward
===============  ==========================  ==============================================
enter            identity                    sum: its readers work on pieces of something else
sum              sum of partial values       identity
scatter          sum, of which each a piece  pieces put together
gather           pieces put together         each its piece
gather_entered   pieces put together         sum, of which each its piece
slice            each its piece              pieces put together
exchange         pieces of another dim       pieces of the first dim
===============  ==========================  ==============================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.spacetime.parts import Part, State, local_parts, nests
from partita.spacetime.program import Form


@dataclass(frozen=True)
class Step:
    """One collective along an axis, and what a device has of the value after it."""

    form: Form
    axis: str
    after: State
    attributes: dict[str, Any] = field(default_factory=dict)


def steps(
    shape: Sequence[int], before: State, after: State, entered: Collection[str], axes: dict[str, int]
) -> list[Step]:
    """The way between two states of a value of that shape, on a stage of those ``axes`` (name to size, major first).

    ``entered`` are the axes along which the result is whole and its readers work on pieces: the gradient is summed.
    """
    found: list[Step] = []
    state = dict(before)

    def step(form: Form, axis: str, spread: Part | None, **attributes: Any) -> None:
        if spread is None:
            state.pop(axis, None)
        else:
            state[axis] = spread
        found.append(Step(form, axis, dict(state), attributes))

    def where(axis: str) -> dict[str, int]:
        # The parts that a device has of the dim, each cut along the axis; and of how many parts the whole dim consists.
        part = state[axis]
        assert isinstance(part, Part)
        return {"dim": part.dim, "parts": local_parts(state, axis, axes), "of": part.parts}

    def gather(axis: str, form: Form) -> None:
        at = where(axis)
        size = shape[at["dim"]]
        for other, part in state.items():
            if other != axis and isinstance(part, Part) and part.dim == at["dim"]:
                size //= axes[other]
        step(form, axis, None, **at, size=size)

    # The innermost first: what turns add up comes before the sum over devices.
    for axis in reversed(axes):
        if state.get(axis) == "partial":
            wanted = after.get(axis)
            if isinstance(wanted, Part) and nests({**state, axis: wanted}, axes):
                state[axis] = wanted
                step("scatter", axis, wanted, **where(axis))
            else:
                step("sum", axis, None)
    moved = {axis for axis in axes if isinstance(state.get(axis), Part) and state[axis] != after.get(axis)}
    # The innermost first, so that what is put together lies side by side.
    for axis in sorted(moved, key=lambda axis: -state[axis].parts):  # type: ignore[union-attr]
        wanted = after.get(axis)
        here = state[axis]
        assert isinstance(here, Part)
        if isinstance(wanted, Part) and wanted.dim != here.dim and nests({**state, axis: wanted}, axes):
            source = where(axis)
            state[axis] = wanted
            step("exchange", axis, wanted, source=source, target=where(axis))
        # Where a cut that is still there is in the way, the value is put together now and cut again at the end.
        elif wanted is None and axis in entered:
            gather(axis, "gather_entered")
        else:
            gather(axis, "gather")
    cut = [(axis, wanted) for axis, wanted in after.items() if isinstance(wanted, Part) and axis not in state]
    for axis, wanted in sorted(cut, key=lambda pair: pair[1].parts):
        state[axis] = wanted
        step("slice", axis, wanted, **where(axis))
    gathered = {found_step.axis for found_step in found if found_step.form == "gather_entered"}
    for axis in axes:
        if axis in entered and axis not in gathered:
            step("enter", axis, None)
    assert state == dict(after), (before, after, state)
    return found
