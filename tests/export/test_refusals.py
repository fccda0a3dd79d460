"""What each framework can't express, with the numbers that stand in the way and what would work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partita.plan import Order, Plan
from partita.plugins.capture_huggingface import capture_config
from partita.plugins.export.exported import Inexpressible
from partita.plugins.export.verb import FRAMEWORKS, exporter
from tests.export.plans import made, recomputing, split
from tests.runtime.programs import Layout, plan

T5 = {
    "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "vocab_size": 32,
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip


def unlike(**numbers: int) -> Plan:
    """A plan whose second stage differs."""
    whole = split((2, 2))
    return replace(whole, stages=(whole.stages[0], replace(whole.stages[1], **numbers)))


PLANS: dict[str, Callable[[], Plan]] = {
    "dp": lambda: unlike(dp=1, devices=(2,)),
    "tp": lambda: unlike(dp=1, tp=2),
    "turns": lambda: unlike(samples=12, micro_batches=2),
    "uneven": lambda: replace(split((4,)), stages=(replace(split((4,)).stages[0], samples=5),)),
    "idle": lambda: replace(split((2, 2)), idle_devices=(4, 5)),
    "moved": lambda: replace(split((2, 2)), stages=tuple(reversed(split((2, 2)).stages))),
    "gpipe": lambda: made(Layout(pp=2, micro_batches=4, schedule="gpipe")),
    "ahead": lambda: replace(split((2, 2)), order=Order("1f1b", 2, 4, {"depth": 1})),
    "fp64": lambda: made(Layout(dp=2), precision="fp64"),
    "zero 2 in stages": lambda: made(Layout(pp=2, dp=2, zero=2)),
    "zero 3": lambda: made(Layout(dp=2, zero=3)),
    "stages": lambda: made(Layout(pp=2)),
    "pieces": lambda: made(Layout(tp=2)),
    "both": lambda: made(Layout(pp=2, tp=2)),
    "last layer again": lambda: recomputing((2, 2), ("-R", "-R")),
    "attention again": lambda: recomputing((2, 2), ("SS", "SS")),
    "attention of one stage": lambda: recomputing((2, 2), ("SS", "R-")),
    "one stage again": lambda: recomputing((2, 2), ("RR", "--")),
    "t5": lambda: plan(capture_config(T5, samples=2, seq=8), Layout(pp=2)),
    "vit": lambda: plan(capture_config(VIT, samples=2), Layout(pp=2)),
    "offload": lambda: replace(
        made(Layout(dp=2)),
        stages=tuple(
            replace(stage, strategies=(*stage.strategies[:-1], replace(stage.strategies[-1], offload=True)))
            for stage in made(Layout(dp=2)).stages
        ),
    ),
    "whole layers": lambda: replace(
        made(Layout(tp=2)),
        stages=tuple(
            replace(stage, strategies=tuple(replace(s, cuts=s.cuts[:1]) for s in stage.strategies))
            for stage in made(Layout(tp=2)).stages
        ),
    ),
}
EVERY = " ".join(FRAMEWORKS)


@pytest.mark.parametrize(
    ("name", "refusing", "fact"),
    [
        ("dp", EVERY, "can say that the stages have dp 2 and 1. Plan for --target partita"),
        ("tp", EVERY, "can say that the stages have tp 1 and 2; the stages have dp 2 and 1. Plan for --target partita"),
        ("turns", EVERY, "can say that the stages have micro_batches 4 and 2. Plan for --target partita"),
        ("uneven", EVERY, "gives its 2 copies 5 samples a micro-batch"),
        ("idle", EVERY, "It leaves devices 4 and 5 idle"),
        ("idle", EVERY, "plan for a cluster of 4 devices"),
        ("moved", EVERY, "It puts rank 0 on device 2"),
        ("gpipe", EVERY, 'no schedule "gpipe", it orders turns as 1f1b; plan with --fix schedule=1f1b'),
        ("ahead", EVERY, 'no schedule "1f1b depth=1", it orders turns as 1f1b; plan with --fix schedule=1f1b'),
        ("fp64", EVERY, "does not train in fp64; fp32, bf16, fp16 work"),
        ("zero 2 in stages", "deepspeed", "DeepSpeed's pipeline takes the ZeRO stages 0 and 1, not 2"),
        ("zero 2 in stages", "megatron", "divides what ZeRO-1 does, not ZeRO-2"),
        ("zero 3", "megatron", "divides what ZeRO-1 does, not ZeRO-3; plan with --fix zero=1"),
        ("stages", "trainer accelerate", "It has pp=2, for which"),
        ("stages", "trainer accelerate", 'name its file in the DeepSpeed configuration: "partita": {"plan": FILE}'),
        ("pieces", "trainer accelerate", "It has tp=2, for which"),
        ("both", "trainer accelerate", "plan with --fix pp=1, --fix tp=1"),
        (
            "both",
            "deepspeed",
            "It has tp=2, and DeepSpeed's configuration can't say how layers are cut; --to megatron can",
        ),
        ("last layer again", "megatron", "Its stages recompute 1 and 1 of 2 and 2 layers"),
        ("one stage again", "megatron", "Its stages recompute 2 and 0 of 2 and 2 layers"),
        ("last layer again", "deepspeed trainer accelerate", "It recomputes some of its blocks only"),
        (
            "attention of one stage",
            "megatron",
            "the inside of attention again in 2 of 4 layers; Megatron does so in all",
        ),
        ("attention again", "deepspeed trainer accelerate", "It computes the inside of attention again"),
        ("t5", "megatron", 'block "between.0" comes where "encoder.block.2" would'),
        ("vit", "megatron", "Its samples have no tokens"),
        ("offload", EVERY, 'What block "head" keeps for its backward pass waits in the host\'s memory'),
        ("whole layers", "megatron", "It leaves 4 layers whole with tp=2"),
    ],
)
def test_the_reason_is_said(name: str, refusing: str, fact: str) -> None:
    for framework in refusing.split():
        with pytest.raises(Inexpressible) as caught:
            exporter(framework)(PLANS[name]())
        assert any(fact in reason for reason in caught.value.reasons), str(caught.value)
        assert caught.value.exit_status == 1


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("zero 3", "deepspeed trainer accelerate"),
        ("stages", "deepspeed megatron"),
        ("pieces", "megatron"),
        ("both", "megatron"),
        ("t5", "deepspeed"),
        ("vit", "deepspeed"),
    ],
)
def test_who_can_express_it_does(name: str, able: str) -> None:
    for framework in able.split():
        plan = PLANS[name]()
        assert exporter(framework)(plan).processes == len(plan.devices)


def test_all_reasons_are_said_at_once() -> None:
    whole = replace(PLANS["gpipe"](), idle_devices=(7,), precision="fp64")
    with pytest.raises(Inexpressible) as caught:
        exporter("trainer")(whole)
    facts = ["leaves device 7 idle", 'no schedule "gpipe"', "does not train in fp64", "It has pp=2"]
    assert [fact for fact in facts if fact not in str(caught.value)] == []
    assert len(caught.value.reasons) == len(facts)


def test_one_micro_batch_has_one_order() -> None:
    """GPipe of a single micro-batch is 1F1B of it."""
    single = made(Layout(pp=2, micro_batches=1, schedule="gpipe"))
    assert exporter("deepspeed")(single).files["stages.json"]["num_stages"] == 2


def test_tied_weights_are_tied() -> None:
    from tests.export.plans import TIED

    tied = replace(split((2, 2)), shared_parameters=(TIED,))
    assert "--untie-embeddings-and-output-weights" not in exporter("megatron")(tied).files["megatron.args"]
    assert any('"transformer.wte.weight" is tied' in note for note in exporter("deepspeed")(tied).notes)
    assert "--untie-embeddings-and-output-weights" in exporter("megatron")(split((2, 2))).files["megatron.args"]
