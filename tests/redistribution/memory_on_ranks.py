"""The memory of a process while it redistributes, as the system counts it."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from partita.adapters.torch.redistribute.execute import execute
from partita.redistribution import ArrayType, Step
from partita.redistribution.search import redistribution
from partita.redistribution.steps import all_to_all, direct

MIB = 2**20


def resident_bytes(which: str) -> int:
    """``VmRSS``: what this process has in memory now; ``VmHWM``: the most that it had."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def beyond_source(source: ArrayType, target: ArrayType, steps: Sequence[Step] | None) -> tuple[int, int, int]:
    """Bytes that this rank holds before and after, and the most that it needed beside its source. The values are
    checked: each element is the number of its row, each part of a sum has its share of it."""
    rank = dist.get_rank()
    if steps is None:
        steps = [priced.step for priced in redistribution(source, target, 4).steps]
    parts = int(source.parts.max()) + 1
    tensor = torch.empty(0)
    if rank in source.mesh.place:
        tensor = rows(source, rank) / parts
    # The first messages between two ranks connect them.
    dist.barrier()
    gc.collect()
    # Begins to count anew what VmHWM says.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    found = execute(steps, source, target, tensor)
    peak = resident_bytes("VmHWM") - before
    if found is not None:
        assert torch.equal(found, rows(target, rank))
    sizes = [0 if one is None else one.numel() * 4 for one in (tensor, found)]
    return sizes[0], sizes[1], peak


def rows(kind: ArrayType, rank: int) -> torch.Tensor:
    """An array in which each element is the number of its row, rounded to what can be divided exactly."""
    (start, stop), *_ = kind.boxes[kind.mesh.place[rank]].tolist()
    shape = kind.local_shape(kind.mesh.place[rank])
    numbers = torch.arange(start, stop, dtype=torch.float32) % 1024
    return numbers.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)


def several_steps(source: ArrayType, target: ArrayType) -> tuple[int, int, int]:
    """x.y,- → x,y → -,y.x → the target: each array between is as large as the source."""
    first = all_to_all(source, 0, 1)
    second = all_to_all(first.after, 0, 1)
    return beyond_source(source, target, [first, second, direct(second.after, target)])
