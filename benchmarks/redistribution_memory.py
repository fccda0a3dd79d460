"""The memory that a process needs to redistribute arrays of a GiB: what it holds before and after, and 64 MiB.

    python benchmarks/redistribution_memory.py

Four processes over gloo, of which two or four hold the array; the memory is the system's own count (VmHWM), of the
process that needs most beyond what it holds. The seconds are those of all of it: arrays are made, moved and checked.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import machine  # noqa: E402

from partita.redistribution import ArrayType, Layout, Mesh  # noqa: E402
from partita.redistribution.search import redistribution  # noqa: E402
from tests.ranks.pool import Pool  # noqa: E402
from tests.redistribution.memory_on_ranks import MIB, beyond_source  # noqa: E402

SQUARE = Mesh.of(x=2, y=2)
PAIR = Mesh.of(x=2)
# What a process holds before or after is a GiB of float32 at most.
CASES = [
    ("cut along another dim", (32768, 16384), PAIR, "x,-", PAIR, "-,x"),
    ("one dim, two axes in another order", (2**29 - 1,), SQUARE, "x.y", SQUARE, "y.x"),
    ("cut by two axes, elsewhere", (32768, 32768), SQUARE, "x.y,-", SQUARE, "-,y.x"),
    ("uneven", (32767, 16383), PAIR, "x,-", PAIR, "-,x"),
    ("gathered", (16384, 16384), SQUARE, "x.y,-", SQUARE, "-,-"),
    ("gathered along the inner dim", (16384, 16384), PAIR, "-,x", PAIR, "-,-"),
    ("a sum", (16384, 16384), PAIR, "-,-+x", PAIR, "-,-"),
    ("a sum, cut", (16384, 16384), SQUARE, "-,-+x.y", SQUARE, "y,x"),
    ("to other ranks", (16384, 16384), PAIR, "x,-", Mesh.of([2, 3], z=2), "-,-"),
]


def main() -> None:
    print(machine())
    print(f"{'':36} {'steps':31} {'before':>7} {'after':>7} {'needed':>7} {'beyond both':>12} {'seconds':>8}   MiB")
    pool = Pool(4)
    try:
        for name, shape, here, source, there, target in CASES:
            types = ArrayType(shape, Layout.parse(source), here), ArrayType(shape, Layout.parse(target), there)
            steps = [priced.step.op for priced in redistribution(*types, 4).steps]
            start = time.perf_counter()
            found = pool.run(beyond_source, 4, *types, None, timeout=300)
            seconds = time.perf_counter() - start
            before, after, needed = (size / MIB for size in max(found, key=lambda row: row[2] - row[1]))
            figures = f"{before:7.0f} {after:7.0f} {before + needed:7.0f} {needed - after:12.1f} {seconds:8.1f}"
            print(f"{name:36} {', '.join(steps) or 'none':31} {figures}", flush=True)
    finally:
        pool.close()


if __name__ == "__main__":
    main()
