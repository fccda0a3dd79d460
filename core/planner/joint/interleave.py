"""Interleaved 1F1B out of an answer: the same devices and shape, but each group of devices serves several stages.

No formula here says what such a schedule takes, nor what a device holds in it: both are counted from its queues, by
whoever simulates the plan. What is chosen here is where the blocks are cut, all of them recomputed alike: so that the
largest of the stages · chunks pieces takes the least time, and then their sum of squares is the least (Narayanan et
al., 2021, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from partita.plan import UNPREDICTED, Order, Plan
from partita.planner.joint.engine import Answer
from partita.planner.joint.plan import Solved
from partita.planner.joint.table import Chosen

# Chunks a device serves at most: more of them send more often than they save.
CHUNKS = (2, 3, 4)


def interleaved(solved: Solved, answer: Answer) -> Iterator[Plan]:
    """Plans without a prediction, one for each number of chunks that the blocks allow; none for an answer whose stages
    differ in shape, for a target that gives a device one stage, and where the micro-batches aren't whole rounds."""
    problem, table = solved.engine.pricing.problem, answer.table
    lanes, shapes = len(answer.found.stages), {stage.shape for stage in answer.found.stages}
    fixed = not {"schedule", "pp"}.isdisjoint(problem.fix)
    if problem.target != "partita" or fixed or lanes == 1 or len(shapes) > 1 or table.micro_batches % lanes:
        return
    (shape,) = shapes
    if answer.family.shapes[shape].mixed:
        return
    base = solved.plan(answer)
    options = [m for m, option in enumerate(answer.family.options) if option.form == "tensor"]
    for chunks, option in product((chunks for chunks in CHUNKS if lanes * chunks <= table.blocks), options):
        bounds = _bounds(answer, shape, option, lanes * chunks)
        if bounds is None:
            continue
        stages = []
        for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            chosen = Chosen(start, stop, number % lanes, shape, (option,) * (stop - start))
            (stage,) = solved.stages(answer, (chosen,))
            stages.append(replace(stage, name=f"stage{number}"))
        yield replace(
            base, schedule="interleaved", stages=tuple(stages), predicted=UNPREDICTED,
            order=Order("interleaved", len(stages), table.micro_batches, {"lanes": lanes}),
            shared_parameters=solved.shared(stages),
        )  # fmt: skip


def _bounds(answer: Answer, shape: int, option: int, stages: int) -> list[int] | None:
    """Where the blocks are cut into that many stages; None where a block can't be in one of them."""
    table = answer.table
    lanes = len(answer.found.stages)
    seconds = np.stack([
        table.prices.forward[v, :, option] + table.prices.backward[v, :, option] for v in table.prices_of[shape, :lanes]
    ])  # fmt: skip
    if not np.isfinite(seconds).all():
        return None
    sums = np.concatenate([np.zeros((lanes, 1)), np.cumsum(seconds, axis=1)], axis=1)
    n = table.blocks
    # [first blocks]: the largest stage and the sum of squares so far, and where the last stage begins.
    best = {0: (0.0, 0.0)}
    froms: list[dict[int, int]] = []
    for stage in range(stages):
        line = sums[stage % lanes]
        found: dict[int, tuple[float, float]] = {}
        came: dict[int, int] = {}
        for stop in range(stage + 1, n - (stages - stage - 1) + 1):
            for start, (largest, squares) in best.items():
                if start >= stop:
                    continue
                took = float(line[stop] - line[start])
                value = (max(largest, took), squares + took * took)
                if stop not in found or value < found[stop]:
                    found[stop], came[stop] = value, start
        best = found
        froms.append(came)
    bounds = [n]
    for came in reversed(froms):
        bounds.append(came[bounds[-1]])
    return bounds[::-1]
