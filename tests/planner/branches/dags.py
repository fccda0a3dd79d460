"""Random models whose blocks form a graph, and clusters for them, without a framework: drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from partita.cluster import parse_cluster
from partita.graph import Block, Graph, Op, Tensor, check
from partita.problem import Problem

KINDS = ("series-parallel", "layered", "letter N", "towers")
CLUSTERS = (("1x4xa100-80gb", "bf16"), ("1x8xa100-80gb", "bf16"), ("2x2xv100-16gb", "fp16"), ("2x4xv100-16gb", "fp16"))
SMALL = CLUSTERS[::2]
BATCHES = (16, 32, 64)
# The framework's own bytes, and times as much as an even share of parameters, gradients and Adam's moments.
OWN, STATE, ROOM = 2**30, 16, (1.6, 2.5, 4.0, 12.0)
Edges = list[tuple[int, int]]


def drawn(seed: int, blocks: tuple[int, int] = (5, 40), clusters: Sequence[tuple[str, str]] = CLUSTERS) -> Problem:
    """A problem with so many blocks, from and to, on one of these clusters."""
    random = Random(seed)
    count, kind = random.randint(*blocks), KINDS[seed % len(KINDS)]
    cluster, precision = random.choice(list(clusters))
    graph = _graph(random, f"{kind} {seed}", _renumbered(random, count, edges(random, kind, count)), count)
    machine = parse_cluster(cluster)
    share = OWN + graph.parameter_count * STATE * random.choice(ROOM) / machine.devices
    memory = min(int(share), machine.kinds[0].device.memory_bytes)
    return Problem(graph, machine, random.choice(BATCHES), precision, target="partita", memory_bytes=memory)


def edges(random: Random, kind: str, count: int) -> Edges:
    """Pairs (maker, reader) of the numbers under ``count``, the reader's the larger."""
    found: set[tuple[int, int]] = set()
    if kind == "series-parallel":
        _series(random, list(range(count)), [], found)
    elif kind == "layered":
        _layered(random, count, found)
    else:
        _lanes(random, count, kind == "letter N", found)
    if kind != "series-parallel" and count > 4:
        # Skips over several blocks.
        for _ in range(random.randint(0, 1 + count // 10)):
            maker, reader = sorted(random.sample(range(count), 2))
            found.add((maker, reader))
    return sorted(found)


def _series(random: Random, blocks: list[int], ends: list[int], found: set[tuple[int, int]]) -> list[int]:
    """Parts one after another, each a block or branches that read all ends before them; the last ends."""
    while blocks:
        size = random.randint(1, len(blocks))
        part, blocks = blocks[:size], blocks[size:]
        if size < 3 or random.random() < 0.2:
            for block in part:
                found.update((end, block) for end in ends)
                ends = [block]
            continue
        branches = random.randint(2, min(4, size))
        cuts = [0, *sorted(random.sample(range(1, size), branches - 1)), size]
        each = [_series(random, part[i:j], ends, found) for i, j in zip(cuts, cuts[1:], strict=False)]
        ends = [end for branch in each for end in branch]
    return ends


def _layered(random: Random, count: int, found: set[tuple[int, int]]) -> None:
    """Layers of one to four blocks, each of which reads one or two of the layer before."""
    before: list[int] = []
    at = 0
    while at < count:
        layer = list(range(at, min(count, at + random.randint(1, 4))))
        for block in layer:
            read = random.sample(before, min(len(before), random.randint(1, 2)))
            found.update((maker, block) for maker in read)
        before, at = layer, layer[-1] + 1


def _lanes(random: Random, count: int, crossed: bool, found: set[tuple[int, int]]) -> None:
    """Lanes of unlike lengths beside each other and a last block that reads their ends; ``crossed``: some blocks also
    read an earlier one of the next lane, which is neither in series nor parallel."""
    lanes: list[list[int]] = [[] for _ in range(random.randint(2, 4))]
    weights = [random.randint(1, 3) for _ in lanes]
    for block in range(count - 1):
        lane = random.choices(range(len(lanes)), weights)[0]
        if lanes[lane]:
            found.add((lanes[lane][-1], block))
        other = lanes[(lane + 1) % len(lanes)]
        if crossed and other and random.random() < 0.3:
            found.add((random.choice(other), block))
        lanes[lane].append(block)
    found.update((lane[-1], count - 1) for lane in lanes if lane)


def _renumbered(random: Random, count: int, pairs: Edges) -> Edges:
    """The same graph, its blocks listed in another order in half of all cases."""
    if random.random() < 0.5:
        return pairs
    left = [sum(reader == block for _, reader in pairs) for block in range(count)]
    ready, place = [block for block in range(count) if not left[block]], {}
    while ready:
        block = ready.pop(random.randrange(len(ready)))
        place[block] = len(place)
        for maker, reader in pairs:
            if maker == block:
                left[reader] -= 1
                if not left[reader]:
                    ready.append(reader)
    return sorted((place[maker], place[reader]) for maker, reader in pairs)


def _graph(random: Random, name: str, pairs: Edges, count: int) -> Graph:
    """Blocks of two or three sizes: one linear layer, or two with more or fewer units between them."""
    tokens, samples = random.choice([128, 256, 512]), max(BATCHES)
    sizes = [
        (random.choice([512, 1024, 2048]), random.choice([0, 1024, 4096, 8192]))
        for _ in range(random.randint(2, 3))
    ]  # fmt: skip
    size = [random.choice(sizes) for _ in range(count)]
    value = lambda width: (samples, tokens, width)  # noqa: E731
    tensors, ops, blocks = [Tensor("x", value(1024), role="input", gradient=False)], [], []
    for block in range(count):
        own, (width, inner) = f"b{block}", size[block]
        makers = [maker for maker, reader in pairs if reader == block]
        reads, fed = tuple(f"b{maker}" for maker in makers) or ("x",), sum(size[m][0] for m in makers) or 1024
        if len(reads) > 1:
            tensors.append(Tensor(f"{own}.read", value(fed)))
            ops.append(Op(f"{own}.read", "cat", reads, (f"{own}.read",), own, attributes={"dim": 2}))
            reads = (f"{own}.read",)
        weights = []
        for part, (made, rows) in enumerate([(f"{own}.up", inner), (own, width)] if inner else [(own, width)]):
            weights.append(f"{own}.{part}")
            tensors += [Tensor(weights[-1], (rows, fed), role="parameter"), Tensor(made, value(rows))]
            ops.append(Op(made, "linear", (*reads, weights[-1]), (made,), own))
            reads, fed = (made,), rows
        blocks.append(Block(own, tuple(weights)))
    read = {maker for maker, _ in pairs}
    last = tuple(f"b{block}" for block in range(count) if block not in read)
    return check(Graph(name, samples, None, tuple(tensors), tuple(ops), tuple(blocks), ("x",), last))
