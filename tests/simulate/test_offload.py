"""Offloaded blocks: what they keep is on the host, and the way there and back binds where it takes longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cli.model import load_model
from partita.cluster import Cluster, parse_cluster
from partita.draft import Draft, drafted, offload, op_assign, op_order
from partita.errors import PlanError
from partita.problem import Problem
from partita.simulate.costs import Costs, costs

GRAPH = load_model("gpt3-125m", None, "bfloat16")


def plain(draft: Draft) -> None:
    op_assign(draft, draft.blocks, draft.devices)
    op_order(draft, "1f1b")


def away(draft: Draft) -> None:
    op_assign(draft, draft.blocks, draft.devices)
    offload(draft, draft.blocks)
    op_order(draft, "1f1b")


def reached(host: float) -> Cluster:
    found = parse_cluster("1xa100-80gb")
    return found.with_kinds(lambda kind: replace(kind, device=replace(kind.device, host_bytes_per_second=host)))


def priced(function, host: float) -> Costs:
    cluster = reached(host)
    return costs(GRAPH, drafted(function, "test", Problem(GRAPH, cluster, 8), {}), cluster)


def test_activations_leave_the_device_and_the_way_takes_its_time() -> None:
    here, fast, slow = priced(plain, 1.0), priced(away, 1e30), priced(away, 1e6)
    kept = here.memory[0].activations
    assert kept > 2**30
    assert (fast.memory[0].activations, fast.memory[0].parameters) == (0, here.memory[0].parameters)
    # The block that comes back is there while its gradient is computed.
    assert here.memory[0].temporary < fast.memory[0].temporary < here.memory[0].temporary + kept
    for kind in ("forward", "backward"):
        assert fast.seconds[0, kind] == pytest.approx(here.seconds[0, kind])
        assert slow.seconds[0, kind] == pytest.approx(kept / 1e6, rel=1e-3)


def test_a_host_of_unknown_speed_is_refused() -> None:
    with pytest.raises(PlanError, match="doesn't say how fast the host's memory is reached"):
        priced(away, 0.0)
