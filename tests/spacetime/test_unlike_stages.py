"""Stages of unlike data and tensor parallelism and micro-batches: what lowering makes is valid, and nothing less is.

Which samples go where is held against views materialised one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

import pytest

from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Order
from partita.plugins.capture_huggingface import capture_config
from partita.redistribution import View
from partita.schedules import Turn, find
from partita.schedules.turn import in_flight
from partita.spacetime.lower import lower, lower_to_time
from partita.spacetime.program import Program, Share, Task
from partita.spacetime.prove import prove
from tests.redistribution.materialise import materialise
from tests.spacetime.programs import with_tasks
from tests.spacetime.unlike import CASES, Case, Part, lowered, plan

# Of the table those whose model is one configuration.
NAMES = [name for name, case in CASES.items() if case.model in ("gpt2", "gpt2 untied")]
# To break: samples divided evenly and not, between two stages and three.
BROKEN = ("dp2 to tp2", "2 to 3 of 6", "three stages", "tied, fewer copies")


@cache
def graph(model: str, samples: int) -> Graph:
    settings = {
        "model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 128, "n_positions": 8,
        "tie_word_embeddings": model == "gpt2",
    }  # fmt: skip
    return capture_config(settings, samples=samples, seq=8, name=model)


def graphs(case: Case) -> list[Graph]:
    return [graph(case.model, case.batch // part.dp // part.micro_batches) for part in case.parts]


@cache
def found(name: str) -> tuple[list[Graph], Program]:
    case = CASES[name]
    return graphs(case), lowered(lambda samples: graph(case.model, samples), case)


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_goes_where_views_say(name: str) -> None:
    """Of every value and gradient: who receives which samples, against what each turn has and wants."""
    _, program = found(name)
    place = {(d, at.stage): at for d, served in program.places.items() for at in served}

    def samples(stage: int) -> list[tuple[tuple[int, int], View]]:
        return [
            ((device, turn), View((program.shares[stage].interval(place[device, stage].data, turn),)))
            for turn in range(program.shares[stage].turns)
            for device in program.devices_of[stage]
        ]

    joins = [(d, task) for d, queue in program.queues.items() for task in queue if task.kind == "join"]
    assert joins or len({*program.shares}) == 1
    received = {
        (d, task.writes[0]): task for d, queue in program.queues.items() for task in queue if task.kind == "receive"
    }
    for device, task in joins:
        edge = task.transfer
        assert edge is not None
        wanted = dict(samples(edge.target))[device, task.micro]
        has = dict(samples(edge.source))
        # Devices and turns stand for the devices of materialise: numbers.
        number = {key: index for index, key in enumerate(has)}
        (takes,) = materialise(edge.tensor, [(number[key], view) for key, view in has.items()], [(-1, wanted)])
        parts = [received[device, part] for part in task.reads]
        assert [part.transfer.samples for part in parts] == sorted(take.region[0] for take in takes)
        for part in parts:
            assert any(
                at == part.peer and view.contains(View((part.transfer.samples,))) for (at, _), view in has.items()
            )


@pytest.mark.parametrize("name", NAMES)
def test_all_devices_of_a_copy_that_has_a_value_send_it(name: str) -> None:
    _, program = found(name)
    for stage, devices in enumerate(program.devices_of):
        sends = {
            device: sum(
                t.kind == "send" and t.stage == stage and t.transfer.samples is not None for t in program.queues[device]
            )
            for device in devices
        }
        readers = [s for s in (stage - 1, stage + 1) if 0 <= s < len(program.devices_of)]
        if max(program.widths[s] for s in readers) >= program.widths[stage] and any(sends.values()):
            assert min(sends.values()) > 0


def _left_out(kind: str, what: str) -> Callable[[Task], list[Task]]:
    return lambda task: [] if task.kind == kind and task.transfer.what == what else [task]


def _shifted(kind: str) -> Callable[[Task], list[Task]]:
    """All samples one further."""

    def change(task: Task) -> list[Task]:
        if task.kind != kind or task.transfer.samples is None:
            return [task]
        start, stop = task.transfer.samples
        moved = replace(task.transfer, samples=(start + 1, stop + 1))
        names = {"writes": (moved.key(None),)} if kind == "receive" else {}
        return [replace(task, transfer=moved, **names)]

    return change


def _shorter(task: Task) -> list[Task]:
    """A message says that it is of fewer bytes than its samples have."""
    if task.transfer is None or task.transfer.samples is None:
        return [task]
    shape = (task.transfer.shape[0] - 1, *task.transfer.shape[1:])
    return [replace(task, transfer=replace(task.transfer, shape=shape))]


def _unordered(task: Task) -> list[Task]:
    return [replace(task, reads=task.reads[::-1]) if task.kind == "join" and len(task.reads) > 1 else task]


def _doubled(task: Task) -> list[Task]:
    return [replace(task, reads=(*task.reads, task.reads[-1])) if task.kind == "join" else task]


def _first_part_alone(task: Task) -> list[Task]:
    return [replace(task, reads=task.reads[:1], frees=task.frees[:1]) if task.kind == "join" else task]


def _other_turn(task: Task) -> list[Task]:
    """A part is sent after another turn than the one that makes it."""
    if task.kind != "send" or task.transfer.samples is None or task.micro is None:
        return [task]
    micro = task.micro - 1 if task.micro else task.micro + 1
    return [replace(task, micro=micro, reads=(task.transfer.sent(micro),))]


def _whole(task: Task) -> list[Task]:
    """A value is sent in one piece, as if the turns were alike."""
    if task.transfer is None or task.transfer.samples is None:
        return [task]
    return [replace(task, transfer=replace(task.transfer, samples=None))]


MUTANTS: dict[str, tuple[Callable[[Task], list[Task]], str]] = {
    "no value is sent": (_left_out("send", "value"), r"sends .* where device \d receives .* of samples"),
    "no value is received": (_left_out("receive", "value"), "joins .* which is no part"),
    "no value is joined": (_left_out("join", "value"), "needs .* which never arrives|the join of the value"),
    "no gradient is sent": (_left_out("send", "gradient"), "sends .* where|never freed"),
    "no gradient is received": (_left_out("receive", "gradient"), "joins .* which is no part"),
    "no gradient is joined": (_left_out("join", "gradient"), "needs .* which never arrives|the join of the gradient"),
    "other samples are sent": (_shifted("send"), r"takes \[\d+, \d+\) in this turn|sends .* where .* receives"),
    "other samples are received": (_shifted("receive"), r"takes \[\d+, \d+\) in this turn|which is no part"),
    "fewer rows": (_shorter, r"bytes; \[\d+, \d+\) of the"),
    "parts in another order": (_unordered, "they must be in order"),
    "a part twice": (_doubled, r"reach device \d+, which takes \[\d+, \d+\) twice"),
    "the first part alone": (_first_part_alone, r"samples \[\d+, \d+\) never reach device"),
    "after another turn": (_other_turn, r"takes \[\d+, \d+\) in this turn|is for none of the"),
    "in one piece": (_whole, "goes in parts|bytes; the model has"),
}


@pytest.mark.parametrize("kind", MUTANTS)
def test_a_mutant_is_refused_and_named(kind: str) -> None:
    change, words = MUTANTS[kind]
    broken = 0
    for name in BROKEN:
        models, program = found(name)
        mutant = with_tasks(program, lambda device, task: change(task))
        if mutant == program:
            continue
        broken += 1
        with pytest.raises(PlanError) as error:
            prove(models, mutant)
        assert re.search(words, str(error.value)), f"{name}: {error.value}"
    assert broken >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp2 to one device", "2 to 3 of 6"])
def test_any_task_left_out_or_doubled(name: str) -> None:
    models, program = found(name)
    for device, queue in program.queues.items():
        for place in range(len(queue)):
            for tasks in ((), (queue[place], queue[place])):
                mutant = (*queue[:place], *tasks, *queue[place + 1 :])
                with pytest.raises(PlanError):
                    prove(models, replace(program, queues={**program.queues, device: mutant}))


def _peers_exchanged(program: Program) -> Program:
    """The gradients of rows go to another copy than the one that made them."""
    first, second = program.devices_of[0][:2]
    other = {first: second, second: first}

    def change(device: int, task: Task) -> list[Task]:
        if task.kind != "send" or task.transfer.what != "gradient":
            return [task]
        return [replace(task, peer=other.get(task.peer, task.peer))]

    return with_tasks(program, change)


def test_rows_to_another_copy() -> None:
    models, program = found("dp2 to one device")
    with pytest.raises(PlanError, match=r"sends .* where device \d receives"):
        prove(models, _peers_exchanged(program))


def test_unlike_samples_of_stages() -> None:
    """Two turns of one sample each beside three of two: not the same batch."""
    models, program = found("2 to 3 of 6")
    shares = (replace(program.shares[0], turns=2), program.shares[1])
    with pytest.raises(PlanError, match=r"take 1 × 2 × 2 and 1 × 2 × 3 samples a step .*would count unequally"):
        prove(models, replace(program, shares=shares))


REFUSED: dict[str, tuple[Callable[[Case], Case], Callable[[object], object], str]] = {
    "too late": (
        lambda case: replace(case, turns={
            0: tuple(Turn(0, phase, m) for m in range(2) for phase in ("forward", "backward")),
            1: tuple(Turn(1, phase, m) for phase in ("forward", "backward") for m in range(4)),
        }),
        lambda found: found,
        "the order deadlocks: device 0 waits in receive of .gradient of",
    ),
    "no such turn": (
        lambda case: replace(case, turns={0: (Turn(0, "forward", 3),), 1: ()}),
        lambda found: found,
        "stage 0 and micro-batch 3; it serves the stages 0, with the micro-batches 0 to 1",
    ),
    "another schedule": (
        lambda case: case,
        lambda found: replace(found, order=Order("zb-h1", 2, 4)),
        'schedule "zb-h1" needs as many micro-batches in each stage; these have 2 and 4. 1f1b, kfkb, gpipe',
    ),
    "fewer in the order": (
        lambda case: case,
        lambda found: replace(found, order=Order("1f1b", 2, 2)),
        "2 stages and 2 micro-batches, its stages take 2 and 4; 2 stages and 4 micro-batches, the most of a stage",
    ),
    "one device of both": (
        lambda case: case,
        lambda found: replace(found, stages=(found.stages[0], replace(found.stages[1], devices=(0,)))),
        'device 0 serves stages that divide the batch in unlike ways: of "stage 0" dp 1 with 2 micro-batches of 4 ',
    ),
    "shared and divided": (
        lambda case: Case((Part(dp=2), Part(micro_batches=4)), model="gpt2", zero=2),
        lambda found: found,
        'zero=2: the stages 0 and 1 share "transformer.wte.weight" and would divide it over 2 and 1',
    ),
    "shared and wider": (
        lambda case: Case((Part(dp=2), Part(tp=2)), model="gpt2"),
        lambda found: found,
        "transformer.wte.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said(name: str) -> None:
    changed, plan_of, message = REFUSED[name]
    case = changed(CASES["half the micro-batches"])
    with pytest.raises(PlanError, match=message):
        lower(graphs(case), plan_of(plan(lambda samples: graph(case.model, samples), case)))


def test_a_graph_of_other_samples() -> None:
    case = CASES["half the micro-batches"]
    found_plan = plan(lambda samples: graph(case.model, samples), case)
    with pytest.raises(PlanError, match=r'captured with 4 samples, the plan needs 2 .* for stage "stage 1"'):
        lower(graph(case.model, 4), found_plan)
    with pytest.raises(PlanError, match=r"are captured as other models: parameter \(.lm_head.weight"):
        lower([graph(case.model, 4), graph("gpt2", 2)], found_plan)
    with pytest.raises(PlanError, match="3 graphs for 2 stages"):
        lower([graph(case.model, 4)] * 3, found_plan)


def test_what_has_no_samples_is_whole_or_refused() -> None:
    """T5's position bias depends on parameters alone: between turns of one size each has all of it."""
    settings = {
        "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 2, "vocab_size": 32, "tie_word_embeddings": False,
    }  # fmt: skip

    def t5(samples: int) -> Graph:
        return capture_config(settings, samples=samples, seq=8, name="t5")

    # The encoder's first layer makes the bias of all its layers.
    parts, sizes = (Part(dp=2, micro_batches=1), Part(micro_batches=2)), (2, 5)
    program = lowered(t5, Case(parts, batch=4, sizes=sizes))
    # The table from which the bias is read lies in both stages; the encoder's own is shared.
    assert any(t.kind == "join" for queue in program.queues.values() for t in queue)
    odd = Case((Part(micro_batches=1), Part(micro_batches=2)), batch=4, sizes=sizes)
    with pytest.raises(PlanError, match="its first dim isn't known to be that of samples") as error:
        lowered(t5, odd)
    assert "crosses from stage 0 to stage 1, whose copies take 4 and 2 samples a turn" in str(error.value)
    # Of one sample too, whose bias has a first dim of one: what can't run isn't simulated.
    with pytest.raises(PlanError, match="its first dim isn't known to be that of samples"):
        lower_to_time(t5(1), plan(t5, odd))


