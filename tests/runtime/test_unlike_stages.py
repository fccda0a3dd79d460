"""Stages of unlike data and tensor parallelism and micro-batches on real ranks: training is that of one device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from partita.adapters.torch.engine import TorchEngine, clip_gradients, global_norm
from partita.adapters.torch.prepare import Lowered, prepare
from partita.adapters.torch.weights import StateDict
from tests.ranks.pool import Pool
from tests.runtime.library import Outcome, assert_one_device, train_both
from tests.runtime.models import MODELS, Batch, micro_batches
from tests.spacetime.unlike import CASES, Case, lowered
from tests.verify.models import captured_at, with_captures

# Some of each kind that fit on the pool's four ranks; all run on virtual devices (``tests/verify``).
NAMES = (
    "dp2 to tp2", "2 to 3 of 6", "turns of one's own", "tokens cut", "one sample behind two", "one sample before two",
    "recomputed", "tied, wider", "tied, fewer copies", "zero 3",
)  # fmt: skip
# Each rank captures the model at two numbers of samples.
TIMEOUT_SECONDS = 180.0


def _lowered(case: Case) -> Lowered:
    program = lowered(lambda samples: captured_at(case.model, samples).graph, case)
    return with_captures(case.model, program)


def train(name: str) -> Outcome:
    """What a rank does. Texts are padded, so that micro-batches count unequal tokens."""
    case = CASES[name]
    kind = MODELS[case.model]

    def batch(samples: int, generator: torch.Generator, padded: bool) -> Batch:
        found = kind.batch(samples, generator, padded)
        return {name: value.double() if value.is_floating_point() else value for name, value in found.items()}

    return train_both(replace(kind, batch=batch), _lowered(case), padded="gpt2" in case.model)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_training_is_that_of_one_device(pool: Pool, name: str) -> None:
    outcomes = pool.run(train, CASES[name].devices, name, timeout=TIMEOUT_SECONDS)
    assert_one_device(outcomes)
    kinds = {task.kind for outcome in outcomes for task in outcome.queue}
    assert "join" in kinds


def clipped(name: str) -> tuple[float, float, float]:
    """Of one step: the norm of all gradients that a rank finds, the same after clipping to half, and one device's."""
    case = CASES[name]
    lowered, kind = _lowered(case), MODELS[case.model]
    torch.manual_seed(0)
    model = kind.build().double()
    prepared = prepare(lowered, weights=StateDict(model.state_dict(), lowered.captured.graph.aliases))
    rank, program = prepared.groups.rank, lowered.program
    found = []

    class Look(TorchEngine):
        def update(self, stage: int) -> None:
            found.append(global_norm(self.stages, self.groups))
            clip_gradients(self.stages, self.groups, found[0] / 2)
            found.append(global_norm(self.stages, self.groups))

    batch = kind.batch(program.global_batch, torch.Generator().manual_seed(0), True)
    mine = micro_batches(batch, program.share(rank), program.places[rank][0].data)
    prepared.runtime.step(mine, Look(prepared.stages, prepared.groups, {}))
    loss = model(**batch)
    loss.backward()
    return (*found, float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp2 to one device", "zero 1"])
def test_the_norm_of_all_gradients_counts_each_once(pool: Pool, name: str) -> None:
    for norm, after, dense in pool.run(clipped, CASES[name].devices, name, timeout=TIMEOUT_SECONDS):
        assert norm == pytest.approx(dense, rel=1e-12)
        assert after == pytest.approx(dense / 2, rel=1e-5)
