"""What happens on real ranks, three towers on one each and what joins them on the last, when something goes wrong.

A rank that is killed, a value of another shape than the plan's, a tower without a gradient, inputs whose shape changes
from step to step: a clear error, in these words, or the right result.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import Prepared, lower_model, prepare
from partita.adapters.torch.stage import Code
from partita.adapters.torch.weights import StateDict
from partita.errors import InputError, ModelError
from partita.plan import save_plan
from partita.spacetime.program import Task
from tests.ranks.pool import Pool, RankError
from tests.ranks.script import own_process
from tests.runtime.dag_models import SAMPLES, WIDTH, Batch, ThreeTowers, lowered, plan_of, three
from tests.runtime.models import micro_batches

pytestmark = pytest.mark.slow

TOWERS, RANKS = "three towers", 4


class NarrowEngine(TorchEngine):
    """What the second tower makes of its second micro-batch has two elements too few."""

    forwards = 0

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        made = super().forward(batch, inputs, key, code)
        self.forwards += 1
        narrow = (code.piece.stage, self.forwards) == (1, 2)
        return {name: value[:, :6] if narrow else value for name, value in made.items()}


def towers(engine: type[TorchEngine] = TorchEngine) -> tuple[Prepared, TorchEngine]:
    """This rank's part of the model, and what trains it."""
    found = lowered(TOWERS)
    torch.manual_seed(0)
    weights = StateDict(ThreeTowers().double().state_dict(), found.captured.graph.aliases)
    prepared = prepare(found, weights=weights)
    made = optimizers(prepared.stages, lambda named: torch.optim.SGD(named.values(), lr=0.1))
    return prepared, engine(prepared.stages, prepared.groups, made)


def step(prepared: Prepared, engine: TorchEngine, batch: Mapping[str, Tensor]) -> float:
    double = {name: value.double() for name, value in batch.items()}
    share = prepared.lowered.program.share(prepared.groups.rank)
    return prepared.runtime.step(micro_batches(double, share, 0), engine)


def killed(rank: int, kind: str, micro: int) -> None:
    """What a rank does: one step, and in the second one of them is killed at a task."""
    prepared, engine = towers()

    def kill(task: Task) -> None:
        if (prepared.groups.rank, task.kind, task.micro) == (rank, kind, micro):
            os.kill(os.getpid(), signal.SIGKILL)

    batch = three(SAMPLES, torch.Generator())
    step(prepared, engine, batch)
    prepared.runtime.observe = kill
    step(prepared, engine, batch)


@pytest.mark.parametrize(
    ("rank", "kind", "micro", "words"),
    [
        (1, "forward", 0, {3: 'stage 3: in receive of "tanh_1@0 to stage 3" from rank 1'}),
        # All towers are done but for their last two backwards; the gradient of the first may still be on its way.
        (3, "backward", 3, {
            0: 'stage 0: in receive of "gradient of tanh from stage 3@[23]" from rank 3',
            1: 'stage 1: in receive of "gradient of tanh_1 from stage 3@[23]" from rank 3',
            2: 'stage 2: in receive of "gradient of tanh_2 from stage 3@[23]" from rank 3',
        }),
    ],
    ids=["a tower", "what joins them"],
)  # fmt: skip
def test_a_rank_that_is_killed(pool: Pool, rank: int, kind: str, micro: int, words: Mapping[int, str]) -> None:
    """Whoever waits for it says at once for what, and for whom."""
    with pytest.raises(RankError, match=f"rank {rank} of 4: died with exit code -{signal.SIGKILL}") as error:
        pool.run(killed, RANKS, rank, kind, micro)
    for other, waited in words.items():
        assert re.search(f"^rank {other}, {waited}$", str(error.value), re.M), str(error.value)


def narrowed() -> None:
    """What a rank does: a step in which one stage gives another shape than the plan's."""
    prepared, engine = towers(NarrowEngine)
    step(prepared, engine, three(SAMPLES, torch.Generator()))


def test_a_value_of_another_shape_is_not_sent(pool: Pool) -> None:
    with pytest.raises(RankError) as error:
        pool.run(narrowed, RANKS)
    assert (
        'PlanError: send of "tanh_1@1 to stage 3" to rank 3: what stage 1 made has shape [2, 6], the plan was lowered '
        "for [2, 8]; a plan must be lowered for the model that runs"
    ) in str(error.value)
    assert "rank 1 of 4: Traceback" in str(error.value)


class Detached(ThreeTowers):
    """The second tower is read, but no gradient comes back to it."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.head(self.text(x), self.image(y).detach(), self.sound(z))


def refused() -> str:
    """What a rank is told when it lowers the plan for the model."""
    try:
        lower_model(plan_of(TOWERS), Detached, lambda samples: three(samples, torch.Generator()))
    except ModelError as error:
        return str(error)
    return ""


def test_a_tower_without_a_gradient_is_refused_by_name(pool: Pool) -> None:
    words = "parameters that the loss does not depend on: image.linear.weight, image.linear.bias; freeze or remove them"
    assert pool.run(refused, RANKS) == [words] * RANKS


def shapes() -> list[str]:
    """What a rank is told in steps of which the second has an input of another shape, which one tower reads."""
    prepared, engine = towers()
    said = []
    for width in (WIDTH, 6, WIDTH):
        batch = three(SAMPLES, torch.Generator())
        try:
            step(prepared, engine, batch | {"y": batch["y"][:, :width]})
            said.append("")
        except InputError as error:
            said.append(str(error))
    return said


def test_an_input_of_another_shape_is_refused_on_all_ranks(pool: Pool) -> None:
    """Also on those that don't read it; the next step, of the old shape, runs."""
    words = 'rank 1: micro-batch 0: "y" has shape [2, 6], the plan was lowered for [2, 8]'
    assert pool.run(shapes, RANKS) == [["", words, ""]] * RANKS


class Called(ThreeTowers):
    """It says what it is called with."""

    def example_inputs(self, samples: int) -> Batch:
        return three(samples, torch.Generator())


LENGTHS = (3, 5, 1, 3)


def loop(plan: str) -> tuple[list[float], list[float]]:
    """What a rank does: a loop over its own samples, of another number of tokens in each step; and one device's."""
    import deepspeed
    import torch.distributed as dist

    found: tuple[list[float], list[float]] = [], []
    with own_process():
        torch.manual_seed(0)
        model, dense = Called(), ThreeTowers()
        dense.load_state_dict(model.state_dict())
        optimizer, sgd = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, dense))
        config = {
            "train_micro_batch_size_per_gpu": SAMPLES // RANKS, "zero_allow_untested_optimizer": True,
            "partita": {"plan": plan},
        }  # fmt: skip
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        for index, length in enumerate(LENGTHS):
            made = torch.Generator().manual_seed(index)
            batch = {name: torch.randn(SAMPLES, length, WIDTH, generator=made) for name in "xyz"}
            loss = engine(**{name: value.chunk(RANKS)[dist.get_rank()] for name, value in batch.items()})
            engine.backward(loss)
            engine.step()
            wanted = dense(**batch)
            wanted.backward()
            sgd.step()
            sgd.zero_grad()
            found[0].append(loss.item())
            found[1].append(wanted.item())
    return found


def test_inputs_that_change_shape_in_a_loop(pool: Pool, tmp_path: Path) -> None:
    save_plan(plan_of(TOWERS, "fp32", "deepspeed"), tmp_path / "plan.json")
    for losses, dense in pool.run(loop, RANKS, str(tmp_path / "plan.json")):
        assert losses == pytest.approx(dense, rel=1e-6)
        assert len(set(losses)) == len(LENGTHS)
