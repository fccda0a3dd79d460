"""All-reduces between processes of this machine, timed on every rank.

The median over repeats of the slowest rank; gloo on a host, NCCL between GPUs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from partita.errors import PartitaError
from partita.files import write_text
from partita.launch import run_forked

SIZES = (2**10, 2**14, 2**18, 2**21, 2**24)
WARM_UP, REPEATS = 3, 9


def measure_collectives(devices: int, device: str) -> list[dict[str, Any]]:
    """Rows of a profile for groups of 2, 4 … devices and of all."""
    groups = sorted({2**k for k in range(1, devices.bit_length()) if 2**k <= devices} | {devices})
    rows: list[dict[str, Any]] = []
    for group in groups:
        with tempfile.TemporaryDirectory(prefix="partita-") as folder:
            path = Path(folder, "rows.json")
            environment = {**os.environ, "OMP_NUM_THREADS": "1"} if device == "cpu" else dict(os.environ)
            if run_forked("partita.adapters.profile.collectives", [str(path), device], group, environment):
                raise PartitaError(f"all-reduces between {group} processes failed: see the lines above")
            rows += json.loads(path.read_text())
    return rows


def begin(words: Sequence[str]) -> Callable[[], None]:
    """For ``run_forked``. The words: the file that rank 0 writes, and cpu or cuda."""
    import torch.distributed  # noqa: F401

    return partial(measure, *words)


def measure(path: str, kind: str) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    rows = []
    for size_bytes in SIZES:
        tensor = torch.zeros(size_bytes // 4, device=device)
        times = []
        for _ in range(WARM_UP + REPEATS):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if kind == "cuda":
                torch.cuda.synchronize()
            taken = torch.tensor([time.perf_counter() - start], device=device)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            times.append(taken.item())
        ms = median(times[WARM_UP:]) * 1e3
        rows.append({"op": "all_reduce", "devices": size, "bytes": size_bytes, "ms": float(f"{ms:.5g}")})
    if rank == 0:
        write_text(path, json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    begin(sys.argv[1:])()
