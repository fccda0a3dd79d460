"""GraphPipe's Figure 6: plans whose stages form a graph, over the best sequential pipelines, on its three models.

GraphPipe (arXiv 2406.17145, section 6) measured on 4 to 32 V100 of 16 GB, four a node; here steps are simulated on the
preset of that device, in fp16 with Adam. Models are the recipes; batches grow with the devices. What is compared:

    graph  the planner's plan, for the target partita
    chain  the planner with --fix schedule=1f1b: of all its choices (unlike stages, ZeRO, tp, recomputation by block,
           eager warm-up) the stages that are best in 1F1B. Simulated as our runtime runs them: a stage waits for what
           it reads, and not for what only stands before it in the list, so branches run side by side here too
    lanes  the interleaved forms of the best chain; – where none fits
    seq    the best of the same choices where stages are sequential, as in PipeDream and Piper: each waits for the one
           before it, and passes on what later ones read
    plain  what PipeDream plans: the same, in 1F1B with copies, whose numbers may differ by stage, and no tp, ZeRO,
           recomputation or eager warm-up

seq and plain are the exact chain search and a climb from its best answers; their seconds are the sharper formula's
(planner/joint/sharp.py), which no such pipeline goes under. Throughput over that of (a) the faster of chain and lanes,
(s) seq, (b) plain, which is the paper's question. "in flight" are the most micro-batches of a stage, GiB the most that
a device holds, of the chain and of the graph; "search" is seconds of the process for the graph's plan. Beside (a) a
graph wins by what it needn't hold, so memory is stated, and of the transformer there are two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from machine import machine

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.cost.precision import compute_dtype
from partita.graph import Graph
from partita.plan import Plan
from partita.planner.joint.climb import sharpest
from partita.planner.joint.engine import Answer, Engine
from partita.planner.joint.interleave import interleaved
from partita.planner.joint.plan import Solved, solve
from partita.planner.joint.price import Pricing
from partita.problem import Problem
from partita.ranking import ranked
from partita.simulate.predict import predicted
from partita.simulated import captured, fits

GIB = 2**30
DEVICES = (4, 8, 16, 32)
# Throughput over PipeDream's on 4, 8, 16 and 32 devices (the paper's Figure 6).
PAPER = {
    "multimodal-4x8": (1.10, 1.28, 1.30, 1.66),
    "dlrm-like": (1.20, 1.40, 1.30, 1.47),
    "uno-like": (0.92, 1.23, 1.23, 1.24),
}
STEPS = ("chain", "lanes", "seq", "plain", "graph")
PLAIN = {"tp": 1, "zero": 0, "recompute": "none"}
# Answers of the search that a climb under the sharper formula begins with, and how far they may be from the best.
MOST, WITHIN = 8, 1.1


@dataclass(frozen=True)
class Setting:
    """A model with samples a device, and GiB a device on 4, 8, 16 and 32 devices."""

    model: str
    samples: int
    gib: tuple[float, float, float, float]


SETTINGS = (
    Setting("multimodal-4x8", 16, (16, 16, 16, 16)),
    Setting("multimodal-4x8", 16, (5, 4, 4, 4)),
    Setting("dlrm-like", 256, (16, 16, 16, 16)),
    Setting("uno-like", 256, (16, 16, 16, 16)),
)


@dataclass(frozen=True)
class Step:
    """Simulated seconds of a step, the most micro-batches in flight in a stage, GiB of the fullest device."""

    seconds: float
    in_flight: int
    gib: float


@cache
def model(name: str) -> Graph:
    """The recipe's graph."""
    return load_model(name, None, compute_dtype("fp16"))


def problem(setting: Setting, devices: int) -> Problem:
    """What a row asks."""
    memory = int(setting.gib[DEVICES.index(devices)] * GIB)
    cluster = parse_cluster(f"{devices // 4}x4xv100-16gb")
    return Problem(model(setting.model), cluster, setting.samples * devices, "fp16", "adam", "partita", memory)


def step(plan: Plan) -> Step:
    """What the simulation of a plan says."""
    held = max(stage.in_flight for stage in plan.predicted.breakdown.stages)
    return Step(plan.predicted.step_seconds, held, max(plan.predicted.peak_bytes.values()) / GIB)


def lanes(solved: Solved) -> float | None:
    """Seconds of the fastest interleaved form of the best chain that fits."""
    asked, found = solved.engine.pricing.problem, []
    for plan in interleaved(solved, solved.best):
        if (graph := captured(asked, plan)) is not None:
            plan = predicted(graph, plan, asked.cluster)
            if fits(asked, plan):
                found.append(plan.predicted.step_seconds)
    return min(found, default=None)


def sequential(engine: Engine, best: Answer | None) -> float | None:
    """Seconds of the best stages of which each waits for the one before, near a search's best; None where none fit."""
    if best is None:
        return None
    depths = [depth for schedule, depth in engine.schedules if schedule == "1f1b"]
    starts = [best, *engine.others(best, WITHIN, MOST)]
    return min(found.seconds for one in starts for found in sharpest(one.table, one.found.stages, depths))


def plain(asked: Problem) -> Engine:
    """The search among what PipeDream has."""
    stated = replace(asked, fix=PLAIN)
    return Engine(Pricing(stated, alike(stated.graph)), schedules=[("1f1b", 0)])


def number(value: float | None, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def row(setting: Setting, devices: int) -> str:
    """One line of the table."""
    asked = problem(setting, devices)
    start = time.process_time()
    solved = solve(asked)
    plan = ranked(solved)
    took = time.process_time() - start
    graph, chain = step(plan), step(ranked(solve(replace(asked, fix={"schedule": "1f1b"}))))
    limited = plain(asked)
    other, alone = lanes(solved), sequential(solved.engine, solved.best)
    simple = sequential(limited, limited.search().best)
    best = chain.seconds if other is None else min(chain.seconds, other)
    seconds = (chain.seconds, other, alone, simple, graph.seconds)
    ratios = [each and each / graph.seconds for each in (best, alone, simple)]
    paper = PAPER[setting.model][DEVICES.index(devices)]
    return (
        f"{setting.model:14}  {devices:7}  {asked.global_batch:5}  {asked.memory_limit / GIB:4.1f}  "
        f"{'  '.join(number(each, 6, 4) for each in seconds)}  {'  '.join(number(each, 4, 2) for each in ratios)}  "
        f"{paper:5.2f}  {chain.in_flight:4} {graph.in_flight:4}  {chain.gib:5.2f} {graph.gib:5.2f}  {took:6.1f}  "
        f"{plan.order.words}, pp={len(plan.stages)}"
    )


def rows(models: Sequence[str], devices: Sequence[int]) -> Iterator[tuple[Setting, int]]:
    for setting in SETTINGS:
        if setting.model in models:
            yield from ((setting, count) for count in devices)


def main() -> None:
    """The rows that are asked for."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--models", nargs="+", choices=PAPER, default=list(PAPER))
    asked.add_argument("--devices", nargs="+", type=int, choices=DEVICES, default=list(DEVICES))
    given = asked.parse_args()
    print(f"{machine()}\n{__doc__}")
    print(
        f"{'model':14}  devices  batch   GiB  {'  '.join(f'{what:>6}' for what in STEPS)}   (a)   (s)   (b)  paper  "
        "in flight   GiB held   search  plan"
    )
    for setting, devices in rows(given.models, given.devices):
        print(row(setting, devices), flush=True)


if __name__ == "__main__":
    main()
