"""What every order is made of, what it holds, and which counts and arguments are refused."""

from __future__ import annotations

from collections import Counter

import pytest

from partita.errors import PlanError
from partita.schedules import GENERATORS, Turn, forward_only, in_flight, one_f_one_b
from tests.schedules.play import play

UNITS = {"forward": 1, "backward": 2, "weight": 1}
# Name, stages, arguments, micro-batches, stages in which several lanes take part, stages that only go forward.
CASES = [
    (name, p, {}, m, (), ())
    for name in ("1f1b", "gpipe", "zb-h1") for p in (1, 2, 5) for m in (1, 3, 11)
] + [
    ("1f1b", p, {"depth": depth}, m, (), ())
    for p in (1, 2, 5) for depth in (1, 2, 20) for m in (1, 3, 11)
] + [
    ("interleaved", p * v, {"lanes": p}, groups * p, (), ())
    for p in (1, 2, 5) for v in (1, 2, 3) for groups in (1, 3)
] + [
    ("breadth-first", p * v, {"lanes": p}, m, (), ())
    for p in (1, 2, 5) for v in (1, 3) for m in (1, 3, 11)
] + [
    ("3f1b", p * passes, {"passes": passes}, m, (), range(p * (passes - 1)))
    for p in (1, 2, 5) for passes in (1, 2, 3) for m in (1, 3, 11)
] + [
    ("interlaced", p + 2, {"extra": extra}, m, (0, p + 1), ())
    for p in (1, 2, 5) for extra in (0, 1, 3) for m in (1, 3, 11)
]  # fmt: skip


@pytest.mark.parametrize(("name", "stages", "arguments", "count", "shared", "untrained"), CASES)
def test_every_turn_is_taken_once_by_each_of_its_lanes(name, stages, arguments, count, shared, untrained):
    schedule = GENERATORS[name]
    orders, lanes = schedule(stages, count, **arguments), schedule.lanes(stages, arguments)
    phases = ("forward", "backward", "weight") if schedule.weight else ("forward", "backward")
    assert sorted(orders) == list(range(len(lanes)))
    for lane, served in enumerate(lanes):
        assert Counter(orders[lane]) == Counter(
            Turn(stage, phase, micro)
            for stage in served for phase in (["forward"] if stage in untrained else phases) for micro in range(count)
        )  # fmt: skip
    of_stage = Counter(stage for served in lanes for stage in served)
    assert of_stage == {stage: len(lanes) if stage in shared else 1 for stage in range(stages)}
    # Turns in which several lanes take part come in one order on all of them.
    assert len({tuple(turn for turn in turns if turn.stage in shared) for turns in orders.values()}) == 1
    play(orders, UNITS)
    play(orders, UNITS | {"forward": 5, "backward": 1})  # no order depends on how long its turns take


@pytest.mark.parametrize(("name", "stages", "arguments", "count", "shared", "untrained"), CASES)
def test_no_lane_holds_more_micro_batches_than_the_schedule_states(name, stages, arguments, count, shared, untrained):
    schedule = GENERATORS[name]
    orders, lanes = schedule(stages, count, **arguments), schedule.lanes(stages, arguments)
    p = len(lanes)
    for lane, served in enumerate(lanes):
        of_1f1b = min(count, p - lane + arguments.get("depth", 0) * (p - lane - 1))
        exactly = {
            "1f1b": of_1f1b, "gpipe": count, "breadth-first": count * len(served),
            "zb-h1": min(count, p), "3f1b": of_1f1b,
            "interleaved": of_1f1b if len(served) == 1 else min(
                count * len(served), (len(served) - 1) * p + 2 * (p - lane) - 1
            ),
        }  # fmt: skip
        if name == "interlaced":
            own = [turn for turn in orders[lane] if turn.stage == lane + 1]
            assert in_flight(own) <= min(count, p - lane + arguments["extra"])
            # The head's micro-batch goes straight back; the embedding runs ahead of its pipeline by one.
            assert in_flight([turn for turn in orders[lane] if turn.stage == p + 1]) == 1
            assert in_flight([turn for turn in orders[lane] if turn.stage == 0]) <= p + arguments["extra"] + 2
        else:
            assert in_flight(orders[lane]) == exactly[name]


