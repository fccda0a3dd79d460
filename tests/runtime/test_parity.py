"""Training by a Program against training on one device: losses, every gradient, weights after three Adam steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.adapters.torch.execute import PROBABILITY
from partita.graph.constant import RANDOM
from partita.plan import Recompute
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout
from tests.runtime.training import generators_around_a_step, gradients_of_both, train

LAYOUTS = {
    "dp2": Layout(dp=2),
    "pp2": Layout(pp=2),
    "pp2 dp2": Layout(pp=2, dp=2),
    "tp2": Layout(tp=2),
    "pp2 tp2": Layout(pp=2, tp=2),
    "dp2 tp2": Layout(dp=2, tp=2),
    "tp4": Layout(tp=4),
    "pp4 uneven": Layout(pp=4, sizes=(1, 3, 1, 1)),
    "pp2 recompute": Layout(pp=2, recompute="full"),
    "pp2 tp2 recompute": Layout(pp=2, tp=2, recompute="full"),
    "pp2 gpipe": Layout(pp=2, schedule="gpipe"),
}
# Orders of turns, which are the same whatever the stages hold.
ORDERS = {
    **{f"pp4 {count} micro-batches": Layout(pp=4, micro_batches=count) for count in (1, 3, 5)},
    **{f"pp4 gpipe {count}": Layout(pp=4, micro_batches=count, schedule="gpipe") for count in (1, 3, 5)},
    **{f"pp2 dp2 {count}": Layout(pp=2, dp=2, micro_batches=count) for count in (1, 3)},
}
# What Llama has and GPT-2 hasn't matters where it is cut; copies and orders are those of any model.
LLAMA = ("pp2", "tp2", "pp2 tp2", "pp2 tp2 recompute")
PADDED = ("dp2", "pp2 dp2", "pp2 tp2", "dp2 tp2")
# How many labels count is not a matter of the model; its mask is.
PADDED_LLAMA = ("dp2", "pp2 tp2")
T5 = ("pp2", "pp2 tp2", "pp2 dp2", "pp2 recompute", "pp4 3 micro-batches")
FLOAT32 = {f"gpt2 {name}" for name in ("pp2 dp2 padded", "pp2 tp2 recompute")}


def table() -> list[tuple[str, Case]]:
    rows = [(f"gpt2 {name}", Case("gpt2", layout)) for name, layout in LAYOUTS.items()]
    rows += [(f"llama {name}", Case("llama", LAYOUTS[name])) for name in LLAMA]
    rows += [(f"gpt2 {name}", Case("gpt2", layout)) for name, layout in ORDERS.items()]
    rows += [(f"{model} {name} padded", Case(model, (LAYOUTS | ORDERS)[name], padded=True))
             for model, names in (("gpt2", PADDED), ("llama", PADDED_LLAMA)) for name in names]  # fmt: skip
    rows += [(f"gpt2 untied {name}", Case("gpt2 untied", LAYOUTS[name])) for name in ("pp2", "pp2 tp2")]
    # With two stages all of the first is frozen, with three all of the second: its gradients still pass.
    rows += [
        (f"gpt2 frozen start {name}", Case("gpt2 frozen start", LAYOUTS[name])) for name in ("pp2", "tp2", "pp2 dp2")
    ]
    rows += [
        ("gpt2 frozen middle pp3", Case("gpt2 frozen middle", Layout(pp=3))),
        ("gpt2 frozen middle pp2 recompute", Case("gpt2 frozen middle", LAYOUTS["pp2 recompute"])),
    ]
    rows += [(f"t5 {name}", Case("t5", (LAYOUTS | ORDERS)[name])) for name in T5]
    rows += [("t5 pp2 padded", Case("t5", LAYOUTS["pp2"], padded=True))]
    # What float32 could show beside float64 is how values are rounded: that is a matter of neither model nor order.
    return [
        (f"{name} {dtype}", replace(row, dtype=dtype))
        for name, row in rows
        for dtype in (("float32", "float64") if name in FLOAT32 else ("float64",))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in table()])
def test_training_is_that_of_one_device(pool: Pool, case: Case) -> None:
    outcomes = pool.run(train, case.layout.devices, case)
    assert_equal(case, outcomes)
    # GPT-2's head reads the embedding's weight: with stages there is a copy, and assert_equal has compared it.
    tied = case.model in ("gpt2", "t5") and case.layout.pp > 1
    assert any(outcome.shared for outcome in outcomes) == tied


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pp2", "pp2 dp2", "tp2"])
def test_bfloat16_is_near(pool: Pool, name: str) -> None:
    case = Case("gpt2", LAYOUTS[name], dtype="bfloat16", steps=1)
    assert_equal(case, pool.run(train, case.layout.devices, case))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name"),
    [*(("gpt2", name) for name in ("dp2", "pp2", "tp2", "pp2 tp2", "pp2 dp2")), ("llama", "pp2 tp2")],
)
def test_clipping_is_by_the_norm_of_the_whole_model(pool: Pool, model: str, name: str) -> None:
    case = Case(model, LAYOUTS[name], dtype="float64", clip_norm=0.25)
    outcomes = pool.run(train, case.layout.devices, case)
    assert outcomes[0].dense_norm > 0.5
    assert_equal(case, outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "what"),
    [
        *((name, "gpt2 dropout", "full") for name in ("pp2 tp2", "dp2")),
        *((name, model, "selective") for name in ("pp2", "tp2") for model in ("gpt2 dropout", "gpt2 written out")),
    ],
)
def test_recomputation_repeats_its_dropout(pool: Pool, name: str, model: str, what: Recompute) -> None:
    case = Case(model, LAYOUTS[name])
    again = replace(case, layout=replace(case.layout, recompute=what))
    for losses, differences in pool.run(gradients_of_both, case.layout.devices, case, again):
        assert losses[0] == losses[1]
        assert {name: error for name, error in differences.items() if error} == {}


@pytest.mark.slow
def test_recomputation_repeats_noise_drawn_in_place(pool: Pool) -> None:
    case = Case("noisy", Layout(), dtype=None)
    again = replace(case, layout=replace(case.layout, recompute="full"))
    ((losses, differences),) = pool.run(gradients_of_both, 1, case, again)
    assert losses[0] == losses[1] > 36.0
    assert differences == {"first.weight": 0.0, "second.weight": 0.0}


def test_every_operator_that_torch_says_is_random_has_a_key() -> None:
    names = {
        name.split(".")[0].removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if "aten::" in name
    }
    packets = [getattr(torch.ops.aten, name) for name in sorted(names) if hasattr(torch.ops.aten, name)]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    tagged = {o._schema.name for o in overloads if torch.Tag.nondeterministic_seeded in o.tags}
    kinds = {name.split("::")[1].rstrip("_") for name in tagged}
    # Attention draws for its dropout only. Names that begin with "_" are for torch's own use, but for distributions.
    offered = {kind for kind in kinds if not kind.startswith("_")} - {"scaled_dot_product_attention", "miopen_rnn"}
    assert offered | {"_sample_dirichlet", "_standard_gamma"} == RANDOM <= kinds
    assert "scaled_dot_product_attention" in PROBABILITY


@pytest.mark.slow
def test_dropout_drops_and_is_the_same_in_every_pipeline(pool: Pool) -> None:
    case = Case("gpt2 dropout", Layout(), dtype="float64", steps=1)
    (alone,) = pool.run(train, 1, case)
    assert abs(alone.losses[0] - alone.dense_losses[0]) > 1e-6
    for layout in (Layout(pp=2), Layout(pp=4, schedule="gpipe"), Layout(dp=2, micro_batches=1)):
        divided = pool.run(train, layout.devices, replace(case, layout=layout))
        assert divided[0].losses[0] == pytest.approx(alone.losses[0], rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["full", "none", "selective"])
def test_a_step_leaves_the_random_numbers_of_others_alone(pool: Pool, recompute: Recompute) -> None:
    """A script draws its order of samples from the same generator, the same on every rank."""
    case = Case("gpt2 dropout", Layout(pp=2, recompute=recompute))
    for before, after in pool.run(generators_around_a_step, 2, case):
        assert before == after
