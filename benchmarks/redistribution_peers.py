"""Bytes of redistributions beside DTensor's planners, XLA's choice and the lower bound, on the same pairs of layouts.

    python benchmarks/redistribution_peers.py --pairs 5458 --any-order 2000 --xla 5458

DTensor's planners are those of the installed torch, XLA's choice is read out of compiled programs, and is left out
where jax isn't installed. Which pairs there are: peers/pairs.py. Bytes are those of the device that sends or receives
most over all steps, and ratios are geometric means over the pairs in which something has to move. Memory is the largest
array of a device in between, against the larger of the two that it has before and after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean

from machine import machine
from peers.pairs import ITEM_BYTES, Pair, all_pairs, drawn

from partita.cluster import parse_cluster
from partita.redistribution import ArrayType, Layout, Mesh
from partita.redistribution.peers import peers
from partita.redistribution.search import redistribution

XLA = Path(__file__).parent / "peers" / "xla.py"
CLUSTER = parse_cluster("1x8xh100-80gb")


@dataclass(frozen=True)
class Cost:
    """Bytes of the busiest device, and the largest array of one."""

    moved: int
    largest: int


@dataclass(frozen=True)
class Row:
    """A pair, the least bytes that any way has, the memory that its two ends need, and what everybody's way costs."""

    pair: Pair
    bound: int
    memory: int
    costs: dict[str, Cost]


def compared(pair: Pair) -> Row:
    """Partita, gather-then-slice and DTensor."""
    mesh = Mesh.parse(pair.mesh)
    source, target = (ArrayType(pair.shape, Layout.parse(text), mesh) for text in (pair.source, pair.target))
    ours = redistribution(source, target, ITEM_BYTES, CLUSTER, objective="bytes")
    costs = {"Partita": Cost(ours.bytes_per_device, ours.peak_bytes)}
    for peer in peers(source, target, ITEM_BYTES, CLUSTER):
        costs[peer.name] = Cost(peer.bytes_per_device, peer.peak_bytes)
    return Row(pair, ours.lower_bound_bytes, max(source.largest, target.largest) * ITEM_BYTES, costs)


def with_xla(rows: list[Row]) -> list[Row]:
    """The same rows with XLA's costs, which a process without torch finds out; as they are where there is no jax."""
    if find_spec("jax") is None:
        print("XLA is left out: jax isn't installed (pip install 'partita[bench]').")
        return rows
    questions = "".join(json.dumps(asdict(row.pair)) + "\n" for row in rows)
    done = subprocess.run([sys.executable, str(XLA)], input=questions, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"XLA's part failed:\n{done.stderr}")
    first, *lines = map(json.loads, done.stdout.splitlines())
    name = f"XLA ({first['version']})"
    costs = [{name: Cost(found["bytes"], found["largest_bytes"])} for found in lines]
    return [replace(row, costs=row.costs | more) for row, more in zip(rows, costs, strict=True)]


def table(rows: list[Row]) -> None:
    """One line for each who has an answer to every pair, the worst of their pairs, and who has none to some."""
    moving = [row for row in rows if row.bound]
    # Whoever has fewer bytes than any way can have has been counted wrong.
    assert all(cost.moved >= row.bound for row in rows for cost in row.costs.values())
    answers = Counter(name for row in rows for name in row.costs)
    names = [name for name, count in answers.items() if count == len(rows)]
    print(f"{len(rows):,} pairs; in {len(rows) - len(moving):,} of them nothing has to move.")
    print(f"{'':24}{'÷ Partita':>12}{'÷ bound':>10}{'worst':>8}{'at the bound':>14}{'fewer than Partita':>20}"
          f"{'memory exceeded':>17}{'moves for nothing':>19}")  # fmt: skip
    worst: dict[str, Row] = {}
    for name in names:
        ratios = [row.costs[name].moved / row.bound for row in moving]
        worst[name] = moving[ratios.index(max(ratios))]
        print(
            f"{name:24}"
            f"{geometric_mean(row.costs[name].moved / row.costs['Partita'].moved for row in moving):12.3f}"
            f"{geometric_mean(ratios):10.3f}{max(ratios):8.2f}"
            f"{_share(row.costs[name].moved == row.bound for row in moving):>14}"
            f"{sum(row.costs[name].moved < row.costs['Partita'].moved for row in rows):20,}"
            f"{_share(row.costs[name].largest > row.memory for row in rows):>17}"
            f"{sum(row.costs[name].moved > 0 for row in rows if not row.bound):19,}"
        )
    for name, row in worst.items():
        if row.costs[name].moved > row.bound:
            pair = row.pair
            print(f"  worst of {name}: {pair.mesh}, {list(pair.shape)}, {pair.source} → {pair.target}", end="")
            print(f": {row.costs[name].moved / 2**20:.1f} MiB, bound {row.bound / 2**20:.1f} MiB")
    for name, count in answers.items():
        if name not in names:
            print(f"  {name} can't state {len(rows) - count:,} of them.")


def _share(truths: Iterable[bool]) -> str:
    found = list(truths)
    return f"{sum(found) / len(found):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000, help="of layouts in mesh order")
    parser.add_argument("--any-order", type=int, default=500, help="pairs of layouts in any order")
    parser.add_argument("--xla", type=int, default=500, help="how many of each family XLA compiles")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(machine())
    for title, any_order, count in (("in mesh order", False, given.pairs), ("in any order", True, given.any_order)):
        start = time.perf_counter()
        rows = [compared(pair) for pair in drawn(count, given.seed, any_order)]
        print(f"\nLayouts {title}: of {sum(1 for _ in all_pairs(any_order)):,} pairs, seed {given.seed}")
        if given.xla < len(rows):
            table(rows)
            print("\nOf these, what XLA was asked for:")
        table(with_xla(rows[: given.xla]))
        print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
