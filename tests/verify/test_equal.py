"""Plans by hand compute what one device computes: losses, gradients, parameters after three steps of Adam."""

from __future__ import annotations

import pytest

from partita.plan import Axis, Cut
from tests.runtime.programs import Layout
from tests.verify.models import model, verified

LAYOUTS = {
    "dp2": Layout(dp=2),
    "pp2": Layout(pp=2),
    "tp2": Layout(tp=2),
    "pp2 dp2": Layout(pp=2, dp=2),
    "pp2 tp2": Layout(pp=2, tp=2),
    "pp2 recompute": Layout(pp=2, recompute="full"),
    "pp2 selective": Layout(pp=2, recompute="selective"),
    "pp3 gpipe": Layout(pp=3, micro_batches=3, schedule="gpipe"),
}
# Along axes of their own: shards in turns on one device, the sequence on two.
OTHERS = {
    "co-shard": Layout(
        pp=2, other_axes=(Axis("shard", 2, "turns"),), cuts=(Cut("heads", ("shard",)), Cut("hidden", ("shard",)))
    ),
    "co-shard tp2": Layout(
        tp=2, other_axes=(Axis("shard", 2, "turns"),),
        cuts=(Cut("heads", ("tensor", "shard")), Cut("hidden", ("tensor", "shard"))),
    ),
    "co-shard tp2 selective": Layout(
        tp=2, other_axes=(Axis("shard", 2, "turns"),), recompute="selective",
        cuts=(Cut("heads", ("tensor", "shard")), Cut("hidden", ("tensor", "shard"))),
    ),
    "context 2 selective": Layout(
        other_axes=(Axis("context", 2, "space"),), cuts=(Cut("sequence", ("context",)),), recompute="selective"
    ),
    "pp2 dp2 tp2 zero 3 1 selective": Layout(pp=2, dp=2, tp=2, zero=(3, 1), recompute="selective"),
    "context 2": Layout(other_axes=(Axis("context", 2, "space"),), cuts=(Cut("sequence", ("context",)),)),
}  # fmt: skip
# Each holds what others do alone: copies, pieces and stages.
TOGETHER = tuple(name for name in LAYOUTS if name not in ("dp2", "pp2", "tp2"))
# With dropout GPT-2 is the same model and more. Two devices can't share the three heads of the ViT.
MODELS: dict[str, tuple[str, ...]] = {
    "gpt2 dropout": (*LAYOUTS, *OTHERS),
    "gpt2 frozen middle": tuple(LAYOUTS),
    "llama": TOGETHER,
    # Tied, without stages too.
    "t5": ("tp2", *TOGETHER),
    "vit": tuple(name for name in TOGETHER if "tp2" not in name),
    "swin": TOGETHER,
    "gpt2 written out": tuple(name for name in LAYOUTS | OTHERS if "selective" in name),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    [pytest.param(name, layout, id=f"{name} {layout}") for name, found in MODELS.items() for layout in found],
)
def test_a_plan_by_hand_is_equal(name: str, layout: str) -> None:
    laid_out = (LAYOUTS | OTHERS)[layout]
    verdict = verified(name, laid_out)
    assert verdict.equal, str(verdict.difference)
    assert verdict.errors.missing == ()
    assert verdict.errors.loss < 1e-13
    assert verdict.errors.largest("gradient") < 1e-12
    assert verdict.errors.largest("parameter") < 1e-10
    assert (verdict.steps, verdict.devices) == (3, laid_out.devices)
    assert verdict.model_layers == verdict.plan_layers == len(model(name).captured.graph.blocks)
    # It did learn: three different losses.
    assert len(set(verdict.losses)) == 3
