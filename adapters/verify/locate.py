"""Where a program first computes something else: op by op, the values on the devices beside those of one device.

Values are looked at in the order of the model's ops, micro-batch by micro-batch; where no op of a forward pass differs,
gradients are, from the last parameter backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.execute import Call, Context
from partita.adapters.torch.stage import StageModule
from partita.adapters.verify.compare import TOLERANCE, Errors, distance
from partita.adapters.verify.parts import followed, inner_axes, part_of, taken
from partita.graph import Graph
from partita.spacetime.program import COLLECTIVES, LocalOp, Program


@dataclass(frozen=True)
class Difference:
    """The first thing that is not equal. ``op`` names an op, ``parameter`` a parameter of which ``what`` differs;
    ``place`` are the intervals that the device has, ``ratio`` what all of it is to what it should be, if one number."""

    what: str
    op: str | None
    parameter: str | None
    device: int
    step: int
    micro_batch: int | None
    place: str
    error: float
    ratio: float | None = None

    def __str__(self) -> str:
        about = f'op "{self.op}"' if self.op is not None else f'the {self.what} of "{self.parameter}"'
        when = f"step {self.step + 1}" + (f", micro-batch {self.micro_batch}" if self.micro_batch is not None else "")
        scaled = f": {self.ratio:.6g} times what it should be" if self.ratio is not None else ""
        return f"{about} on device {self.device}, {self.place} ({when}): off by {self.error:.3g}{scaled}"


@dataclass(frozen=True)
class Seen:
    """What an op made on a device, for a micro-batch of the global batch."""

    local: LocalOp
    device: int
    stage: int
    micro: int
    values: tuple[Tensor, ...]


class Watch:
    """Keeps what the ops of a program make in its first step, as far as that is not a partial sum."""

    def __init__(self, program: Program, before: Callable[[int, Mapping[int, StageModule]], None] | None = None):
        self.program, self.before = program, before
        self.seen: list[Seen] = []

    def __call__(self, device: int, stages: Mapping[int, StageModule]) -> None:
        if self.before is not None:
            self.before(device, stages)
        for number, stage in stages.items():
            for ops in stage.code.ops.values():
                for place, (local, call, over) in enumerate(ops):
                    ops[place] = (local, self._watched(local, call, device, number), over)

    def _watched(self, local: LocalOp, call: Call, device: int, stage: int) -> Call:
        def watched(tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
            results = call(tensors, context)
            _, step, micro = context.key
            if step == 0:
                values = tuple(value.detach().clone() for value in results)
                self.seen.append(Seen(local, device, stage, micro, values))
            return results

        return watched


def first_op(graphs: Sequence[Graph], program: Program, found: Watch, wanted: Mapping[int, Watch]) -> Difference | None:
    """The first op of the model whose values differ, of the first micro-batch in which that is so.

    ``graphs`` are by stage, ``wanted`` by the samples of a micro-batch.
    """
    dense: dict[tuple[int, str, int], Tensor] = {}
    for samples, watch in wanted.items():
        for seen in watch.seen:
            dense.update({(samples, n, seen.micro): v for n, v in zip(seen.local.op.outputs, seen.values, strict=True)})
    order = {name: index for index, name in enumerate(name for op in graphs[0].ops for name in op.outputs)}
    made = followed(graphs, program)

    def when(seen: Seen) -> tuple[Any, ...]:
        return seen.micro * program.shares[seen.stage].samples, min(
            order.get(_plain(name), len(order)) for name in seen.local.op.outputs
        )

    for seen in sorted(found.seen, key=when):
        axes, at = inner_axes(program, seen.stage), program.coordinates(seen.device, seen.stage)
        known = made[seen.stage].get(seen.local.op.name, ()) if seen.local.form not in COLLECTIVES else ()
        for place, (name, value) in enumerate(zip(seen.local.op.outputs, seen.values, strict=True)):
            other = dense.get((program.shares[seen.stage].samples, _plain(name), seen.micro))
            if other is None:
                continue
            part = taken(other, known[place].state, axes, at) if known else None
            if part is None or part[0].shape != value.shape:
                part = part_of(graphs[seen.stage], seen.local, _plain(name), value, other, axes, at)
            if part is None:
                return _differs(seen, f"{list(value.shape)} of {list(other.shape)}", float("inf"))
            error = distance(value, part[0])
            if error > TOLERANCE * max(1.0, _largest(other)):
                return _differs(seen, part[1], error)
    return None


def first_part(program: Program, errors: Errors, order: Mapping[str, int]) -> Difference | None:
    """The first gradient, else parameter, that differs: of the earliest step, and there of the last block."""
    wrong = [part for part in errors.parts if part.wrong]
    if not wrong:
        return None
    part = min(wrong, key=lambda p: (p.step, p.what != "gradient", -order.get(p.name, -1), p.device))
    return Difference(
        part.what, None, part.name, part.device, part.step, None, part.place, part.error, part.ratio
    )  # fmt: skip


def last_readers(graph: Graph) -> dict[str, int]:
    """For each parameter the place of the last op that reads it: where its gradient begins."""
    return {name: index for index, op in enumerate(graph.ops) for name in op.inputs}


def _differs(seen: Seen, place: str, error: float) -> Difference:
    return Difference("value", seen.local.op.name, None, seen.device, 0, seen.micro, place, error)


def _plain(name: str) -> str:
    """The model's name of a value of which a piece has parts. What stands between ops (partial sums, results of some
    of several collectives) keeps its own, which is none of the model's: the op that reads it shows what is wrong.
    """
    return name.removesuffix(".piece")


def _largest(value: Tensor) -> float:
    if not value.numel() or value.dtype == torch.bool:
        return 0.0
    return float(value.double().abs().nan_to_num(posinf=0.0, neginf=0.0).max())
