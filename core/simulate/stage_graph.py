"""The graph of a plan's stages, and what its form wins: the same stages as a chain beside it.

Most schedules take stages for a chain, in which each waits for all that come after it in the list. By the graph a stage
waits for the longest path behind it alone, and holds as many micro-batches as that asks for (GraphPipe, Jeon et al.,
2025; ``schedules.kfkb``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.cluster import Cluster
from partita.cost.precision import item_bytes
from partita.cost.samples import amount
from partita.errors import listed
from partita.graph import Graph
from partita.graph.edges import block_edges, paths_behind
from partita.plan import Order, Plan, Stage
from partita.planner.words import duration, gib
from partita.schedules import find
from partita.simulate.predict import as_simulated, predicted
from partita.simulate.result import Simulation
from partita.spacetime.lower import edges_between, require_blocks


@dataclass(frozen=True)
class Edge:
    """What one stage makes and another reads: ``values`` in the order in which they are made, each counted once.

    ``size_bytes``: of one micro-batch of the maker, over all its copies.
    """

    maker: int
    reader: int
    values: tuple[str, ...]
    size_bytes: float


@dataclass(frozen=True)
class StageGraph:
    """Stages by their place in the plan. ``behind``: the stages on the longest path that begins with each."""

    edges: tuple[Edge, ...]
    behind: tuple[int, ...]

    @property
    def depth(self) -> int:
        """The stages on the longest path."""
        return max(self.behind)

    @property
    def is_chain(self) -> bool:
        """Whether the longest path leads through every stage."""
        return self.depth == len(self.behind)

    @property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """The stages that have equally long paths behind them, the longest first: none reads another of its layer."""
        lengths = range(self.depth, 0, -1)
        return tuple(tuple(stage for stage, own in enumerate(self.behind) if own == length) for length in lengths)

    @property
    def longest(self) -> tuple[int, ...]:
        """The stages of a longest path; of several the one whose stages come first in the list."""
        found = [self.layers[0][0]]
        for layer in self.layers[1:]:
            read = {edge.reader for edge in self.edges if edge.maker == found[-1]}
            found.append(next(stage for stage in layer if stage in read))
        return tuple(found)


@dataclass(frozen=True)
class Forms:
    """One plan in two orders, by the graph and as a chain, each with the prediction of its simulation."""

    graph: Plan
    chain: Plan


def stage_graph(graph: Graph, plan: Plan) -> StageGraph:
    """The graph of a plan's stages. ``graph`` may have any number of samples.

    PlanError where the plan isn't this graph's, and where a stage reads what a later one makes.
    """
    require_blocks(graph, plan)
    pairs = edges_between(graph, plan)
    item = item_bytes(graph, plan.precision)
    stage_of = {block: index for index, stage in enumerate(plan.stages) for block in stage.blocks}

    def size(name: str, maker: Stage) -> float:
        found: float = amount(graph, name, item).of(maker.samples / graph.samples, maker.dp)
        return found

    values: dict[tuple[int, int], dict[str, None]] = {pair: {} for pair in pairs}
    for (maker, reader), names in block_edges(graph).items():
        if (pair := (stage_of[maker], stage_of[reader])) in values:
            values[pair].update(dict.fromkeys(names))
    edges = tuple(
        Edge(*pair, tuple(names), sum(size(name, plan.stages[pair[0]]) for name in names))
        for pair, names in values.items()
    )
    return StageGraph(edges, tuple(paths_behind(pairs, len(plan.stages))))


def by_graph(plan: Plan) -> Plan:
    """The same stages in the order that goes by their graph, still with the other order's prediction."""
    return _in(plan, "kfkb")


def forms(graph: Graph, plan: Plan, cluster: Cluster, found: Simulation | None = None) -> Forms | None:
    """The plan by its graph and as a chain, both simulated; ``graph`` as of the simulation, ``found`` the plan's own if
    there is one already.

    None for other schedules than these two, kfkb and 1f1b: they keep other orders than the one or the other.
    """
    if plan.schedule not in ("kfkb", "1f1b"):
        return None
    own = predicted(graph, plan, cluster) if found is None else as_simulated(found, plan)
    if plan.schedule == "kfkb":
        return Forms(own, predicted(graph, _in(plan, "1f1b"), cluster))
    return Forms(predicted(graph, by_graph(plan), cluster), own)


def sentence(stages: StageGraph, found: Forms | None) -> str:
    """How long the longest path is, and what both forms hold and take."""
    said = f"The stages form a graph, whose longest path has {stages.depth} of {len(stages.behind)}"
    if found is None:
        return f"{said}."
    both = (found.graph, found.chain)
    held = [listed([stage.in_flight for stage in plan.predicted.breakdown.stages]) for plan in both]
    peaks = [gib(max(plan.predicted.peak_bytes.values())) for plan in both]
    time = [duration(plan.predicted.step_seconds) for plan in both]
    bubble = [f"{plan.predicted.bubble_fraction:.1%}" for plan in both]
    return (
        f"{said}: by it ({both[0].order.words}) they hold {held[0]} micro-batches and at most {peaks[0]}, as a chain "
        f"({both[1].order.words}) {held[1]} and {peaks[1]}; the step takes {time[0]} with a bubble of {bubble[0]}, as "
        f"a chain {time[1]} with {bubble[1]}."
    )


def _in(plan: Plan, schedule: str) -> Plan:
    order = Order(schedule, len(plan.stages), plan.order.micro_batches, find(schedule).complete({}))
    return replace(plan, schedule=schedule, order=order)
