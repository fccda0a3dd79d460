"""From a profile's file to what costs take: rows are checked, grouped by block and sorted; kernels become rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import ceil, log2
from pathlib import Path
from statistics import median

from pydantic import TypeAdapter

from partita.cluster.model import Link
from partita.errors import InputError
from partita.files import parse_json
from partita.profile.measured import BlockShape, Measured, MeasuredBlock, Sample
from partita.profile.rates import Rates, Shaped, bandwidth, work_seconds
from partita.profile.rows import (
    BlockRow,
    CollectiveRow,
    Finding,
    ProfileFile,
    find_block_rows,
    find_collective_rows,
    find_micro_rows,
)

# How many findings a message lists.
LISTED = 20
PASSES = ("forward_seconds", "backward_seconds")
# Of a time in proportion to the micro-batch the part that has to be reached; and how many such pairs make a median.
GROWS, ENOUGH = 0.8, 5


def read_profile(path: str | Path) -> ProfileFile:
    """The file, if every row can be; InputError with file, row, field and value of each that can't."""
    return require_rows(parse_profile(path), path, None)


def parse_profile(path: str | Path) -> ProfileFile:
    """The file by its form alone; InputError for a wrong form, and for no rows at all."""
    file = parse_json(path, TypeAdapter(ProfileFile))
    if not file.blocks and not file.micro and not file.collectives:
        raise InputError(f"{path}: the profile is empty: it has no blocks, no micro tables and no collectives")
    return file


def require_rows(file: ProfileFile, path: str | Path, peak_flops: float | None) -> ProfileFile:
    """The file itself; InputError for rows that can't be, on a device of that peak where it is known."""
    found = list(findings(file, peak_flops))
    if found:
        rows = len(file.blocks) + sum(map(len, file.micro.values())) + len(file.collectives)
        lines = [f"{path}: {finding}" for finding in found[:LISTED]]
        more = f"\n… and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise InputError(
            f"{path}: {len(found)} of {rows} rows can't be, and no plan is made from them:\n" + "\n".join(lines) + more
        )
    return file


def findings(file: ProfileFile, peak_flops: float | None) -> Iterator[Finding]:
    """All that is wrong with the file's rows."""
    yield from find_block_rows(file.blocks, peak_flops)
    yield from find_micro_rows(file, peak_flops)
    yield from find_collective_rows(file.collectives)


def measured(file: ProfileFile, source: str) -> Measured:
    """The file for costs. Rows without a backward time, kept bytes or parameters stand for no block."""
    rates, least = _rates(file)
    blocks = _blocks(file.blocks, source)
    # On a host that is the device too, nothing is ahead of anything.
    forward, backward = (
        0.0 if file.threads else _start(blocks, name, bound) for name, bound in zip(PASSES, least, strict=True)
    )
    return Measured(f"{source} ({file.device})", blocks, rates, forward, backward, file.threads)


def _start(blocks: Sequence[MeasuredBlock], name: str, least: float) -> float:
    """Half way between two bounds: ``least``, what a single kernel waits, and what of blocks doesn't grow with the
    micro-batch (the median over those of which nearly all does), in which every kernel's own beginning and end is, too.

    Time that a host takes for each op, where it binds, isn't among them: there the time doesn't grow.
    """
    found = []
    for block in blocks:
        for a, b in pairwise(block.samples):
            first, second, more = getattr(a, name), getattr(b, name), b.micro_batch / a.micro_batch
            if second >= GROWS * more * first:
                found.append((first * more - second) / (more - 1))
    most = max(median(found), least) if len(found) >= ENOUGH else least
    return (least + most) / 2


def _blocks(rows: Sequence[BlockRow], source: str) -> tuple[MeasuredBlock, ...]:
    groups: dict[BlockShape, dict[int, Sample]] = {}
    for index, row in enumerate(rows):
        forward, backward = _seconds(row.fwd_ms, row.fwd_seconds), _seconds(row.bwd_ms, row.bwd_seconds)
        kept, named = row.activation_bytes, row.signature or (row.hidden and row.seq)
        if forward is None or backward is None or kept is None or row.params is None or not named:
            continue
        sizes = row.hidden or 0, row.heads or 0, row.seq or 0, row.tp, row.params
        samples = groups.setdefault(BlockShape(row.block, row.signature, *sizes), {})
        if row.micro_batch in samples:
            raise InputError(
                f"{source}: blocks[{index}], micro_batch = {row.micro_batch}: the same block was measured before"
            )
        samples[row.micro_batch] = Sample(row.micro_batch, forward, backward, kept)
    return tuple(MeasuredBlock(shape, tuple(sorted(samples.values()))) for shape, samples in groups.items())


