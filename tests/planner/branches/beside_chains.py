"""A problem's plan beside the best chains of stages that the planner finds with the blocks listed in several orders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from random import Random

import networkx as nx

from partita.branching import in_models_order
from partita.graph import Graph
from partita.graph.edges import block_edges
from partita.plan import Plan
from partita.planner.branches.orders import listed, orders
from partita.planner.branches.traffic import block_pairs
from partita.planner.joint.plan import solve
from partita.problem import Problem
from partita.ranking import ranked
from partita.simulate.predict import predicted
from partita.simulated import fits

# Steps that differ by less are as long.
SAME = 1e-3


@dataclass(frozen=True)
class Outcome:
    """A plan, the seconds of this process that it took to find, and each order's chain's simulated seconds; infinite
    where it doesn't fit."""

    problem: Problem
    plan: Plan
    seconds: float
    chains: Mapping[tuple[int, ...], float]

    @property
    def ratio(self) -> float:
        """How many times as long the best chain takes."""
        return min(self.chains.values()) / self.plan.predicted.step_seconds

    @property
    def gap(self) -> float:
        """By how much of its bound the plan is above it."""
        return self.plan.predicted.step_seconds / self.plan.search.bound_seconds - 1


def outcome(problem: Problem, random: int = 0) -> Outcome:
    """Infeasible where the problem is; ``random``: so many further orders."""
    plan, seconds = timed(problem)
    graph = problem.graph
    several = orders(len(graph.blocks), block_pairs(graph))
    several += [at_random(graph, seed) for seed in range(random)]
    return Outcome(problem, plan, seconds, {tuple(one): chain(problem, one) for one in several})


def timed(problem: Problem) -> tuple[Plan, float]:
    """The planner's plan, and the seconds of this process."""
    before = time.process_time()
    plan = ranked(solve(problem))
    return plan, time.process_time() - before


def chain(problem: Problem, blocks: list[int]) -> float:
    """The best chain's step with the blocks listed so, as a plan of the model, in whose order a stage's blocks are."""
    again = replace(problem, graph=listed(problem.graph, blocks), fix={"schedule": "1f1b"})
    plan = predicted(problem.graph, in_models_order(problem, ranked(solve(again))), problem.cluster)
    return plan.predicted.step_seconds if fits(problem, plan) else inf


def at_random(graph: Graph, seed: int) -> list[int]:
    """A topological order."""
    random, of = Random(seed), nx.DiGraph()
    names = [block.name for block in graph.blocks]
    of.add_nodes_from(names)
    of.add_edges_from(block_edges(graph))
    draw = {name: random.random() for name in names}
    return [names.index(name) for name in nx.lexicographical_topological_sort(of, key=draw.__getitem__)]
