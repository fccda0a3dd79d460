"""The ports that a message passes, and what a shared way out leaves to each device."""

from __future__ import annotations

import pytest

from partita.simulate.fabric import Fabric, Route
from tests.simulate.pipelines import machine

OWN = machine([2, 1], near=8.0, far=4.0, latency=0.5)
SHARED = machine([2, 1], near=8.0, far=4.0, latency=0.5, together=6.0)


@pytest.mark.parametrize(
    ("cluster", "source", "target", "rates"),
    [
        (OWN, 0, 0, []),
        (OWN, 0, 1, [8, 8]),
        (OWN, 0, 2, [4, 4]),
        (SHARED, 0, 1, [8, 8]),
        (SHARED, 0, 2, [4, 4, 6, 6]),
        (SHARED, 2, 1, [4, 4, 6, 6]),
    ],
)
def test_a_message_passes_its_devices_ports_and_its_nodes(cluster, source, target, rates):
    fabric = Fabric(cluster)
    route = fabric.route(source, target)
    assert [fabric.bytes_per_second[port] for port in route.ports] == rates
    assert route.latency_seconds == (0.5 if rates else 0.0)


def test_only_messages_with_an_end_in_common_share_a_port():
    fabric = Fabric(SHARED)
    pairs = [(source, target) for source in range(3) for target in range(3) if source != target]
    routes: dict[tuple[int, int], Route] = {pair: fabric.route(*pair) for pair in pairs}
    for one, first in routes.items():
        for other, second in routes.items():
            nodes = [tuple(SHARED.node_of[device] for device in pair) for pair in (one, other)]
            near = nodes[0][0] == nodes[0][1], nodes[1][0] == nodes[1][1]
            same_end = one[0] == other[0] or one[1] == other[1]
            same_node = not any(near) and (nodes[0][0] == nodes[1][0] or nodes[0][1] == nodes[1][1])
            expected = (same_end and near[0] == near[1]) or same_node
            assert bool(set(first.ports) & set(second.ports)) == expected


@pytest.mark.parametrize(("together", "each"), [(None, 4.0), (8.0, 4.0), (6.0, 3.0), (1.0, 0.5)])
def test_the_cost_model_takes_an_even_part_of_what_a_node_shares(together, each):
    cluster = machine([2, 1], near=8.0, far=4.0, together=together)
    assert cluster.link(True).bytes_per_second == each
    assert cluster.link(False).bytes_per_second == 8.0
