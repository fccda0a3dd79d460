"""Plans of random models whose blocks form a graph, beside the best chains of stages and the bound.

The models are those of ``tests/planner/branches/dags.py``. The best chain is that of the planner with the schedule
held to 1F1B and the blocks listed in several orders: the model's own, branch by branch, level by level, depth first
from the last blocks, and ``--random`` others. Each is simulated as a plan of the model, and must fit its memory. Small
models are also held against all stages that there are, under the planner's formula (``optimum``), and any against what
is proven.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import machine  # noqa: E402

from partita.errors import Infeasible  # noqa: E402
from partita.planner.branches.search import branched, relisted  # noqa: E402
from partita.planner.joint.plan import solve  # noqa: E402
from tests.planner.branches.beside_chains import SAME, Outcome, outcome, timed  # noqa: E402
from tests.planner.branches.dags import CLUSTERS, KINDS, SMALL, drawn  # noqa: E402
from tests.planner.branches.optimum import over_optimum  # noqa: E402

# Numbers of blocks whose searches are timed, on eight devices; so many of each.
SIZES, TIMED = (5, 10, 20, 40, 60, 100), 3
WITHIN = (0.01, 0.05, 0.2)
GAPS = (0.01, 0.02, 0.05, 0.2)
# Blocks of the models for which all stages are gone through.
MOST = 7


def outcomes(count: int, seed: int, blocks: tuple[int, int], clusters, random: int) -> Iterator[Outcome]:
    """So many models from a seed on; those that don't fit are said and not counted."""
    while count:
        try:
            yield outcome(drawn(seed, blocks, clusters), random)
            count -= 1
        except Infeasible:
            print(f"model {seed} fits in no way")
        seed += 1


def kind(found: Outcome) -> str:
    """The kind of a model, from its name."""
    return found.problem.graph.name.rsplit(" ", 1)[0]


def line(what: str, found: list[Outcome]) -> None:
    """How often plans beat the best chain, and by how much."""
    ratios = sorted(one.ratio for one in found)
    won = sum(ratio > 1 + SAME for ratio in ratios)
    lost = sum(ratio < 1 - SAME for ratio in ratios)
    print(
        f"{what:16} {len(found):4} models: {won:3} wins, {len(found) - won - lost:3} ties, {lost:2} losses; the best "
        f"chain takes {ratios[0]:.4f} / {median(ratios):.4f} / {ratios[-1]:.4f} times as long (least, median, most)",
        flush=True,
    )


def table(found: list[Outcome]) -> None:
    """Beside the chains, and beside the bound."""
    for name in KINDS:
        if these := [one for one in found if kind(one) == name]:
            line(name, these)
    line("all", found)
    print(f"won by: {dict(Counter(one.plan.schedule for one in found if one.ratio > 1 + SAME))}")
    own = sum(len({stage.micro_batches for stage in one.plan.stages}) > 1 for one in found)
    print(f"with micro-batches of a stage's own: {own}")
    graphs = [one for one in found if one.plan.search.engine == "branches"]
    shares = ", ".join(
        f"{sum(one.gap <= most for one in graphs) / len(graphs):.0%} within {most:.0%}" for most in WITHIN
    )
    print(f"stages that form a graph or are listed otherwise: {len(graphs)}; above their bound: {shares}")


def small(count: int) -> None:
    """How often the search's answer is the best of all stages."""
    ratios, seed = [], 0
    while len(ratios) < count:
        if (both := over_optimum(seed, MOST)) is not None:
            ratios.append(both[0])
        seed += 1
    equal = sum(ratio < 1 + 1e-9 for ratio in ratios)
    print(
        f"{count} models of up to {MOST} blocks on 4 devices: {equal} answers are the best of all stages under the "
        f"formula, {sum(ratio < 1.01 for ratio in ratios)} within 1 %; the worst takes {max(ratios):.3f} times as long",
        flush=True,
    )


def gaps(count: int, seed: int, blocks: tuple[int, int], work: int) -> None:
    """How far the search's best answers are above what is proven with so much work, under the planner's formula."""
    found: list[tuple[int, float, float]] = []
    while len(found) < count:
        problem = drawn(seed, blocks)
        seed += 1
        try:
            solved = solve(problem)
        except Infeasible:
            continue
        before = time.process_time()
        for one in branched(solved, inf, 1, list(relisted(solved, inf)), work):
            gap = one.best.seconds / one.searched.bound_seconds - 1
            found.append((len(problem.graph.blocks), gap, time.process_time() - before))
            name, size, took = problem.graph.name, *found[-1][::2]
            print(f"{name}, {size} blocks: {gap:.2%} above what is proven, {took:.1f} s", flush=True)
    for least, most in zip((0, *SIZES), SIZES, strict=False):
        these = [gap for size, gap, _ in found if least < size <= most]
        if these:
            shares = ", ".join(f"{sum(gap <= one for gap in these)} within {one:.0%}" for one in GAPS)
            print(f"{least + 1:3} to {most:3} blocks: {len(these)} models, {shares}; the worst {max(these):.1%}")
    within = sum(gap <= GAPS[0] for _, gap, _ in found) / len(found)
    print(f"all: {within:.0%} of {len(found)} within {GAPS[0]:.0%}", flush=True)


def times() -> None:
    """Seconds of this process for a whole plan by the number of blocks."""
    for size in SIZES:
        took = [timed(drawn(seed, (size, size), CLUSTERS[1::2]))[1] for seed in range(TIMED)]
        print(f"{size:3} blocks on 8 devices: {min(took):.2f} to {max(took):.2f} s of the process", flush=True)


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first model's")
    parser.add_argument("--blocks", type=int, nargs=2, default=(5, 40), metavar=("LEAST", "MOST"))
    parser.add_argument("--random", type=int, default=0, help="further orders of the chains' blocks")
    parser.add_argument("--optimal", type=int, default=0, help="small models, held against all stages")
    parser.add_argument("--proven", type=int, default=0, help="models whose answers are held against what is proven")
    parser.add_argument("--work", type=float, default=3e8, help="of each of these proofs")
    parser.add_argument("--small", action="store_true", help="on four devices alone")
    parser.add_argument("--times", action="store_true", help="seconds by the number of blocks")
    asked = parser.parse_args()
    print(f"{machine()}\n", flush=True)
    clusters = SMALL if asked.small else CLUSTERS
    found = []
    for one in outcomes(asked.count, asked.seed, tuple(asked.blocks), clusters, asked.random):
        found.append(one)
        if one.ratio < 1 - SAME:
            print(f"lost: {one.problem.graph.name}, {one.ratio:.4f}", flush=True)
        if len(found) % 20 == 0 and len(found) < asked.count:
            line("so far", found)
    if found:
        table(found)
    if asked.optimal:
        small(asked.optimal)
    if asked.proven:
        gaps(asked.proven, asked.seed, tuple(asked.blocks), int(asked.work))
    if asked.times:
        times()


if __name__ == "__main__":
    main()
