"""The search for redistributions: bytes against the bound, time on two tiers against simpler ways, and its own time.

``python benchmarks/redistribution_search.py [pairs on one tier] [pairs on two] [pairs a size]``
"""

from __future__ import annotations

import random
import sys
import time
from math import prod
from statistics import geometric_mean, median

from machine import machine

from partita.cluster import Cluster, Link, load_preset
from partita.redistribution import ArrayType, Layout, Mesh
from partita.redistribution.price import Network, load
from partita.redistribution.search import ALL, redistribution
from partita.redistribution.steps import direct

NEAR, FAR = Link(250e9, 5e-6), Link(25e9, 10e-6)


def random_mesh(draw: random.Random, devices: int) -> Mesh:
    """A mesh of that many devices, of one to four axes."""
    sizes = [1] * draw.randint(1, 4)
    left = devices
    while left > 1:
        factor = next(f for f in (2, 3, 5, 7, left) if left % f == 0)
        sizes[draw.randrange(len(sizes))] *= factor
        left //= factor
    kept = [size for size in sizes if size > 1] or [1]
    return Mesh(tuple(zip("abcd", kept, strict=False)), tuple(range(devices)))


def random_layout(draw: random.Random, mesh: Mesh, dims: int) -> Layout:
    """Each axis cuts a dim or none; axes of one dim in any order."""
    found: list[list[str]] = [[] for _ in range(dims)]
    for axis in draw.sample(list(mesh.sizes), len(mesh.sizes)):
        place = draw.randrange(dims + 1)
        if place < dims:
            found[place].append(axis)
    return Layout(tuple(map(tuple, found)))


def random_pair(draw: random.Random, mesh: Mesh, elements: int) -> tuple[ArrayType, ArrayType]:
    """Two types of an array whose dims every cut of the mesh divides, of about that many elements."""
    dims = draw.randint(1, 4)
    devices = len(mesh.devices)
    while devices**dims > elements and dims > 1:
        dims -= 1
    shape = [devices] * dims
    while prod(shape) * 2 <= elements:
        shape[draw.randrange(dims)] *= 2
    while True:
        one, two = (random_layout(draw, mesh, dims) for _ in range(2))
        if one != two:
            return ArrayType(tuple(shape), one, mesh), ArrayType(tuple(shape), two, mesh)


def cluster_of(nodes: int, devices: int) -> Cluster:
    return Cluster.of(f"{nodes}x{devices}", (devices,) * nodes, load_preset("h100-80gb").device(), NEAR, FAR)


def flat(count: int) -> None:
    """Bytes against the bound, on one tier."""
    draw = random.Random(1)
    equal, worst, spent = 0, 1.0, []
    for _ in range(count):
        mesh = random_mesh(draw, draw.choice((4, 6, 8, 12, 16, 32, 64)))
        source, target = random_pair(draw, mesh, 2 ** draw.randint(10, 24))
        began = time.process_time()
        found = redistribution(source, target, 2, objective="bytes")
        spent.append(time.process_time() - began)
        equal += found.bytes_per_device == found.lower_bound_bytes
        worst = max(worst, found.bytes_per_device / max(1, found.lower_bound_bytes))
        assert found.peak_bytes <= found.memory_bound_bytes
    print(f"one tier, {count:,} even pairs, 4 to 64 devices, fewest bytes: {equal / count:.2%} equal to the bound, "
          f"worst {worst:.2f} times it; {median(spent) * 1e3:.1f} ms a search")  # fmt: skip


def tiers(count: int) -> None:
    """Time on two tiers against one direct step and against collectives alone, by size of the whole array."""
    print(f"two tiers, n nodes x 8, {NEAR.bytes_per_second / FAR.bytes_per_second:.0f} times the bandwidth inside, "
          f"{count:,} even pairs, least time: how many times longer it takes (geometric mean)")  # fmt: skip
    head = ("array", "one direct step", "collectives alone", "and no permutation", "better than both", "ms a search")
    print("".join(f"{word:>19}" for word in head))
    every: list[tuple[float, float, float]] = []
    for low in (20, 23, 26, 29):
        draw = random.Random(low)
        rows, spent = [], []
        for _ in range(count // 4):
            nodes = draw.choice((2, 4, 8))
            cluster = cluster_of(nodes, 8)
            mesh = random_mesh(draw, 8 * nodes)
            source, target = random_pair(draw, mesh, 2 ** draw.randint(low, low + 3))
            began = time.process_time()
            found = redistribution(source, target, 2, cluster)
            spent.append(time.process_time() - began)
            assert found.peak_bytes <= found.memory_bound_bytes
            if found.seconds:
                once = load(direct(source, target, cluster.node_of), 2, Network.of(cluster)).seconds
                alone, fixed = (
                    redistribution(source, target, 2, cluster, allowed=ALL - without).seconds
                    for without in ({"direct"}, {"direct", "all-permute"})
                )
                rows.append((once / found.seconds, alone / found.seconds, fixed / found.seconds))
        every += rows
        better = sum(once > 1.0001 and alone > 1.0001 for once, alone, _ in rows) / len(rows)
        size = f"{2 ** (low + 1 - 20)}-{2 ** (low + 4 - 20)} MiB"
        print(f"{size:>19}" + means(rows) + f"{better:19.1%}{median(spent) * 1e3:19.1f}", flush=True)
    print(f"{'all':>19}" + means(every))


def means(rows: list[tuple[float, float, float]]) -> str:
    """The geometric mean of each column."""
    return "".join(f"{geometric_mean(column):19.3f}" for column in zip(*rows, strict=True))


def curve(count: int) -> None:
    """The search's own time."""
    print(f"{'devices':>8} {'one tier: ms, 95 %':>20} {'two tiers: ms, 95 %':>21} {'kept answer':>12}")
    for power in range(3, 13):
        devices = 2**power
        words = []
        for nodes in (1, max(2, devices // 8)):
            draw = random.Random(power)
            spent = []
            for _ in range(count):
                cluster = cluster_of(nodes, devices // nodes)
                source, target = random_pair(draw, random_mesh(draw, devices), 2**30)
                began = time.process_time()
                redistribution(source, target, 2, cluster)
                spent.append(time.process_time() - began)
            spent.sort()
            words.append(f"{median(spent) * 1e3:.1f}  {spent[int(0.95 * (count - 1))] * 1e3:.1f}")
        began = time.process_time()
        redistribution(source, target, 2, cluster)
        again = time.process_time() - began
        print(f"{devices:8} {words[0]:>20} {words[1]:>21} {again * 1e3:9.2f} ms")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]] + [5000, 2000, 40][len(sys.argv) - 1 :]
    print(machine())
    flat(given[0])
    tiers(given[1])
    curve(given[2])
