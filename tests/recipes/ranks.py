"""A recipe trained by a plan, as a rank of the pool does it: what tests of recipes compare with one device."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch

from partita.plan import Plan
from partita.recipes.recipe import Workload


def losses_by_plan(
    plan: Plan, workload: Callable[[], Workload], steps: int, batch: int, rate: float, seed: int
) -> list[float]:
    """The losses of some steps, in a process group that is there already."""
    import torch.distributed as dist

    from partita.adapters.torch.prepare import lower_model
    from partita.recipes.train import micro_batches, trainer
    from tests.runtime.engines import forget_earlier_engines

    if plan.target == "deepspeed":
        forget_earlier_engines()
    work = workload()
    lowered = lower_model(plan, work.model, work.example)
    trained = trainer(plan, lowered, Namespace(learning_rate=rate, seed=seed), torch.device("cpu"))
    place, share = lowered.program.places[dist.get_rank()][0], lowered.program.share(dist.get_rank())
    return [trained.step(micro_batches(work.batch(step, batch), share, place.data)) for step in range(steps)]
