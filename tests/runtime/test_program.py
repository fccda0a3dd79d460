"""The Program against closed formulas: tasks, transfers, bytes, layers, what is held; and that a run is the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest

from partita.graph import Graph
from partita.graph.constant import constant_ops
from partita.plugins.capture_huggingface import capture_config
from partita.spacetime.communication import ahead
from partita.spacetime.program import Program, Task
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.programs import Layout, program
from tests.runtime.training import train

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

SAMPLES, SEQ, HIDDEN, VOCABULARY, LAYERS = 3, 8, 16, 29, 10
VALUE_BYTES = SAMPLES * SEQ * HIDDEN * 4
# Fewer micro-batches than stages, as many, and more; each block a stage.
COUNTS = [(pp, c) for pp in (1, 2, 3, 12) for c in (1, 2, 3, 8)]
SCHEDULES = ("1f1b", "gpipe")


HELD = [("1f1b", lambda pp, c, stage: min(c, pp - stage)), ("gpipe", lambda pp, c, stage: c)]


@cache
def gpt2() -> Graph:
    settings = {
        "model_type": "gpt2", "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 2, "vocab_size": VOCABULARY,
        "n_positions": SEQ, "tie_word_embeddings": True, "resid_pdrop": 0.1, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return capture_config(settings, samples=SAMPLES, seq=SEQ)


@cache
def t5() -> Graph:
    settings = {
        "model_type": "t5", "d_model": HIDDEN, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2,
        "vocab_size": VOCABULARY, "dropout_rate": 0.0,
    }  # fmt: skip
    return capture_config(settings, samples=SAMPLES, seq=SEQ)


def counted(queue: tuple[Task, ...]) -> Counter[str]:
    """How many tasks of each kind; transfers by what they carry."""
    return Counter(f"{task.kind} {task.transfer.what}" if task.transfer else task.kind for task in queue)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "c"), COUNTS)
@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_tasks_of_every_device(schedule: str, pp: int, c: int, dp: int, tp: int) -> None:
    lowered = program(gpt2(), Layout(pp, dp, tp, c, schedule))
    assert sorted(lowered.queues) == list(range(pp * dp * tp))
    for device, queue in lowered.queues.items():
        stage = lowered.only_place(device).stage
        before, after = stage > 0, stage < pp - 1
        owner, copy = pp > 1 and stage == 0, pp > 1 and stage == pp - 1
        wanted = {
            "forward": c, "backward": c, "reduce": 1, "update": 1,
            "receive value": c * before, "send value": c * after,
            "receive gradient": c * after, "send gradient": c * before,
            "receive parameter_gradient": owner, "send parameter": owner,
            "send parameter_gradient": copy, "receive parameter": copy,
        }  # fmt: skip
        assert counted(queue) == Counter({kind: int(count) for kind, count in wanted.items() if count})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "c"), COUNTS)
def test_bytes_of_every_transfer(schedule: str, pp: int, c: int) -> None:
    # The tied table: 29 words are padded to 30 where two devices share them.
    for tp, rows in ((1, 29), (2, 15)):
        lowered = program(gpt2(), Layout(pp, 1, tp, c, schedule))
        sent: Counter[str] = Counter()
        for queue in lowered.queues.values():
            for task in queue:
                if task.kind == "send" and task.transfer is not None:
                    sent[task.transfer.what] += task.transfer.bytes
        tied = tp * rows * HIDDEN * 4 * (pp > 1)
        assert sent["value"] == sent["gradient"] == (pp - 1) * c * tp * VALUE_BYTES
        assert sent["parameter"] == sent["parameter_gradient"] == tied


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("pp", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("make", [gpt2, t5])
def test_every_op_is_in_one_piece(make: Callable[[], Graph], pp: int, tp: int) -> None:
    graph = make()
    pp = min(pp, len(graph.blocks))
    pieces = program(graph, Layout(pp, 1, tp)).pieces
    free = constant_ops(graph)
    added = {"enter", "sum_devices"}
    found = Counter(o.op.name for p in pieces for s in p.segments for o in s.ops if o.op.kind not in added)
    assert found == Counter({op.name: 1 for op in graph.ops if op.name not in free})
    assert {o.op.name for p in pieces for o in p.constants} <= free
    assert [s.block for p in pieces for s in p.segments] == [block.name for block in graph.blocks]
    owned = Counter(name for p in pieces for name in p.parameters if name not in p.copies)
    assert owned == Counter({t.name: 1 for t in graph.tensors if t.role == "parameter"})


@pytest.mark.parametrize(("schedule", "held"), HELD)
@pytest.mark.parametrize(("pp", "c"), COUNTS)
def test_micro_batches_held(schedule: str, held: Callable[[int, int, int], int], pp: int, c: int) -> None:
    lowered = program(gpt2(), Layout(pp, 1, 1, c, schedule))
    assert [most_saved(lowered, device) for device in range(pp)] == [held(pp, c, stage) for stage in range(pp)]


@pytest.mark.parametrize(
    ("pp", "c", "held"), [(4, 2, [2, 2, 2, 1]), (8, 1, [1] * 8), (4, 8, [4, 3, 2, 1]), (4, 1, [1] * 4)]
)
def test_c23_fewer_micro_batches_than_stages(pp: int, c: int, held: list[int]) -> None:
    lowered = program(gpt2(), Layout(pp, micro_batches=c))
    assert [most_saved(lowered, device) for device in range(pp)] == held


def most_saved(lowered: Program, device: int) -> int:
    """The most activations of micro-batches that the queue keeps at once."""
    now = most = 0
    for task in lowered.queues[device]:
        now += sum(name.startswith("saved of") for name in task.writes)
        most = max(most, now)
        now -= sum(name.startswith("saved of") for name in task.frees)
    assert now == 0
    return most


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [gpt2, t5])
@pytest.mark.parametrize(("pp", "c"), [(1, 2), (2, 3), (4, 2), (7, 5)])
def test_queues_hang_together(make: Callable[[], Graph], schedule: str, pp: int, c: int) -> None:
    """A task reads what is there, frees what is there, and nothing of a micro-batch outlives the step.

    Between two devices values, and gradients, arrive in the order in which they were sent.
    """
    lowered = program(make(), Layout(pp, 2, 1, c, schedule))
    sent: dict[tuple[int, int, bool], list[tuple[str, str]]] = {}
    received: dict[tuple[int, int, bool], list[tuple[str, str]]] = {}
    for device, queue in lowered.queues.items():
        there = set(lowered.pieces[lowered.only_place(device).stage].parameters)
        for task in queue:
            if task.kind in ("send", "receive"):
                assert task.transfer is not None
                assert task.peer is not None
                pair = (device, task.peer) if task.kind == "send" else (task.peer, device)
                back = "gradient" in task.transfer.what
                stream = (sent if task.kind == "send" else received).setdefault((*pair, back), [])
                stream.append((task.transfer.what, task.transfer.key(task.micro)))
                mine, theirs = lowered.only_place(device), lowered.only_place(task.peer)
                assert (mine.data, mine.tensor) == (theirs.data, theirs.tensor)
            # The gradient of a shared parameter is added up by every backward task: no single one writes it.
            summed = {task.transfer.key(None)} if counted((task,))["send parameter_gradient"] else set()
            assert {*task.reads} - summed <= there, f"{task.kind} of micro-batch {task.micro} on device {device}"
            there |= {*task.writes}
            assert {*task.frees} - summed <= there
            there -= {*task.frees}
        assert {name for name in there if "@" in name} == set()
    assert sent == received


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "c"), [(2, 3), (4, 2), (4, 6)])
def test_a_run_is_the_queue(pool: Pool, schedule: str, pp: int, c: int) -> None:
    case = Case("gpt2", Layout(pp, micro_batches=c, schedule=schedule), steps=1)
    for stage, outcome in enumerate(pool.run(train, pp, case)):
        assert tuple(outcome.tasks) == outcome.queue
        turns = [(task.kind, task.micro) for task in outcome.tasks if task.kind in ("forward", "backward")]
        assert turns == written_out(schedule, pp, c, stage)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pp", "c"), [(2, 8), (4, 2), (4, 8)])
def test_receives_are_posted_two_computes_ahead_and_no_more(schedule: str, pp: int, c: int) -> None:
    for queue in program(gpt2(), Layout(pp, micro_batches=c, schedule=schedule)).queues.values():
        computes = [index for index, task in enumerate(queue) if task.kind in ("forward", "backward")]
        for now, following in pairwise(computes):
            assert ahead(queue, now) == following + 1
        # In a chain each compute has one receive before it at most: that many buffers exist, however many follow.
        for index in range(len(queue)):
            waiting = [task for task in queue[index : ahead(queue, index)] if task.kind == "receive"]
            assert sum(task.micro is not None for task in waiting) <= 2
        assert ahead(queue, len(queue) - 1) == len(queue)


def written_out(schedule: str, pp: int, c: int, stage: int) -> list[tuple[str, int]]:
    """The turns of a stage, from the rule that backward m of 1F1B comes right after forward m + (pp − 1 − stage)."""
    delay = c if schedule == "gpipe" else min(c, pp - 1 - stage)
    forward = [(m, 0, ("forward", m)) for m in range(c)]
    backward = [(min(m + delay, c), 1 + m, ("backward", m)) for m in range(c)]
    ordered = sorted(forward + backward)
    assert all(a[:2] < b[:2] for a, b in pairwise(ordered))
    return [turn for _, _, turn in ordered]
