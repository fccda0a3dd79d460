"""Prices: those of plain collectives are the planner's; of a direct step, what goes inside nodes and between them is
counted copy by copy; what the search takes as the least never is more than the price."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from partita.cluster import Cluster, Kind, Link, load_preset
from partita.cost.collective import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from partita.redistribution import ArrayType, Layout, Mesh, Step
from partita.redistribution.estimate import Estimate
from partita.redistribution.exchange import Exchange
from partita.redistribution.price import Load, Network, load
from partita.redistribution.search import redistribution
from partita.redistribution.space import Space
from partita.redistribution.split import divided_ends
from partita.redistribution.steps import all_gather, all_reduce, all_to_all, direct, mask, reduce_scatter, slice_
from tests.redistribution.literal import unevenness
from tests.redistribution.problems import any_problem

NEAR, FAR = Link(100e9, 1e-6, 0.5), Link(10e9, 5e-6)
SLOW_NEAR, SLOW_FAR = Link(20e9, 2e-6), Link(5e9, 6e-6)
ITEM = 2


def cluster(nodes: int, devices: int, shared: float | None = None) -> Cluster:
    return Cluster.of("two tiers", (devices,) * nodes, load_preset("h100-80gb").device(), NEAR, FAR, None, shared)


def kind(layout: str, mesh: str = "x=2,y=4", shape: tuple[int, ...] = (16, 32)) -> ArrayType:
    return ArrayType(shape, Layout.parse(layout), Mesh.parse(mesh))


def priced(step: Step, nodes: int = 2, devices: int = 4, shared: float | None = None) -> Load:
    return load(step, ITEM, Network.of(cluster(nodes, devices, shared)))


WHOLE = 16 * 32 * ITEM


@pytest.mark.parametrize(
    ("step", "seconds", "elements"),
    [
        # y lies inside the nodes, x across them.
        (all_gather(kind("y,-"), 0), all_gather_seconds(WHOLE, 4, NEAR), 384),
        (all_gather(kind("x,-"), 0), all_gather_seconds(WHOLE, 2, FAR), 256),
        (all_gather(kind("x.y,-"), 0, 2), all_gather_seconds(WHOLE, 8, FAR), 448),
        (all_to_all(kind("y,x"), 0, 1), all_to_all_seconds(WHOLE / 8, 4, NEAR), 48),
        (all_reduce(kind("-,-+y"), ("y",)), all_reduce_seconds(WHOLE, 4, NEAR), 768),
        (reduce_scatter(kind("-,x+y"), ("y",), 1), reduce_scatter_seconds(WHOLE / 2, 4, NEAR), 192),
        (slice_(kind("-,-"), "x", 0), 0.0, 0),
        (mask(kind("-,-"), "x"), 0.0, 0),
        # A permutation is one message: inside a node, and between.
        (direct(kind("x,y"), kind("x,y")), 0.0, 0),
        (direct(kind("a.b,c", "a=2,b=2,c=2"), kind("a.c,b", "a=2,b=2,c=2")),
         point_to_point_seconds(WHOLE / 8, NEAR), 64),
        (direct(kind("a.b,c", "a=2,b=2,c=2"), kind("c.b,a", "a=2,b=2,c=2")),
         point_to_point_seconds(WHOLE / 8, FAR), 64),
    ],
)  # fmt: skip
def test_of_collectives(step: Step, seconds: float, elements: int) -> None:
    found = priced(step)
    assert found.seconds == seconds
    assert found.sent.max() == found.received.max() == elements


def test_devices_of_a_node_share_their_way_out() -> None:
    step = all_gather(kind("x,-"), 0)
    assert priced(step, shared=20e9).seconds == all_gather_seconds(WHOLE, 2, Link(5e9, 5e-6))
    # Each device lacks half of its quarter of the columns; one of the other node has it.
    both = direct(kind("x,-"), kind("-,y"))
    assert priced(both).seconds == 5e-6 + 64 * ITEM / 10e9
    assert priced(both, shared=5e9).seconds == 5e-6 + 4 * 64 * ITEM / 5e9


def test_uneven_rings_wait_for_the_largest_part() -> None:
    step = all_gather(ArrayType((5, 10), Layout.parse("a,-"), Mesh.of(a=4)), 0)
    found = priced(step, 1, 4)
    assert found.seconds == all_gather_seconds(4 * 20 * ITEM, 4, NEAR)
    assert (found.received.tolist(), found.sent.tolist()) == ([30, 30, 40, 50], [60, 60, 30, 0])


def test_a_direct_step_takes_as_long_as_the_all_to_all_that_it_is() -> None:
    mesh = Mesh.of(a=64)
    one, two = (ArrayType((64, 64), Layout.parse(layout), mesh) for layout in ("a,-", "-,a"))
    assert priced(direct(one, two), 1, 64).seconds == pytest.approx(priced(all_to_all(one, 0, 1), 1, 64).seconds)
    assert priced(direct(one, two), 1, 64).seconds == pytest.approx(6 * 1e-6 + 63 * ITEM / 50e9)


def test_bytes_between_nodes_are_those_of_the_copies() -> None:
    """Where latency is nothing, a direct step takes as long as the copies through its slowest port."""
    random = Random(9)
    checked = 0
    for _ in range(150):
        problem = any_problem(random, sums=False)
        devices = max(*problem.source.mesh.devices, *problem.target.mesh.devices) + 1
        fast = Cluster.of("no latency", (4,) * -(-devices // 4), cluster(1, 1).device, Link(100e9), Link(10e9))
        step = direct(problem.source, problem.target, fast.node_of)
        if step.op != "direct" or unevenness(step):
            continue
        checked += 1
        ports = np.zeros((4, fast.devices))
        for device in step.after.mesh.devices:
            for copy in Exchange(step).takes(device):
                if copy.source != device:
                    crosses = fast.node_of[copy.source] != fast.node_of[device]
                    ports[2 * crosses, copy.source] += copy.elements
                    ports[2 * crosses + 1, device] += copy.elements
        found = load(step, ITEM, Network.of(fast))
        assert found.seconds == pytest.approx(max(ports[:2].max() / 100e9, ports[2:].max() / 10e9) * ITEM), str(problem)
        np.testing.assert_array_equal(found.sent, ports[0] + ports[2])
        np.testing.assert_array_equal(found.received, ports[1] + ports[3])
    assert checked > 60


def test_the_least_is_never_more_than_the_price() -> None:
    random = Random(10)
    for _ in range(200):
        problem = any_problem(random, sums=False, one_mesh=True)
        network = Network.of(cluster(2, 4))
        source, target = divided_ends(problem.source, problem.target, network, True)
        space = Space(source.mesh, source.shape, ITEM, network, problem.elements, frozenset(), False)
        estimate = Estimate(space)
        if not estimate.aligned:
            continue
        ends = space.state(source.layout), space.state(target.layout)
        found = load(Step("direct", source, target, nodes=network.node_of), ITEM, network)
        elements, seconds = estimate.direct(*ends)
        assert elements == found.received.max()
        assert seconds <= found.seconds * (1 + 1e-12), str(problem)
        assert estimate.any_way(*ends) <= found.seconds * (1 + 1e-12), str(problem)


def test_unlike_nodes_have_the_slowest_link_of_those_that_take_part() -> None:
    """Nodes of four: within the slow one, within a fast one, between fast ones, and over all of them."""
    device = cluster(1, 1).device
    fast, slow = Kind(device, NEAR, FAR), Kind(device, SLOW_NEAR, SLOW_FAR)
    mixed = Cluster("mixed", (4, 4, 4), (fast, slow, fast))
    for devices, near, far in (
        ((0, 1, 2, 3), NEAR, FAR), ((4, 5, 6, 7), SLOW_NEAR, SLOW_FAR), ((0, 1, 8, 9), NEAR, FAR),
        ((0, 1, 4, 5), SLOW_NEAR, SLOW_FAR),
    ):  # fmt: skip
        network = Network.of(mixed, devices)
        assert (network.near, network.far, network.port) == (near, far, far), devices
        mesh = Mesh((("x", 4),), devices)
        source, target = (ArrayType((64, 64), Layout.parse(text), mesh) for text in ("x,-", "-,-"))
        crosses = len({device // 4 for device in devices}) > 1
        found = redistribution(source, target, ITEM, mixed, allowed=frozenset({"all-gather"}), whole_axes=True)
        wanted = all_gather_seconds(64 * 64 * ITEM, 4, far if crosses else near)
        assert sum(step.seconds for step in found.steps) == pytest.approx(wanted), devices
