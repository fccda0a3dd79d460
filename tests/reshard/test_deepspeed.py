"""DeepSpeed checkpoints that move between plans: the losses go on as under the plan that saved them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks.pool import Pool
from tests.reshard.continuing import continued, fresh, moved, trained
from tests.runtime.engines import Case
from tests.runtime.programs import Layout

# 8 samples a step on every layout: 2 of each are in a micro-batch.
PP2_DP2 = Layout(pp=2, dp=2)
TP2_DP2 = Layout(tp=2, dp=2)
PP2_TP2 = Layout(pp=2, tp=2, micro_batches=4)
PP4 = Layout(pp=4, micro_batches=4)
FROZEN = Layout(pp=4, micro_batches=4, sizes=(2, 1, 1, 2))
DP4 = Layout(dp=4, micro_batches=1)
PARTITIONED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}

# Tied embeddings, a fused QKV and a padded vocabulary are in all of GPT-2's.
MOVES = {
    "pp2 dp2 zero1 to tp2 dp2": ("gpt2", replace(PP2_DP2, zero=1), TP2_DP2),
    "zero3 to pp2 dp2 zero1": ("gpt2", replace(DP4, zero=3), replace(PP2_DP2, zero=1)),
    "pp2 tp2 to zero3": ("gpt2", PP2_TP2, replace(DP4, zero=3)),
    "tp2 dp2 zero2 to pp2 tp2": ("gpt2", replace(TP2_DP2, zero=2), PP2_TP2),
    "llama pp2 tp2 to zero2": ("llama", PP2_TP2, replace(DP4, zero=2)),
    # Of the four stages the two in the middle are frozen.
    "frozen stages zero1 to pp2 dp2": ("gpt2 frozen middle", replace(FROZEN, zero=1), PP2_DP2),
    "pp2 dp2 zero1 to frozen stages": ("gpt2 frozen middle", replace(PP2_DP2, zero=1), FROZEN),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVES)
def test_losses_go_on(pool: Pool, tmp_path: Path, name: str) -> None:
    model, *layouts = MOVES[name]
    before, after = (
        Case(model, layout, engine="deepspeed", config=PARTITIONED if layout.zero == 3 else {}) for layout in layouts
    )
    uninterrupted = pool.run(trained, 4, before, str(tmp_path / "saved"), timeout=120)[0]
    moved(tmp_path / "saved", after, tmp_path / "moved")
    for losses, steps, client in pool.run(continued, 4, after, str(tmp_path / "moved"), timeout=120):
        assert losses == pytest.approx(uninterrupted, rel=1e-5)
        assert (steps, client) == (2, [model])
    assert fresh(after)[0] != pytest.approx(uninterrupted[0], rel=1e-4)


WRAPPERS = {
    # What DeepSpeed puts around the optimizer, and its files, differ with each.
    "zero3 to zero1": (3, 1),
    "zero1 to zero2": (1, 2),
    "zero2 to zero0": (2, 0),
    "zero0 to zero3": (0, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPERS)
def test_bf16_weights_come_from_those_in_32_bits(pool: Pool, tmp_path: Path, name: str) -> None:
    """The first loss is the same to the bit: the weights are. Then gradients are added up in another precision."""
    before, after = (
        Case("gpt2", replace(DP4, zero=zero), dtype="bfloat16", engine="deepspeed") for zero in WRAPPERS[name]
    )
    uninterrupted = pool.run(trained, 4, before, str(tmp_path / "saved"), timeout=120)[0]
    moved(tmp_path / "saved", after, tmp_path / "moved")
    for losses, _, _ in pool.run(continued, 4, after, str(tmp_path / "moved"), timeout=120):
        assert losses[0] == uninterrupted[0]
        assert losses[1] == pytest.approx(uninterrupted[1], rel=1e-4)