@pytest.mark.parametrize("counts", [(4, 4), (8, 2, 4), (2, 8), (3, 2), (6, 4, 3), (1, 12, 1), (12, 12, 12, 4)])
@pytest.mark.parametrize(
    ("schedule", "arguments"), [("1f1b", {}), ("1f1b", {"depth": 1}), ("1f1b", {"depth": 3}), ("gpipe", {})]
)
def test_an_order_of_unlike_counts_waits_for_what_it_needs(
    schedule: str, arguments: dict[str, int], counts: tuple[int, ...]
) -> None:
    """Played turn by turn: no stage waits for ever, each turn runs once; 1F1B holds no more than it must."""
    batch = 24
    orders = find(schedule).unlike(counts, arguments)
    shares = [Share(1, count, batch // count) for count in counts]
    assert {stage: sorted(map(str, turns)) for stage, turns in orders.items()} == {
        stage: sorted(str(Turn(stage, phase, m)) for phase in ("forward", "backward") for m in range(count))
        for stage, count in enumerate(counts)
    }
    at, done = dict.fromkeys(orders, 0), {(s, phase): 0 for s in orders for phase in ("forward", "backward")}

    def ready(turn: Turn) -> bool:
        stop = shares[turn.stage].interval(0, turn.micro)[1]
        if turn.phase == "forward":
            return turn.stage == 0 or done[turn.stage - 1, "forward"] >= stop
        return turn.stage == len(counts) - 1 or done[turn.stage + 1, "backward"] >= stop

    moved = True
    while moved:
        moved = False
        for stage, turns in orders.items():
            while at[stage] < len(turns) and ready(turns[at[stage]]):
                turn = turns[at[stage]]
                done[stage, turn.phase] = shares[stage].interval(0, turn.micro)[1]
                at[stage] += 1
                moved = True
    assert all(at[stage] == len(turns) for stage, turns in orders.items())
    held = [in_flight(turns) for turns in orders.values()]
    depth = arguments.get("depth", 0)
    if schedule == "gpipe":
        assert held == list(counts)
    elif len(set(counts)) == 1:
        ahead = [behind + 1 + depth * behind for behind in reversed(range(len(counts)))]
        assert held == [min(counts[0], most) for most in ahead]
    else:
        # What the stage behind holds and waits for, of its turns or of those of this one, whichever are larger; and
        # what goes ahead.
        for (mine, ours), (behind, theirs) in pairwise(zip(held, shares, strict=True)):
            assert mine * ours.samples <= behind * theirs.samples + (2 + depth) * max(ours.samples, theirs.samples)


@pytest.mark.slow
def test_any_stages_are_valid_and_come_to_an_end() -> None:
    """60 random plans of two to four stages; what lowering gives it has proven."""
    random = Random(7)
    met: Counter[str] = Counter()
    for _ in range(60):
        batch = random.choice([12, 24])
        parts = tuple(
            Part(dp, random.choice([1, 1, 2]), random.choice([c for c in (1, 2, 3, 4, 6) if batch % (dp * c) == 0]))
            for dp in random.choices([1, 2, 3, 4], k=random.randint(2, 4))
        )
        case = Case(parts, batch, schedule=random.choice(["1f1b", "1f1b", "gpipe"]), zero=random.choice([0, 1, 3]))
        program = lowered(lambda samples: graph("gpt2 untied", samples), case)
        for queue in program.queues.values():
            met.update(f"{task.kind} of {len(task.reads)}" for task in queue if task.kind == "join")
    assert met["join of 1"] > 100
    assert met["join of 2"] > 100
    assert met["join of 3"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2 to 3 of 6", "tied, fewer copies"])
def test_any_name_left_out(name: str) -> None:
    models, program = found(name)
    for device, queue in program.queues.items():
        for place, task in enumerate(queue):
            for words in ("reads", "writes", "frees"):
                has = getattr(task, words)
                for at in range(len(has)):
                    changed = replace(task, **{words: (*has[:at], *has[at + 1 :])})
                    mutant = (*queue[:place], changed, *queue[place + 1 :])
                    with pytest.raises(PlanError):
                        prove(models, replace(program, queues={**program.queues, device: mutant}))
