"""Compare what each device has with the same part of what one device computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from partita.adapters.torch.weights import cut
from partita.adapters.verify.one_device import Training
from partita.adapters.verify.rehearsal import Rehearsal
from partita.spacetime.program import Program, Shard

# What float64 sums in another order differ by, and far below what any mistake makes.
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Error:
    """How far a device's part of a gradient or parameter is off. ``place`` are the intervals of that part."""

    what: str
    step: int
    name: str
    device: int
    stage: int
    place: str
    error: float
    ratio: float | None
    wrong: bool


@dataclass(frozen=True)
class Errors:
    """The largest differences, and every part with its own."""

    loss: float
    loss_wrong: bool
    parts: tuple[Error, ...]
    missing: tuple[str, ...]

    def largest(self, what: str) -> float:
        """Of ``gradient`` or ``parameter``."""
        return max((part.error for part in self.parts if part.what == what), default=0.0)

    @property
    def equal(self) -> bool:
        return not self.loss_wrong and not self.missing and not any(part.wrong for part in self.parts)


def compare(program: Program, found: Rehearsal, wanted: Training) -> Errors:
    """All differences. Nothing that one device trains may be missing on the devices."""
    loss, loss_wrong = 0.0, False
    for held in found.held.values():
        for mine, other in zip(held.losses, wanted.losses, strict=True):
            error = _or_infinite(abs(mine - other))
            loss, loss_wrong = max(loss, error), loss_wrong or error > TOLERANCE * max(1.0, abs(other))
    parts = tuple(_parts(program, found, wanted))
    covered: dict[tuple[str, str, int], set[tuple[int, int]]] = {}
    for part in parts:
        shard = program.pieces[part.stage].parameters[part.name]
        own = 0 if shard is None else program.coordinates(part.device, part.stage)[shard.axis]
        pieces = covered.setdefault((part.what, part.name, part.step), set())
        pieces.add((own, 1 if shard is None else shard.pieces))
    steps = range(len(wanted.losses))
    needed = [("gradient", step) for step in steps] + [("parameter", steps[-1])]
    missing = tuple(
        name
        for name in wanted.parameters
        if not all(_whole(covered.get((what, name, step), set())) for what, step in needed)
    )
    return Errors(loss, loss_wrong, parts, missing)


def _whole(pieces: set[tuple[int, int]]) -> bool:
    counts = {count for _, count in pieces}
    return any({own for own, count in pieces if count == n} == set(range(n)) for n in counts)


def _parts(program: Program, found: Rehearsal, wanted: Training) -> Iterator[Error]:
    for device, held in found.held.items():
        for stage, steps in held.gradients.items():
            for step, gradients in enumerate(steps):
                for name, value in gradients.items():
                    yield _error("gradient", program, device, stage, step, name, value, wanted.gradients[step][name])
        last = len(wanted.losses) - 1
        for stage in held.parameters:
            for name, value in (held.parameters[stage] | held.copies[stage]).items():
                if name in wanted.parameters:
                    other = wanted.parameters[name]
                    yield _error("parameter", program, device, stage, last, name, value, other)


def _error(
    what: str, program: Program, device: int, stage: int, step: int, name: str, value: Tensor, dense: Tensor
) -> Error:
    shard = program.pieces[stage].parameters[name]
    own = 0 if shard is None else program.coordinates(device, stage)[shard.axis]
    wanted = cut(dense, shard, own)
    if wanted.shape != value.shape:
        return Error(what, step, name, device, stage, _place(dense, shard, own), math.inf, None, True)
    error = distance(value, wanted)
    # Judged against the whole tensor: rounding is as large as what is added up.
    wrong = error > TOLERANCE * max(1.0, float(dense.abs().max()) if dense.numel() else 0.0)
    ratio = factor(value, wanted) if wrong else None
    return Error(what, step, name, device, stage, _place(dense, shard, own), error, ratio, wrong)


def distance(value: Tensor, wanted: Tensor) -> float:
    """The largest difference of two tensors of one shape; infinite where either is no number and the other is not."""
    if not value.numel():
        return 0.0
    if value.dtype == torch.bool or not value.is_floating_point():
        return 0.0 if torch.equal(value, wanted) else float((value.double() - wanted.double()).abs().max())
    same = (value == wanted) | (value.isnan() & wanted.isnan())
    return _or_infinite(float(torch.where(same, 0.0, (value - wanted).abs().double()).max()))


def factor(value: Tensor, wanted: Tensor) -> float | None:
    """The number by which all of a tensor is too large, where there is one."""
    value, wanted = value.double(), wanted.double()
    square = float((wanted * wanted).sum())
    if not square:
        return None
    ratio = float((value * wanted).sum()) / square
    rest = float((value - ratio * wanted).abs().max())
    return ratio if ratio and rest <= 1e-8 * abs(ratio) * float(wanted.abs().max()) else None


def _or_infinite(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _place(dense: Tensor, shard: Shard | None, own: int) -> str:
    """The part of a parameter in words: ``[0, 8) × [4, 8)``."""
    words = [f"[0, {size})" for size in dense.shape]
    if shard is not None:
        words[shard.dim] = " and ".join(f"[{start}, {stop})" for start, stop in shard.intervals(own))
    return " × ".join(words) or "the scalar"
