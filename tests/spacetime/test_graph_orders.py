"""Orders of stages that form a graph, broken at random: what would hang is refused, what is accepted never hangs.

What a broken program really does is told by blocking queues (``blocking``), which know nothing of the proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from partita.errors import PlanError
from partita.schedules import Turn
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import TURNS, Program, Task
from partita.spacetime.prove import prove
from tests.ranks.pool import Pool
from tests.spacetime.blocking import outcome
from tests.spacetime.stage_graphs import GRAPHS, Stages
from tests.verify.lanes import on_processes

DEADLOCK = ("the order deadlocks", "share collectives", "whose queue has ended")


def turns_of(program: Program) -> dict[int, list[Turn]]:
    """Each device's order of turns."""
    return {
        device: [Turn(task.stage, task.kind, task.micro) for task in queue if task.kind in TURNS]
        for device, queue in program.queues.items()
    }


def ordered(stages: Stages, turns: dict[int, list[Turn]]) -> Program:
    """The program of another order of turns, not proven."""
    found = stages.program
    version = Version(stages.graphs, found.pieces)
    return replace(found, queues=preserve(version, found.places, found.devices_of, turns, found.shares))


def swapped(random: Random, items: list, places: Sequence[int]) -> None:
    """Two of these places, one for the other."""
    if len(places) > 1:
        one, two = random.sample(places, 2)
        items[one], items[two] = items[two], items[one]


def moved(random: Random, items: list, by: int) -> None:
    """One item up to so many places earlier or later."""
    place = random.randrange(len(items))
    items.insert(max(0, place + random.randint(-by, by)), items.pop(place))


def stream(random: Random, queue: list[Task], kind: str) -> list[int]:
    """The places of the sends, or receives, of one of the device's streams."""
    places = [place for place, task in enumerate(queue) if task.kind == kind]
    if not places:
        return []
    one = queue[random.choice(places)]
    return [place for place in places if _way(queue[place]) == _way(one)]


def a_turn_swapped(random: Random, stages: Stages) -> Program:
    turns = turns_of(stages.program)
    mine = turns[random.choice(list(turns))]
    swapped(random, mine, range(len(mine)))
    return ordered(stages, turns)


def a_turn_moved(random: Random, stages: Stages) -> Program:
    turns = turns_of(stages.program)
    moved(random, turns[random.choice(list(turns))], 4)
    return ordered(stages, turns)


def turns_moved_on_all(random: Random, stages: Stages) -> Program:
    """A few on every device, copies of a stage alike."""
    turns = turns_of(stages.program)
    for devices in dict.fromkeys(stages.program.devices_of):
        mine = list(turns[devices[0]])
        for _ in range(random.randint(0, 2)):
            moved(random, mine, 3)
        turns |= dict.fromkeys(devices, mine)
    return ordered(stages, turns)


def in_a_queue(change: Callable[[Random, list[Task]], None]) -> Callable[[Random, Stages], Program]:
    """A change of one device's queue."""

    def mutant(random: Random, stages: Stages) -> Program:
        found = stages.program
        device = random.choice(list(found.queues))
        queue = list(found.queues[device])
        change(random, queue)
        return replace(found, queues={**found.queues, device: tuple(queue)})

    return mutant


def dropped(random: Random, queue: list[Task]) -> None:
    transfers = [place for place, task in enumerate(queue) if task.kind in ("send", "receive")]
    if transfers:
        queue.pop(random.choice(transfers))


def sent_later(random: Random, queue: list[Task]) -> None:
    """A send, and those of its stream behind which it would come, after a later receive."""
    sends = [place for place, task in enumerate(queue) if task.kind == "send"]
    if not sends:
        return
    place = random.choice(sends)
    receives = [at for at in range(place, len(queue)) if queue[at].kind == "receive"]
    if not receives:
        return
    until = random.choice(receives[:6])
    between = queue[place : until + 1]
    late = [task for task in between if task.kind == "send" and _way(task) == _way(queue[place])]
    queue[place : until + 1] = [*(task for task in between if task not in late), *late]


def _way(task: Task) -> tuple[int | None, bool]:
    """The other side of a send or receive, and which of the two streams."""
    assert task.transfer is not None
    return task.peer, task.transfer.backwards


MUTANTS: dict[str, Callable[[Random, Stages], Program]] = {
    "two turns swapped": a_turn_swapped,
    "a turn moved": a_turn_moved,
    "turns moved on all devices": turns_moved_on_all,
    "two tasks swapped": in_a_queue(lambda random, queue: swapped(random, queue, range(len(queue)))),
    "a task moved": in_a_queue(lambda random, queue: moved(random, queue, 6)),
    "a transfer dropped": in_a_queue(dropped),
    "two sends of a stream swapped": in_a_queue(
        lambda random, queue: swapped(random, queue, stream(random, queue, "send"))
    ),
    "two receives of a stream swapped": in_a_queue(
        lambda random, queue: swapped(random, queue, stream(random, queue, "receive"))
    ),
    "sent after a receive": in_a_queue(sent_later),
}
TURNS_ALONE = list(MUTANTS)[:3]
FAST = {"sent after a receive"}
# Of each kind for each graph.
EACH = 12


@cache
def found(kind: str) -> tuple[Counter[tuple[str, str]], list[Program]]:
    """How often a mutant of a kind does what and is said to do what; and those that are accepted."""
    counted: Counter[tuple[str, str]] = Counter()
    accepted = []
    for name, stages in GRAPHS.items():
        random = Random(f"{kind} of {name}")
        drawn = [MUTANTS[kind](random, stages) for _ in range(EACH)]
        for program in drawn:
            if program.queues == stages.program.queues:
                continue
            said = verdict(stages, program)
            counted[outcome(program), said] += 1
            if said == "accepted":
                accepted.append(program)
    return counted, accepted


def verdict(stages: Stages, program: Program) -> str:
    """``accepted``, ``deadlock``, or ``refused`` for another reason."""
    try:
        prove(stages.graphs, program)
    except PlanError as error:
        return "deadlock" if any(words in str(error) for words in DEADLOCK) else "refused"
    return "accepted"


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_lowered_comes_to_its_end(name: str) -> None:
    assert outcome(GRAPHS[name].program) == "ends"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in MUTANTS]
)
def test_a_broken_order(kind: str) -> None:
    """What is accepted runs to its end with the right messages; what is said to deadlock does."""
    counted, _ = found(kind)
    assert {did for did, said in counted if said == "accepted"} <= {"ends"}
    assert {did for did, said in counted if said == "deadlock"} <= {"hangs"}
    if kind in TURNS_ALONE:
        # Whatever order of turns can be run is accepted.
        assert counted["ends", "refused"] == 0
        assert min(counted["ends", "accepted"], counted["hangs", "deadlock"]) >= 10


@pytest.mark.slow
def test_all_that_hangs_is_refused() -> None:
    total = sum((found(kind)[0] for kind in MUTANTS), Counter())
    hang = sum(count for (did, _), count in total.items() if did == "hangs")
    assert hang >= 300
    assert total["hangs", "accepted"] == 0
    assert total["ends", "accepted"] >= 250


@pytest.mark.slow
def test_what_is_accepted_ends_on_processes(pool: Pool) -> None:
    """Some of each kind, of graphs with four devices, on gloo."""
    some = [
        program
        for kind in MUTANTS
        for program in [program for program in found(kind)[1] if len(program.queues) == 4][::4][:2]
    ]
    assert len(some) >= 10
    done = pool.run(on_processes, 4, some)
    assert done == [[len(program.queues[device]) for program in some] for device in range(4)]
