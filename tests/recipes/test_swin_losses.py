"""Plans of swin-tiny on real ranks against one device: a table of arrangements and targets, and that it learns."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from partita.cli.options import problem
from partita.hooks import planned
from partita.recipes.compare import TOLERANCE
from partita.recipes.one_device import losses_on_one_device
from partita.recipes.recipe import Workload
from partita.recipes.swin.hooks import Swin
from tests.ranks.pool import Pool
from tests.recipes.ranks import losses_by_plan

NAME, BATCH, STEPS, RATE, SEED = "swin-tiny", 8, 4, 1e-3, 0

# The decisions held; devices; target. What is not held is the planner's.
PLANS = {
    "dp2 zero2": (["dp=2", "zero=2"], 2, "deepspeed"),
    "dp2 zero3": (["dp=2", "zero=3"], 2, "deepspeed"),
    "pp2 dp2": (["pp=2", "dp=2", "micro_batches=2"], 4, "deepspeed"),
    "pp4 recompute": (["pp=4", "micro_batches=2", "recompute=full"], 4, "deepspeed"),
    "tp2 dp2": (["tp=2", "dp=2"], 4, "deepspeed"),
    "pp2 tp2": (["pp=2", "tp=2", "micro_batches=2"], 4, "deepspeed"),
    "pp2 tp2 megatron": (["pp=2", "tp=2", "micro_batches=2"], 4, "megatron"),
    "pp2 tp2 partita": (["pp=2", "tp=2", "micro_batches=2"], 4, "partita"),
}


def workload() -> Workload:
    return Swin().workload(NAME, seq=None, dtype=torch.float32, seed=SEED, files={})


@cache
def one_device(steps: int) -> list[float]:
    return losses_on_one_device(workload(), steps=steps, global_batch=BATCH, learning_rate=RATE, seed=SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_equal_to_one_device(pool: Pool, name: str) -> None:
    fix, devices, target = PLANS[name]
    stated = problem(NAME, "cpu", devices, BATCH, None, "fp32", "adam", None, target, fix)
    plan = planned(stated)
    held = dict(decision.split("=") for decision in fix)
    stage = plan.stages[0]
    assert len(plan.stages) == int(held.get("pp", 1))
    assert (stage.dp, stage.tp) == (int(held.get("dp", 1)), int(held.get("tp", 1)))
    if "zero" in held:
        assert {strategy.zero for strategy in stage.strategies} == {int(held["zero"])}
    everyones = pool.run(losses_by_plan, devices, plan, workload, STEPS, BATCH, RATE, SEED, timeout=180)
    assert all(losses == everyones[0] for losses in everyones)
    differences = [abs(a - b) for a, b in zip(everyones[0], one_device(STEPS), strict=True)]
    assert max(differences) <= TOLERANCE


@pytest.mark.slow
def test_it_learns() -> None:
    """Ten digits drawn blindly cost log 10 = 2.30; initial weights that know nothing cost about that."""
    losses = one_device(60)
    assert 2.2 < losses[0] < 3.0
    assert sum(losses[-10:]) / 10 < 1.9
