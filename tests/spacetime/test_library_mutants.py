"""The kinds of faults that break plans in practice, each in plans of the library: refused, with op or tensor named.

Fourteen kinds, and three that come with stages that share a device and with weight turns. What no proof can see,
because only values show it, stands in ``tests/verify/test_library_mutants.py``: a recomputed op with another mask,
replicas with different random state, a wrong scale or literal argument inside an op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from partita.errors import PlanError
from partita.spacetime.program import COLLECTIVES, TURNS, Program, Task
from partita.spacetime.prove import prove
from partita.spacetime.prove_order import prove_order
from partita.spacetime.prove_queues import prove_queues
from tests.spacetime import mutants_of_plans as code
from tests.spacetime import mutants_of_turns as turns
from tests.spacetime.plans import CASES, proven
from tests.spacetime.programs import Mutant

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

PIECES = ("dim", "parts", "of")
KINDS: Mapping[str, Mapping[str, Mutant]] = {
    "an all-reduce missing": {
        "of a layer or a table": code.left_to_one,
        **{f"the first {form}": code.left_out(form) for form in sorted(COLLECTIVES)},
        **{f"the last {form}": code.left_out(form, -1) for form in sorted(COLLECTIVES)},
    },
    "an all-reduce twice": {
        "of a layer or a table": code.completed_and_summed,
        **{f"the first {form}": code.twice(form) for form in sorted(COLLECTIVES)},
        **{f"the last {form}": code.twice(form, -1) for form in sorted(COLLECTIVES)},
    },
    "a partial value into a non-linear op": {"": code.partial_into},
    "a shard with a wrong offset": {
        "each device the same part": code.the_same_part_for_each,
        "each device the other's part": code.other_places,
        "rows counted from the first": code.rows_counted_from_the_first,
        **{f"slice, another {key}": code.other_pieces("slice", key) for key in PIECES},
        **{f"scatter, another {key}": code.other_pieces("scatter", key) for key in PIECES},
        **{f"gather, another {key}": code.other_pieces("gather", key) for key in ("dim", "parts")},
        **{f"gather_entered, another {key}": code.other_pieces("gather_entered", key) for key in ("dim", "parts")},
        **{f"exchange, from another {key}": code.other_pieces("exchange", key, "source") for key in ("dim", "parts")},
        **{f"exchange, to another {key}": code.other_pieces("exchange", key, "target") for key in PIECES},
        "turns of fewer ops, from the front": code.another_region(lambda start, stop, size: (start + 1, stop, size)),
        "turns of fewer ops, from behind": code.another_region(lambda start, stop, size: (start, stop - 1, size)),
        "turns of more ops": code.another_region(lambda start, stop, size: (start, stop + 1, size)),
        "more turns than slices": code.another_region(lambda start, stop, size: (start, stop, 2 * size)),
    },
    "replicas that diverge": {
        "an average missing": turns.one_average_left_out,
        "an average twice": turns.averaged_for_each_micro_batch,
        "averages in two orders": turns.averages_in_two_orders,
        "never trained": turns.never_trained,
        "the sum of what pieces gave missing": code.gradient_of_pieces_never_summed,
        "the sum of what is whole": code.whole_gradient_summed,
        "a copy's sum elsewhere than its owner's": code.gradient_of_a_copy_summed_elsewhere,
    },
    "a gradient scaled wrongly when data-parallel sizes differ": {"": code.unequal_copies},
    "a loss over the wrong count": {
        "a mean": code.loss_is_a_mean, "other samples": code.other_samples, "other tokens": code.other_tokens_ignored,
    },
    "a tied parameter updated separately": {
        "by each stage": code.each_stage_its_own, "by one": code.one_copy_its_own,
        "sent where it is one": turns.sent_to_itself, "two parts of it on one device": code.other_places_in_the_head,
    },
    "a lost or doubled layer": {
        "the first lost": code.lost_block(0), "one but the last lost": code.lost_block(-2),
        "doubled": code.doubled_block,
    },
    "a padded shard counted": {
        "in a table": code.padding_counted, "in the loss": code.padded_classes_counted,
        "in what is put together": code.padded_rows_put_together,
    },
    "an order that deadlocks": {
        "a value sent after its gradient came": turns.sent_after_the_answer,
        "shared turns in two orders": turns.shared_turns_in_two_orders,
        "a shared turn put off": turns.shared_turn_put_off,
        "a weight turn before its backward": turns.weight_before_backward,
    },
    "a normalisation over a cut dim": {"": code.normalised_over_the_cut},
    "a micro-batch used before it arrived": {
        "a value": turns.used_before_it_arrived("value", "forward"),
        "a gradient": turns.used_before_it_arrived("gradient", "backward"),
        "one of the device's own": turns.used_before_the_device_made_it,
        "inputs the other way round": turns.inputs_the_other_way_round,
    },
    "a weight turn missing or doubled": {
        "one missing": turns.weight_left_out, "all missing": turns.all_weights_left_out, "doubled": turns.weight_twice,
    },
    "a value freed while another stage of the device reads it": {
        "": turns.freed_while_it_is_read, "or kept for nobody": turns.recycled_value_kept_for_a_backward,
    },
    "a gradient of the device's own stage added twice": {
        "": turns.own_gradient_added_twice, "sent as well": turns.own_gradient_also_sent,
        "or not at all": turns.own_gradient_forgotten,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_refused_in_every_plan_that_can_have_it(kind: str) -> None:
    plans = set()
    for title, mutant in KINDS[kind].items():
        met = 0
        for name in CASES:
            broken = mutant(*proven(name))
            if broken is None:
                continue
            met += 1
            plans.add(name)
            graph, program, words = broken
            with pytest.raises(PlanError) as error:
                prove(graph, program)
            said = str(error.value)
            assert all(any(one in said for one in word.split("|")) for word in words), (
                f"{name}, {title}: {words}: {said}"
            )
        assert met, f"{title}: no plan has anything to break"
    assert len(plans) >= 3, plans


# Queues of every new shape, with two of each thing that can be taken for the other.
QUEUES = ("interleaved tp", "zero-bubble dp", "interlaced dp", "3f1b dp")


def _refused(name: str, program: Program) -> str | None:
    graph, _ = proven(name)
    try:
        prove_queues(graph, program)
        prove_order(program)
    except PlanError as error:
        return str(error)
    return None


def _with(found: Program, device: int, *queue: Task) -> Program:
    return replace(found, queues={**found.queues, device: queue})


@pytest.mark.parametrize("name", QUEUES)
def test_any_task_left_out_or_doubled(name: str) -> None:
    _, found = proven(name)
    device = max(found.queues)
    queue = found.queues[device]
    for place, task in enumerate(queue):
        for part in ((), (task, task)):
            said = _refused(name, _with(found, device, *queue[:place], *part, *queue[place + 1 :]))
            assert said is not None, (place, task)
            assert f"device {device}" in said


@pytest.mark.parametrize("name", QUEUES)
def test_any_name_left_out_doubled_or_added(name: str) -> None:
    """What a task reads, writes, frees and passes on, one at a time."""
    _, found = proven(name)
    device = max(found.queues)
    queue = found.queues[device]
    everything = sorted({n for task in queue for n in task.writes if task.micro is not None})
    for place, task in enumerate(queue):
        for field in ("reads", "writes", "frees", "gradients"):
            has = getattr(task, field)
            # Of a whole step's tasks only transfers have names; they are the transfer's own.
            changed = [tuple(n for n in has if n != one) for one in has] + [(*has, one) for one in has]
            if field != "gradients" and task.micro is not None:
                changed += [(*has, one) for one in everything[:3] if one not in has]
            for now in changed:
                odd = replace(task, **{field: now})
                said = _refused(name, _with(found, device, *queue[:place], odd, *queue[place + 1 :]))
                assert said is not None, (place, field, now)
                assert f"device {device}" in said


@pytest.mark.parametrize("name", ["interleaved tp", "interlaced dp"])
def test_any_two_turns_that_others_share_exchanged(name: str) -> None:
    """Of one stage and phase, on one of the devices that take them together."""
    _, found = proven(name)
    device = max(found.queues)
    queue, refused = found.queues[device], 0
    for one, two in combinations(range(len(queue)), 2):
        first, second = queue[one], queue[two]
        same = first.kind in TURNS and (first.kind, first.stage) == (second.kind, second.stage)
        if same and len(found.tensor_group(device, first.stage)) > 1:
            swapped = [*queue[:one], second, *queue[one + 1 : two], first, *queue[two + 1 :]]
            assert _refused(name, _with(found, device, *swapped)) is not None
            refused += 1
    # Two stages, two phases, the pairs of four micro-batches.
    assert refused == 2 * 2 * 6
