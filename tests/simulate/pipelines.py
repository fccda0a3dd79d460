"""Programs of hand-made chains, one block a stage, and clusters of round numbers to run them on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from partita.cluster import Cluster, Device, Link
from partita.graph import Block, Graph, Op, Tensor, check
from partita.plan import Axis, Order
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import Program, Share
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import BlockCode, StageCode, transform


def chain(stages: int, skips: Sequence[tuple[int, int]] = (), tied: bool = False) -> Graph:
    """Block i makes ``x{i + 1}``; of a skip (i, j) block j also reads what block i makes. ``tied``: the ends share."""
    tensors = [Tensor("x0", (1, 1), role="input", gradient=False)]
    ops, blocks = [], []
    for index in range(stages):
        weight = "w0" if tied and index == stages - 1 else f"w{index}"
        if weight == f"w{index}":
            tensors.append(Tensor(weight, (1,), role="parameter"))
        tensors.append(Tensor(f"x{index + 1}", (1, 1)))
        read = [f"x{index}", weight, *(f"x{source + 1}" for source, target in skips if target == index)]
        ops.append(Op(f"op{index}", "cumsum", tuple(read), (f"x{index + 1}",), f"b{index}"))
        blocks.append(Block(f"b{index}", (weight,) if weight == f"w{index}" else ()))
    return check(Graph("chain", 1, None, tuple(tensors), tuple(ops), tuple(blocks), ("x0",), (f"x{stages}",)))


def tensor(size: int) -> tuple[Axis, ...]:
    """The inner axes of a stage that is cut along tensor alone."""
    return (Axis("tensor", size, "space"),)


@cache
def pipeline(
    stages: int, micro_batches: int, schedule: str = "1f1b", *, dp: int = 1, tp: int = 1, zero: int = 0,
    skips: tuple[tuple[int, int], ...] = (), tied: bool = False, depth: int = 0,
) -> Program:  # fmt: skip
    """The program of a chain; devices in the order (stage, data, tensor)."""
    graph = chain(stages, skips, tied)
    pieces = transform(graph, [StageCode((BlockCode(f"b{stage}", (), "none"),), ()) for stage in range(stages)])
    each = dp * tp
    devices_of = tuple(tuple(range(stage * each, (stage + 1) * each)) for stage in range(stages))
    places = assign(devices_of, [dp] * stages, [tp] * stages)
    arguments = {"depth": depth} if depth else {}
    turns = order(Order(schedule, stages, micro_batches, arguments), places, [micro_batches] * stages, ())
    queues = preserve(Version(graph, pieces), places, devices_of, turns)
    return Program(
        pieces, queues, places, devices_of, (Share(dp, micro_batches, 1),) * stages, (tensor(tp),) * stages,
        dict.fromkeys(graph.parameter_users, zero), graph.loss,
    )  # fmt: skip


def machine(
    nodes: Sequence[int], near: float = 1.0, far: float = 1.0, latency: float = 0.0, together: float | None = None
) -> Cluster:
    """Nodes whose links take so many bytes a second; ``together``: what a node's devices share to the outside."""
    device = Device("test", 2**30, {"float32": 1.0}, 1.0)
    return Cluster.of(
        "test", tuple(nodes), device, Link(near, latency), Link(far, latency), node_bytes_per_second=together
    )


def durations(
    forward: Sequence[float], backward: Sequence[float], reduce: float = 0.0, update: float = 0.0
) -> dict[tuple[int, str], float]:
    """Seconds by (stage, kind), as the engine takes them."""
    kinds = {"forward": forward, "backward": backward}
    found = {(stage, kind): float(value) for kind, values in kinds.items() for stage, value in enumerate(values)}
    for stage in range(len(forward)):
        found |= {(stage, "reduce"): reduce, (stage, "update"): update}
    return found
