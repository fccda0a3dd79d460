"""The form of a profile's file, and rows that can't be: every one is named by file, row, field and value.

A profile is a JSON object: the device, ``micro`` tables of single kernels (each row a list, its meaning by the names in
``columns``), ``blocks`` and ``collectives``, whose rows are objects. Units are in names. A time that is zero, negative,
NaN or infinite is refused; so is one that would need more than the device's peak. One that comes to less than a five
hundredth of the peak is suspicious: its unit is likely to be wrong, and no plan is made from it either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
# Times are checked row by row, so that the message names all that are wrong.
Number = float
# Below: so large a kernel isn't bound by its launch.
LARGE_FLOPS = 1e11
SUSPICIOUS = 1 / 500


class Strict(BaseModel):
    """A part of a file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BlockRow(Strict):
    """One block at one micro-batch on one device of a tensor-parallel group of ``tp``, without communication.

    ``flops`` are those of the forward pass. Seconds may stand in place of milliseconds. ``spread``: half the range of
    the middle half of the runs, as a part of the median. ``resolution`` to ``res`` are sizes of other kinds.
    """

    block: str
    model: str | None = None
    signature: str = ""
    hidden: Count | None = None
    heads: Count | None = None
    seq: Count | None = None
    tp: Count = 1
    micro_batch: Count = 1
    fwd_ms: Number | None = None
    bwd_ms: Number | None = None
    fwd_seconds: Number | None = None
    bwd_seconds: Number | None = None
    flops: Number | None = None
    activation_bytes: Number | None = None
    fwd_peak_bytes: Number | None = None
    params: Annotated[int, Field(ge=0)] | None = None
    spread: Number | None = None
    resolution: Count | None = None
    window: Count | None = None
    cm: Count | None = None
    cz: Count | None = None
    msa: Count | None = None
    res: Count | None = None

    @property
    def forward_flops(self) -> float | None:
        """As the row says, or at least 2 for each parameter and token, where it has both."""
        if self.flops is not None:
            return self.flops
        return 2.0 * self.params * self.seq * self.micro_batch if self.params and self.seq else None


class CollectiveRow(Strict):
    """One collective between ``devices`` processes, of a tensor of ``bytes`` on each."""

    op: str
    devices: Annotated[int, Field(ge=2)]
    bytes: Count
    ms: Number
    crosses_nodes: bool = False


class ProfileFile(Strict):
    """The whole file. ``threads``: of a process on the host that was measured."""

    device: Annotated[str, Field(min_length=1)]
    blocks: list[BlockRow] = []
    micro: dict[str, list[list[float | str]]] = {}
    columns: dict[str, list[str]] = {}
    collectives: list[CollectiveRow] = []
    precision: str = "bf16"
    total_memory_bytes: Count | None = None
    threads: Annotated[int, Field(ge=0)] = 0
    torch: str | None = None
    cuda: str | None = None
    measured: str | None = None
    method: str | None = None
    complete: bool = True
    version: int = 1


@dataclass(frozen=True)
class Finding:
    """One value that can't be: ``row`` counts from 0."""

    row: str
    field: str
    value: object
    wrong: str
    suspicious: bool = False

    def __str__(self) -> str:
        return f"{self.row}, {self.field} = {self.value}: {self.wrong}"


def find_block_rows(rows: Sequence[BlockRow], peak_flops: float | None) -> Iterator[Finding]:
    """What is wrong with blocks' rows, one finding a row at most; ``peak_flops`` where the device is known."""
    for index, row in enumerate(rows):
        found = _block_row(f"blocks[{index}]", row, peak_flops)
        if found is not None:
            yield found


def _block_row(where: str, row: BlockRow, peak: float | None) -> Finding | None:
    both = [("fwd_ms", "fwd_seconds", 1), ("bwd_ms", "bwd_seconds", 2)]
    for ms, seconds, passes in both:
        given = [(n, getattr(row, n), s) for n, s in ((ms, 1e-3), (seconds, 1.0)) if getattr(row, n) is not None]
        if len(given) == 2:
            return Finding(where, ms, given[0][1], f"{seconds} = {given[1][1]} says the same once more; leave out one")
        if not given:
            if ms == "bwd_ms":
                continue
            return Finding(where, ms, None, f"a row needs {ms} or {seconds}")
        (name, value, unit) = given[0]
        flops = None if row.forward_flops is None else row.forward_flops * passes
        if (found := time_finding(where, name, value, value * unit, flops, peak)) is not None:
            return found
    for name in ("activation_bytes", "fwd_peak_bytes", "flops", "spread"):
        value = getattr(row, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            return Finding(where, name, value, "a finite number that isn't negative works")
    return None


def time_finding(
    where: str, name: str, value: float, seconds: float, flops: float | None, peak: float | None
) -> Finding | None:
    """What is wrong with a time in which so many FLOPs are said to be done. No work in no time is right."""
    if not math.isfinite(seconds):
        return Finding(where, name, value, "a finite time works")
    if seconds < 0 or (seconds == 0 and flops != 0):
        return Finding(where, name, value, "a time must be positive")
    if not flops or peak is None or seconds == 0:
        return None
    rate = flops / seconds
    if rate > peak:
        return Finding(
            where, name, value,
            f"{flops:.3g} FLOPs in it are {rate / 1e12:.4g} TFLOP/s, more than the device's peak of {peak / 1e12:.4g}",
        )  # fmt: skip
    if rate < SUSPICIOUS * peak and flops >= LARGE_FLOPS:
        word = f"were {value:g} ms meant?" if name.endswith("_seconds") else "a unit may be wrong"
        return Finding(
            where, name, value,
            f"suspicious: {flops:.3g} FLOPs in it are {rate / 1e12:.3g} TFLOP/s, {rate / peak:.2%} of the device's "
            f"peak; 1000 times as fast would be usual: {word}", suspicious=True,
        )  # fmt: skip
    return None


def find_micro_rows(file: ProfileFile, peak_flops: float | None) -> Iterator[Finding]:
    """What is wrong with the rows of single kernels."""
    for table, rows in file.micro.items():
        for index, row in enumerate(rows):
            where = f"micro.{table}[{index}]"
            numbers = [value for value in row if not isinstance(value, str)]
            if not numbers:
                yield Finding(where, "row", row, "it has no numbers")
                continue
            bad = next((value for value in numbers if not (math.isfinite(value) and value > 0)), None)
            if bad is not None:
                names = file.columns.get(table, [])
                at = row.index(bad)
                yield Finding(where, names[at] if at < len(names) else f"column {at}", bad, "a positive number works")
            elif table.startswith("gemm_bf16") and len(numbers) == 4:
                flops = 2 * math.prod(numbers[:3])
                found = time_finding(where, "ms", numbers[3], numbers[3] * 1e-3, flops, peak_flops)
                if found is not None:
                    yield found


def find_collective_rows(rows: Sequence[CollectiveRow]) -> Iterator[Finding]:
    """What is wrong with the rows of collectives."""
    for index, row in enumerate(rows):
        if not (math.isfinite(row.ms) and row.ms > 0):
            yield Finding(f"collectives[{index}]", "ms", row.ms, "a positive, finite time works")
