"""Plans that only Partita's own runtime can run: said with what they have, wherever another engine is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from partita.adapters.deepspeed.initialize import initialize
from partita.adapters.deepspeed.planning import chosen, unfit
from partita.adapters.deepspeed.request import Request
from partita.adapters.torch.prepare import Lowered
from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, op_assign, op_order, op_trans
from partita.drafted import library
from partita.errors import PlanError
from partita.key import Key
from partita.plan import Axis, Cut, Order, Plan, save_plan
from partita.plugins.export.exported import Inexpressible
from partita.plugins.export.verb import FRAMEWORKS, exporter
from partita.problem import Problem
from partita.reach import beyond
from partita.schedules import Turn
from partita.spacetime.lower import lower
from tests.export.plans import graph, made
from tests.runtime.programs import Layout
from tests.runtime.training import capture

TWO, FOUR = 2, 4


def of_library(name: str, devices: int = TWO, **numbers: int) -> Plan:
    found = graph(6, 1)
    problem = Problem(found, parse_cluster("cpu", devices), 8, precision="fp32", target="deepspeed")
    return drafted(library()[name], name, problem, numbers)


def unlike_stages(draft: Draft) -> None:
    """Tensor parallelism in the second stage alone."""
    op_assign(draft, draft.blocks[:3], (0, 1), data=2)
    op_assign(draft, draft.blocks[3:], (2, 3), tensor=2)
    op_trans(draft, draft.blocks[3:], "classes", "tensor")
    op_order(draft, "1f1b")


def with_weight_turns() -> Plan:
    turns = {0: tuple(Turn(0, phase, 0) for phase in ("forward", "backward", "weight"))}
    return replace(made(Layout(micro_batches=1)), order=Order("turns", 1, 1, {}, turns))


def experts() -> Plan:
    return made(Layout(cuts=(Cut("batch", ("expert",)),), other_axes=(Axis("expert", 2, "space"),)), samples=2)


def unlike() -> Plan:
    problem = Problem(graph(6, 1), parse_cluster("cpu", FOUR), 8, precision="fp32")
    return drafted(unlike_stages, "unlike", problem, {})


BEYOND: dict[str, tuple[Callable[[], Plan], list[str]]] = {
    "interleaved": (lambda: of_library("interleaved"), ['device 0 serves the stages "stage0" and "stage2"']),
    "interlaced": (
        lambda: of_library("interlaced"),
        ['device 0 serves the stages "stage0", "stage1" and "stage3"', "the stages have tp 2, 1, 1 and 2"],
    ),
    "zero-bubble": (lambda: of_library("zero-bubble"), ['the order "zb-h1" has turns of weight gradients']),
    "weight turns": (with_weight_turns, ['the order "turns" has turns of weight gradients']),
    "co-shard": (
        lambda: of_library("co-shard"), ['stage "stage0" has an axis shard=2 of turns inside its blocks']
    ),
    "context-parallel": (lambda: of_library("context-parallel"), ['stage "stage0" has an axis context=2']),
    "expert-parallel": (experts, ['stage "stage 0" has an axis expert=2']),
    "sequence-parallel": (
        lambda: of_library("sequence-parallel"), ['block "embedding" has its sequence cut along tensor']
    ),
    "zeros": (lambda: made(Layout(pp=2, dp=2, zero=(1, 0))), ["its blocks have the ZeRO stages 0 and 1"]),
    "unlike": (unlike, ["the stages have tp 1 and 2", "the stages have dp 2 and 1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_what_goes_beyond_is_said(name: str, tmp_path: Path) -> None:
    make, reasons = BEYOND[name]
    plan = make()
    assert beyond(plan) == reasons
    for framework in FRAMEWORKS:
        with pytest.raises(Inexpressible) as caught:
            exporter(framework)(plan)
        # Nothing else is said: that the plan's file may be named in a DeepSpeed configuration would be wrong here.
        (reason,) = caught.value.reasons
        assert f"can say that {'; '.join(reasons)}." in reason
        assert "--target partita" in reason
    assert unfit(plan) is not None
    # As the key's plan, which is read from a file.
    plan = replace(plan, target="deepspeed", precision="fp32")
    save_plan(plan, tmp_path / "plan.json")
    cluster = parse_cluster("cpu", len(plan.devices))
    request = Request(plan.global_batch // len(plan.devices), 1, "fp32", "adam", None)
    if plan.global_batch % len(plan.devices) == 0:
        with pytest.raises(PlanError, match=r'^"partita.plan": .*plan\.json: ') as refused:
            chosen(graph(6, 1), cluster, Key(plan=str(tmp_path / "plan.json")), request)
        assert f"{'; '.join(reasons)}; DeepSpeed's engine can't run that, the target partita can" in str(refused.value)


@pytest.mark.parametrize("name", ["data-parallel", "zero-1", "zero-2", "zero-3", "megatron", "gpipe", "1f1b"])
def test_what_other_engines_run_is_not_beyond(name: str) -> None:
    plan = of_library(name)
    assert beyond(plan) == []
    assert unfit(plan) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        Layout(cuts=(Cut("sequence", ("context",)),), other_axes=(Axis("context", 2, "space"),)),
        Layout(tp=2, cuts=(Cut("heads", ("tensor",)), Cut("sequence", ("tensor",)))),
    ],
)
def test_deepspeeds_engine_refuses_it(layout: Layout) -> None:
    """Before any rank does anything: there is no process group here."""
    from tests.runtime.programs import plan

    captured = capture("gpt2", "float32")
    by_hand = replace(plan(captured.graph, layout), target="deepspeed")
    lowered = Lowered(captured, lower(captured.graph, by_hand))
    with pytest.raises(PlanError, match=r"^DeepSpeed's engine can't run the plan: .*; the target partita can$"):
        initialize(by_hand, lowered, config={"optimizer": {"type": "Adam"}})


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from partita.cli.main import main

    path = tmp_path / "plan.json"
    save_plan(of_library("interleaved"), path)
    assert json.loads(path.read_text())["order"]["generator"] == "interleaved"
    assert main(["export", str(path), "--to", "megatron"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert 'No file for Megatron-LM can say that device 0 serves the stages "stage0" and "stage2".' in err
