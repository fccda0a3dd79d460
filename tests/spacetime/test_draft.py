"""What a plan function says wrongly is said where it says it: in one sentence, with the names and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.draft import Draft, divide_state, drafted, offload, op_assign, op_order, op_trans, recompute
from partita.drafted import library, plan_function
from partita.errors import InputError, PartitaError, PlanError
from partita.plan import Axis, Order, Plan
from partita.problem import Problem
from partita.schedules import Phase, Turn
from partita.simulate.predict import predicted
from partita.spacetime.lower import lower_to_time
from partita.spacetime.program import Share

pytest.importorskip("torch")

BLOCKS = ("embedding", *(f"transformer.h.{layer}" for layer in range(4)), "head")


@cache
def problem(devices: int) -> Problem:
    return Problem(load_model("gpt3-tiny", None, "float32"), parse_cluster("cpu", devices), 4, target="partita")


def plan(function: Callable[[Draft], None], devices: int = 2, **numbers: int) -> Plan:
    return drafted(function, "mine", problem(devices), numbers)


def whole(draft: Draft) -> None:
    op_assign(draft, draft.blocks, draft.devices, data=len(draft.devices))


ASSIGNED = {
    "unknown block": (["transformer.h.9"], [0], {}, 'has no block "transformer.h.9"'),
    "a text": ("head", [0], {}, '"head" stands where a list of blocks is needed; ["head"] works'),
    "no blocks": ([], [0], {}, "stage 0 has no blocks; at least one is needed"),
    "no such device": (BLOCKS, [0, 7], {"data": 2}, "stage 0: there is no device 7; 2 are given, 0 to 1"),
    "negative device": (BLOCKS, [-1], {}, "stage 0: there is no device -1; 2 are given, 0 to 1"),
    "twice": (BLOCKS, [1, 1], {"data": 2}, "stage 0: device 1 is listed twice"),
    "no mesh": (BLOCKS, [0, 1], {"tensor": 3}, "stage 0: data=1 × tensor=3 make no mesh of 2 devices"),
    "negative size": (BLOCKS, [0, 1], {"data": -1, "context": -2}, 'axis "data" has the size -1; a whole number'),
    "no whole number": (BLOCKS, [0, 1], {"data": 2.0}, 'axis "data" has the size 2.0; a whole number, at least 1'),
}  # fmt: skip


@pytest.mark.parametrize("case", ASSIGNED)
def test_no_stage(case: str) -> None:
    blocks, devices, sizes, message = ASSIGNED[case]
    with pytest.raises(PlanError) as error:
        plan(lambda draft: op_assign(draft, blocks, devices, **sizes))
    assert message in str(error.value)


CUT = {
    "no such dim": (BLOCKS, "banana", "tensor", '"banana" along "tensor": no block has such a dim'),
    "no such axis": (BLOCKS, "heads", "banana", "and the axes data, tensor and micro"),
    "unknown block": (["x"], "heads", "tensor", 'has no block "x"'),
    "how many": (BLOCKS, "batch", "micro", 'how many? Axis("micro", 4, "turns") makes 4 micro-batches'),
    "none": (BLOCKS, "batch", Axis("micro", 0, "turns"), 'axis "micro" has the size 0; a whole number, at least 1'),
    "another size": (BLOCKS, "heads", Axis("context", 2, "space"), 'stage "stage0" has context=1, and not 2'),
    "micro-batches": (BLOCKS, "batch", Axis("micro", 3, "turns"), "2 data-parallel copies; 1 and 2 micro-batches work"),
    "of a part": (BLOCKS[1:], "batch", Axis("micro", 2, "turns"), "micro-batches of some of its blocks: without"),
}


@pytest.mark.parametrize("case", CUT)
def test_no_cut(case: str) -> None:
    blocks, dim, axis, message = CUT[case]

    def mine(draft: Draft) -> None:
        whole(draft)
        op_trans(draft, blocks, dim, axis)

    with pytest.raises(PlanError) as error:
        plan(mine)
    assert message in str(error.value)


ORDERS = {
    "no turn": ([("forward", 0)], "turns of device 0: ('forward', 0) is no turn"),
    "no stage": ([Turn(5, "forward", 0)], "is of stage 5; the device serves 0"),
    "no micro-batch": ([Turn(0, "forward", 3)], "is of micro-batch 3; there are 1, from 0"),
    "no phase": ([Turn(0, "foreward", 0)], "there is no phase \"foreward\". Did you mean 'forward'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_no_order(case: str) -> None:
    turns, message = ORDERS[case]

    def mine(draft: Draft) -> None:
        whole(draft)
        op_order(draft, turns=dict.fromkeys(draft.devices, turns))

    with pytest.raises(PlanError) as error:
        plan(mine)
    assert message in str(error.value)


def two_stages(draft: Draft, first: Sequence[str], second: Sequence[str]) -> None:
    op_assign(draft, first, [0])
    op_assign(draft, second, [1])
    op_order(draft, "1f1b")


def ordered_early(draft: Draft) -> None:
    whole(draft)
    op_order(draft, "1f1b")
    op_trans(draft, draft.blocks, "batch", Axis("micro", 2, "turns"))


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (lambda draft: None, '"mine" made 0 stages (op_assign) and said 0 orders (op_order)'),
        (whole, '"mine" made 1 stages (op_assign) and said 0 orders (op_order)'),
        (lambda draft: op_trans(draft, BLOCKS, "heads", "tensor"), "op_assign comes before op_trans"),
        (ordered_early, "ordered 1 stages of 1 micro-batches and has 1 of 2: op_order comes last"),
        (partial(two_stages, first=BLOCKS[:2], second=BLOCKS[3:]), "5 of the 6 blocks of \"gpt3-tiny\"; missing is"),
        (partial(two_stages, first=BLOCKS[:3], second=BLOCKS[2:]), 'block "transformer.h.1" is in "stage0" already'),
        (partial(two_stages, first=(*BLOCKS[:3], BLOCKS[1]), second=BLOCKS[3:]), "is listed twice"),
    ],
)  # fmt: skip
def test_no_plan(mine: Callable[[Draft], None], message: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(mine)
    assert message in str(error.value)


def changed(change: Callable[[Draft], None]) -> Callable[[Draft], None]:
    """A plan of one stage, and what else is said of it."""

    def mine(draft: Draft) -> None:
        whole(draft)
        change(draft)
        op_order(draft, "1f1b")

    return mine


CHANGED = {
    "unknown block": (lambda draft: recompute(draft, ["x"]), 'has no block "x"'),
    "half a block": (lambda draft: recompute(draft, ["head"], "half"), "'half': none, selective and full work"),
    "some and away": (
        lambda draft: (recompute(draft, ["head"], "selective"), offload(draft, ["head"])),
        '"head" is computed again and offloaded',
    ),
    "a text": (lambda draft: offload(draft, "head"), '"head" stands where a list of blocks is needed'),
    "both": (
        lambda draft: (recompute(draft, ["head"]), offload(draft, ["head"])), '"head" is computed again and offloaded'
    ),
    "along data": (
        lambda draft: op_trans(draft, draft.blocks, "sequence", "data"),
        'its "sequence" cut along "data", which divides the batch alone',
    ),
    "an axis twice": (
        lambda draft: op_trans(draft, draft.blocks, "heads", Axis("data", 2, "turns")), 'has two axes "data"'
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_no_change(case: str) -> None:
    change, message = CHANGED[case]
    with pytest.raises(PartitaError) as error:
        plan(changed(change))
    assert message in str(error.value)


def test_blocks_may_have_zero_stages_of_their_own() -> None:
    made = plan(changed(lambda draft: divide_state(draft, draft.blocks[-2:], 1)))
    found = [strategy.zero for stage in made.stages for strategy in stage.strategies]
    assert found == [0] * (len(found) - 2) + [1, 1]


def test_what_changes_blocks_needs_stages() -> None:
    with pytest.raises(PlanError, match="there are no stages yet"):
        plan(lambda draft: recompute(draft, draft.blocks))


def test_an_axis_of_ones_own_may_have_one_device() -> None:
    def ring(draft: Draft) -> None:
        size = draft.argument("ring", 2)
        op_assign(draft, draft.blocks, draft.devices, data=len(draft.devices) // size, ring=size)
        op_trans(draft, draft.blocks, "sequence", "ring")
        op_order(draft, "1f1b")

    assert plan(ring).stages[0].other_axes == (Axis("ring", 2, "space"),)
    assert plan(ring, ring=1).stages[0].other_axes == ()
    graph, cluster = problem(2).graph, problem(2).cluster
    # Named as one likes, an axis is priced like any.
    assert predicted(graph, plan(ring), cluster).predicted.step_seconds > 0


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([("forward", 0), ("backward", 0)], "the forward of micro-batch 1 is missing on stage 0"),
        ([("forward", 1), ("backward", 1)], "the forward of micro-batch 0 is missing on stage 0"),
    ],
)
def test_turns_with_a_gap(turns: list[tuple[Phase, int]], message: str) -> None:
    def mine(draft: Draft) -> None:
        op_assign(draft, draft.blocks, [0])
        op_trans(draft, draft.blocks, "batch", Axis("micro", 2, "turns"))
        op_order(draft, turns={0: [Turn(0, phase, micro) for phase, micro in turns]})

    with pytest.raises(PlanError, match=message):
        lower_to_time(problem(1).graph, plan(mine, devices=1))


@pytest.mark.parametrize(
    ("name", "devices", "numbers", "message"),
    [
        ("megatron", 2, {"tp": 3}, "tp=3 doesn't divide 2 devices; 1 and 2 would"),
        ("context-parallel", 4, {"cp": 3}, "cp=3 doesn't divide 4 devices; 1, 2 and 4 would"),
        ("interlaced", 4, {"pp": 3}, "pp=3 doesn't divide 4 devices; 1, 2 and 4 would"),
        ("1f1b", 4, {"pp": 4, "tp": 2}, "tp=2 doesn't divide the 1 devices of each of 4 parts; 1 would"),
        ("interleaved", 2, {"chunks": 40}, "6 blocks can't be divided into 80 stages; 1 to 6 work"),
        ("data-parallel", 3, {}, "global batch 4 can't be divided over 3 data-parallel copies; multiples of 3 work"),
        ("3f1b", 2, {}, "share parameters over 3 passes"),
        ("co-shard", 1, {"blocks": 9}, 'blocks=9: "gpt3-tiny" has 4 with heads or hidden units'),
        ("megatron", 2, {"pt": 2}, "asks for no number \"pt\". Did you mean 'tp'?"),
    ],
)
def test_numbers_that_a_plan_of_the_library_cannot_have(
    name: str, devices: int, numbers: dict[str, int], message: str
) -> None:
    with pytest.raises(PlanError) as error:
        plan(library()[name], devices, **numbers)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", "failed with ZeroDivisionError: division by zero (own.py, line 2)"),
        ("draft.nothing", "failed with AttributeError: 'Draft' object has no attribute 'nothing' (own.py, line 2)"),
        ("raise SystemExit(3)", "failed with SystemExit: 3 (own.py, line 2)"),
    ],
)
def test_a_function_that_fails_is_said_to_be_the_users(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"def mine(draft):\n    {body}\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        plan(plan_function(f"{path}:mine"))
    assert message in str(error.value)


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("from partita.draft import *\ndef mine(draft): pass\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"has no function \"mien\". Did you mean 'mine'\?"):
        plan_function(f"{path}:mien")


def halves(draft: Draft, first: int, last: int, schedule: str = "1f1b", **turns: object) -> None:
    op_assign(draft, BLOCKS[:3], [0])
    op_assign(draft, BLOCKS[3:], [1])
    op_trans(draft, BLOCKS[:3], "batch", Axis("micro", first, "turns"))
    op_trans(draft, BLOCKS[3:], "batch", Axis("micro", last, "turns"))
    op_order(draft, schedule, **turns)


def test_stages_may_have_micro_batches_of_their_own() -> None:
    found = plan(partial(halves, first=4, last=2))
    assert [(stage.samples, stage.micro_batches) for stage in found.stages] == [(1, 4), (2, 2)]
    assert found.order == Order("1f1b", 2, 4, {"depth": 0})
    assert lower_to_time(problem(1).graph, found).shares == (Share(1, 4, 1), Share(1, 2, 2))
    turns = {0: [Turn(0, "forward", 3)], 1: [Turn(1, "forward", 2)]}
    with pytest.raises(PlanError, match=r"turns of device 1: .* is of micro-batch 2; there are 2, from 0"):
        plan(partial(halves, first=4, last=2, turns=turns))
    zero_bubble = plan(partial(halves, first=4, last=2, schedule="zb-h1"))
    with pytest.raises(PlanError, match='"zb-h1" needs as many micro-batches in each stage; these have 4 and 2'):
        lower_to_time(problem(1).graph, zero_bubble)