def _seconds(ms: float | None, seconds: float | None) -> float | None:
    return seconds if ms is None else ms * 1e-3


def _table(file: ProfileFile, name: str) -> list[tuple[float, ...]]:
    return [tuple(float(value) for value in row if not isinstance(value, str)) for row in file.micro.get(name, [])]


def _named(file: ProfileFile, table: str, name: str) -> list[tuple[float, float]]:
    """(size, seconds) of the rows of a table that begin with a word."""
    return [(float(row[1]), float(row[2]) * 1e-3) for row in file.micro.get(table, []) if row[0] == name]


def _rates(file: ProfileFile) -> tuple[Rates | None, tuple[float, float]]:
    """Rates, and the starts of a forward and a backward pass; no rates where products or attention are missing."""
    products, attention = _table(file, "gemm_bf16"), _table(file, "sdpa_bf16_causal")
    gelu, add = _named(file, "pointwise", "gelu_bf16"), _named(file, "pointwise", "add_bf16")
    if not products or not attention or not gelu:
        return None, (0.0, 0.0)
    # The least of all is a kernel that has nothing to do; a backward pass goes through autograd's own thread first.
    forward_least, backward_least = min(row[4] for row in attention) * 1e-3, min(row[5] for row in attention) * 1e-3
    start = min(seconds for _, seconds in [*gelu, *add])
    start_backward = max(backward_least - forward_least, start)
    norms = [(4 * rows * columns, ms * 1e-3) for rows, columns, ms in _table(file, "layernorm_bf16")]
    softmax = [(4 * rows * columns, ms * 1e-3) for rows, columns, ms in _table(file, "softmax_bf16")]
    pointwise = bandwidth([(4 * size, work_seconds(seconds, start)) for size, seconds in gelu])
    assert pointwise is not None
    rates = Rates(
        products=tuple(
            Shaped((m, k, n), 2 * m * k * n / work_seconds(ms * 1e-3, start)) for m, k, n, ms in products
        ),
        attention_forward=tuple(
            Shaped((b * h, s, d), 2 * b * h * s * s * d / work_seconds(ms * 1e-3, forward_least))
            for b, h, s, d, ms, _ in attention
        ),
        attention_backward=tuple(
            Shaped((b * h, s, d), 5 * b * h * s * s * d / work_seconds(ms * 1e-3, backward_least))
            for b, h, s, d, _, ms in attention
        ),
        pointwise_bytes_per_second=pointwise,
        norm_bytes_per_second=bandwidth(norms) or pointwise,
        softmax_bytes_per_second=bandwidth(softmax) or pointwise,
        adam=tuple(sorted((count, ms * 1e-3) for count, ms in _table(file, "adam_fused_fp32"))),
    )  # fmt: skip
    return rates, (start, start_backward)


def collective_link(file: ProfileFile, crosses_nodes: bool, slowdown: Callable[[float], float]) -> Link | None:
    """The link by which all-reduces, as ``cost.collective`` prices them, take what was measured; None: nothing was.

    The largest message says how many bytes a second, the smallest what latency is left. ``slowdown`` is what so many
    processes that share cores take longer, which costs count by themselves.
    """
    rows = [row for row in file.collectives if row.op == "all_reduce" and row.crosses_nodes == crosses_nodes]
    if not rows:
        return None

    def sent(row: CollectiveRow) -> float:
        return 2 * (row.devices - 1) / row.devices * row.bytes

    def seconds(row: CollectiveRow) -> float:
        return row.ms * 1e-3 / slowdown(row.devices)

    large, small = max(rows, key=sent), min(rows, key=sent)
    per_byte = seconds(large) / sent(large)
    if seconds(large) > seconds(small):
        per_byte = (seconds(large) - seconds(small)) / (sent(large) - sent(small))
    hops = 2 * ceil(log2(small.devices))
    return Link(1 / per_byte, max(0.0, seconds(small) - sent(small) * per_byte) / hops)
