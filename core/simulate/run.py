"""A plan through the queues: lowered, priced, executed against the clock."""

from __future__ import annotations

from partita.cluster import Cluster
from partita.cost.alike import Alike
from partita.graph import Graph
from partita.plan import Plan
from partita.simulate.costs import costs
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.spacetime.lower import lower_to_time


def simulate(graph: Graph, plan: Plan, cluster: Cluster, groups: Alike | None = None) -> Simulation:
    """One step of a plan on a cluster. ``groups`` are the graph's blocks that are alike, if known already.

    ``graph`` may have been captured with any number of samples: what it takes grows with them. PlanError where the plan
    isn't this graph's or this cluster's, or its queues come to a standstill.
    """
    priced = costs(graph, plan, cluster, groups)
    program = lower_to_time(graph, plan)
    return Simulation(program, priced, execute(program, priced.seconds, priced.size_bytes, Fabric(cluster)))
