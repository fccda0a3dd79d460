"""Plans that are simulated: on which graph, whether they fit, and how much of it is affordable."""

from __future__ import annotations

from partita.cluster import Cluster
from partita.cost.precision import compute_dtype
from partita.errors import PartitaError, PlanError
from partita.graph import Graph
from partita.hooks import plugins
from partita.plan import Plan
from partita.problem import Problem
from partita.simulate.predict import predicted

# Turns of all devices in all simulations together: a simulation takes about a second for twelve thousand of them.
TURNS = 40_000


def foretold(graph: Graph, plan: Plan, cluster: Cluster) -> Plan:
    """Any plan with the prediction of its simulation, as ranked plans have it; the formula's where that would take too
    long."""
    return plan if turns(plan) > TURNS else predicted(graph, plan, cluster)


def simulated(problem: Problem, graph: Graph | None, plan: Plan) -> Plan | None:
    """The plan with the prediction of its simulation on what was ``captured`` for it; None where it doesn't fit, and
    where it can't be simulated."""
    try:
        found = None if graph is None else predicted(graph, plan, problem.cluster)
    except PlanError:
        # What crosses between two stages has no rows of samples.
        return None
    return found if found is not None and fits(problem, found) else None


def captured(problem: Problem, plan: Plan) -> Graph | None:
    """The model with as many samples as the plan cuts them into: the problem's, or captured again from what the user
    named; None where that is no model, another one, or one that has other samples."""
    graph, parts = problem.graph, plan.sample_parts
    if graph.samples % parts == 0:
        return graph
    try:
        found: Graph | None = plugins().hook.partita_capture(
            model=problem.model or graph.name, samples=parts, seq=graph.seq, dtype=compute_dtype(problem.precision)
        )
    except PartitaError:
        return None
    if found is None or found.samples % parts:
        return None
    return found if _parameters(found) == _parameters(graph) else None


def _parameters(graph: Graph) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
    return [(block.name, {name: graph.tensor[name].shape for name in block.parameters}) for block in graph.blocks]


def turns(plan: Plan) -> int:
    """Forward and backward turns of all devices in a step."""
    return 2 * sum(len(stage.devices) * stage.micro_batches for stage in plan.stages)


def fits(problem: Problem, plan: Plan) -> bool:
    """Whether the simulated peaks are within every device's memory."""
    return all(peak <= problem.memory_limit_of((device,)) for device, peak in plan.predicted.peak_bytes.items())
