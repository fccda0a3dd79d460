"""Models with branches: what their blocks read of each other, the documentation's plan for them, and its losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import networkx
import torch

from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import plan_function
from partita.graph import Graph
from partita.graph.edges import block_edges
from partita.plan import Plan
from partita.problem import Problem
from partita.recipes.branched import BranchedRecipe
from partita.recipes.compare import compare
from partita.recipes.one_device import losses_on_one_device
from tests.ranks.pool import Pool
from tests.recipes.ranks import losses_by_plan

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "side_by_side.py"
SEED = 0


def assert_joined_branches(graph: Graph, branches: int, layers: int, join: Sequence[str]) -> None:
    """Each branch is a chain of layers that reads nothing else; the join is a chain whose first reads all of them."""
    edges = networkx.DiGraph(list(block_edges(graph)))
    towers = [[f"branches.{branch}.{layer}" for layer in range(layers)] for branch in range(branches)]
    everything = [name for tower in towers for name in tower]
    assert [block.name for block in graph.blocks] == [*everything, *join]
    for chain in towers:
        for place, name in enumerate(chain):
            assert networkx.ancestors(edges, name) == set(chain[:place]), name
    for place, name in enumerate(join):
        assert networkx.ancestors(edges, name) == {*everything, *join[:place]}, name
    assert set(edges.predecessors(join[0])) == {tower[-1] for tower in towers}


def side_by_side(graph: Graph, devices: int, batch: int, **numbers: int) -> Plan:
    """The plan of the documentation's example, on processes of this machine."""
    name = f"{EXAMPLE}:side_by_side"
    problem = Problem(graph, parse_cluster("cpu", devices), batch, precision="fp32", target="partita")
    return drafted(plan_function(name), name, problem, numbers)


def assert_one_device(pool: Pool, recipe: BranchedRecipe, plan: Plan, steps: int = 3, rate: float = 1e-3) -> None:
    """The losses of a plan on real ranks are those of one device."""
    workload = partial(recipe.workload, plan.model, seq=None, dtype=torch.float32, seed=SEED, files={})
    ranks, batch = len(plan.devices), plan.global_batch
    everyones = pool.run(losses_by_plan, ranks, plan, workload, steps, batch, rate, SEED, timeout=180)
    assert all(losses == everyones[0] for losses in everyones)
    one = losses_on_one_device(workload(), steps=steps, global_batch=batch, learning_rate=rate, seed=SEED)
    table, equal = compare(everyones[0], one)
    assert equal, table
    assert len(set(one)) == steps
