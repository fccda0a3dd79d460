"""DeepSpeed's checkpoints: training that was saved and loaded goes on as if it had never stopped, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.models import MODELS
from tests.runtime.programs import Layout
from tests.runtime.training import Part, dense_model, global_batch

PARTITIONED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
CASES = {
    **{f"dp2 zero{zero}": Case("gpt2 dropout", Layout(dp=2, zero=zero)) for zero in (0, 1, 2)},
    "dp2 zero3": Case("gpt2 dropout", Layout(dp=2, zero=3), config=PARTITIONED),
    "pp2": Case("gpt2 dropout", Layout(pp=2)),
    "pp2 recompute": Case("gpt2 dropout", Layout(pp=2, recompute="full")),
    "pp2 dp2 zero1": Case("gpt2 dropout", Layout(pp=2, dp=2, zero=1)),
    "pp2 tp2": Case("gpt2 dropout", Layout(pp=2, tp=2)),
    "pp2 zero1 bf16": Case("gpt2 dropout", Layout(pp=2, zero=1), dtype="bfloat16"),
    "pp3 dp2 zero1, a frozen stage": Case("gpt2 frozen middle", Layout(pp=3, dp=2, zero=1)),
}


def interrupted(case: Case, folder: str) -> tuple[list[float], list[float], list[float]]:
    """Losses of steps 2 and 3: of a run of four, of its continuation after loading what it saved before them, and of
    fresh engines that begin there without loading."""
    whole = Part(case, dense_model(case).state_dict())
    for step in (0, 1):
        whole.step(global_batch(case, step))
    whole.engine.save_checkpoint(folder, tag="half")
    uninterrupted = [whole.step(global_batch(case, step)) for step in (2, 3)]

    def fresh() -> Part:
        torch.manual_seed(1)
        weights = MODELS[case.model].build().state_dict()
        return Part(case, weights)

    loaded = fresh()
    loaded.engine.load_checkpoint(folder, tag="half")
    continued = [loaded.step(global_batch(case, step)) for step in (2, 3)]
    return uninterrupted, continued, [fresh().step(global_batch(case, 2))]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_continues_to_the_bit(pool: Pool, tmp_path: Path, name: str) -> None:
    case = replace(CASES[name], engine="deepspeed")
    for uninterrupted, continued, unloaded in pool.run(
        interrupted, case.layout.devices, case, str(tmp_path), timeout=120
    ):
        assert continued == uninterrupted
        assert unloaded[0] != uninterrupted[0]