@pytest.mark.parametrize(("p", "count"), [(1, 1), (4, 2), (4, 9), (7, 7)])
def test_zero_bubble_is_1f1b_with_weight_turns_laid_between(p, count):
    orders = GENERATORS["zb-h1"](p, count)
    assert {lane: [t for t in turns if t.phase != "weight"] for lane, turns in orders.items()} == one_f_one_b(p, count)


@pytest.mark.parametrize(("p", "passes", "count"), [(4, 3, 16), (4, 3, 64), (2, 2, 9), (3, 5, 30)])
def test_recycling_keeps_few_micro_batches_between_its_passes(p, passes, count):
    waiting = most = 0
    for turn in GENERATORS["3f1b"](p * passes, count, passes=passes)[0]:
        waiting += (turn.stage == 0) - (turn.stage == p * (passes - 1) and turn.phase == "forward")
        most = max(most, waiting)
    assert most == p * (passes // 2)


def test_what_is_kept_for_no_backward_is_not_in_flight():
    assert [in_flight(turns) for turns in forward_only(3, 5).values()] == [0, 0, 0]


def test_a_micro_batch_is_held_until_the_last_turn_that_needs_it():
    words = "F0 F1 B0 F2 B1 W0 W1 B2 W2".split()
    phases = {"F": "forward", "B": "backward", "W": "weight"}
    turns = [Turn(0, phases[word[0]], int(word[1])) for word in words]
    assert in_flight(turns) == 3  # F2 comes before W0
    assert in_flight([turn for turn in turns if turn.phase != "weight"]) == 2
    assert in_flight([turn for turn in turns if turn.phase != "backward"]) == 3


@pytest.mark.parametrize("name", sorted(GENERATORS))
@pytest.mark.parametrize(("stages", "count"), [(0, 1), (1, 0), (-1, 3)])
def test_counts_that_are_not_positive_are_refused(name, stages, count):
    arguments = {"interleaved": {"lanes": 1}, "breadth-first": {"lanes": 1}}.get(name, {})
    with pytest.raises(PlanError, match="at least 1"):
        GENERATORS[name](stages, count, **arguments)


@pytest.mark.parametrize(
    ("name", "stages", "count", "arguments", "words"),
    [
        ("interleaved", 8, 6, {"lanes": 4}, "micro_batches=6 is no multiple of lanes=4, .*; 4 and 8 would"),
        ("interleaved", 8, 3, {"lanes": 4}, "; 4 would be"),
        ("breadth-first", 8, 8, {"lanes": 3}, "lanes=3 does not divide stages=8; 1, 2, 4 and 8 would"),
        ("interleaved", 8, 8, {"lanes": 3}, "lanes=3 does not divide stages=8; 1, 2, 4 and 8 would"),
        ("interleaved", 8, 8, {"lanes": 0}, "lanes=0"),
        ("interleaved", 8, 8, {}, 'schedule "interleaved" needs the argument "lanes"'),
        ("interleaved", 8, 8, {"lane": 4}, "takes no argument \"lane\". Did you mean 'lanes'"),
        ("3f1b", 8, 8, {}, "passes=3 does not divide stages=8; 1, 2, 4 and 8 would"),
        ("3f1b", 8, 8, {"passes": 0}, "passes=0"),
        ("interlaced", 2, 4, {}, "stages=2: .*3 would"),
        ("interlaced", 6, 4, {"extra": -1}, "extra=-1"),
        ("1f1b", 4, 4, {"depth": -1}, "depth=-1: .* 0 is the least"),
        ("1f1b", 4, 4, {"lanes": 4}, 'schedule "1f1b" takes no argument "lanes". Known: depth.'),
        ("gpipe", 4, 4, {"lanes": 4}, 'schedule "gpipe" takes no argument "lanes". It takes none.'),
    ],
)
def test_what_a_schedule_cannot_be_is_refused_with_its_numbers(name, stages, count, arguments, words):
    with pytest.raises(PlanError, match=words):
        GENERATORS[name](stages, count, **arguments)
    if "multiple" not in words and words != "; 4 would be" and "depth=" not in words:
        with pytest.raises(PlanError, match=words):
            GENERATORS[name].lanes(stages, arguments)
