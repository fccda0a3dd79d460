"""1F1B (PipeDream-flush, Narayanan et al., 2021): a warm-up, then one forward and one backward in turn, then the rest.

Stage i of S warms up with S − i − 1 forwards, so that it never holds more than min(c, S − i) of the c micro-batches.

``depth`` lets so many more micro-batches go ahead over each boundary (eager 1F1B; Zhuang et al., 2023, section 4):
a stage with k stages behind it holds min(c, k + 1 + depth·k). Where a round trip takes longer than the turns of the
micro-batches that are under way, more of them hide the transfers. Where transfers cost nothing and stages are alike it
changes no time. Of unlike stages it may, either way: with c = 3 and a backward of twice its forward's time, two stages
of forwards 2 and 1 take 19 at depth 0 and 18 at depth 1, three of 2, 1 and 1 take 20 and 21.

Stages may have unlike numbers of micro-batches (kFkB: a stage of small ones runs several for one of the next). Then a
stage's backward of turn t comes after as many forwards as the next stage needs for its backward of the same samples,
and as many more as make one more turn of the next stage, or one, and ``depth`` times that: of equal numbers and depth 0
that is t + S − i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.errors import PlanError
from partita.schedules.turn import Turn, check_counts


def one_f_one_b(stages: int, micro_batches: int, depth: int = 0) -> dict[int, list[Turn]]:
    """Each stage's order of turns. PlanError for a depth below 0."""
    check_counts(stages, micro_batches)
    return one_f_one_b_of([micro_batches] * stages, depth)


def one_f_one_b_of(counts: Sequence[int], depth: int = 0) -> dict[int, list[Turn]]:
    """The same for stages of unlike numbers of micro-batches, each of which divides one global batch."""
    check_depth(depth)
    readers = {stage: (stage + 1,) for stage in range(len(counts) - 1)}
    return in_rounds(counts, readers, [1 + depth] * len(counts), 1)


def check_depth(depth: int) -> None:
    """PlanError for a depth below 0."""
    if depth < 0:
        raise PlanError(f"depth={depth}: the micro-batches that go ahead over a boundary beyond 1F1B's; 0 is the least")


def in_rounds(
    counts: Sequence[int], readers: Mapping[int, Sequence[int]], ahead: Sequence[int], k: int
) -> dict[int, list[Turn]]:
    """Each stage's order of rounds of k backwards, before which come the forwards that its readers need for theirs.

    ``readers`` are later stages, by maker. From each stage the forwards of ``ahead`` rounds more go to its readers.
    """
    before: dict[int, list[int]] = {}
    for stage in reversed(range(len(counts))):
        count = counts[stage]
        found = []
        for micro in range(count):
            # All backwards of a round have the forwards of its last.
            last = min(count, (micro // k + 1) * k)
            forwards = last
            for reader in readers.get(stage, ()):
                theirs = counts[reader]
                # The reader's last turn that has some of the same samples, and the samples of its forwards.
                needed = before[reader][-(-last * theirs // count) - 1]
                more = k * max(1, -(-count // theirs)) * ahead[stage]
                forwards = max(forwards, -(-needed * count // theirs) + more)
            found.append(min(count, -(-forwards // k) * k))
        before[stage] = found
    return {stage: _laid(stage, before[stage]) for stage in range(len(counts))}


def _laid(stage: int, before: Sequence[int]) -> list[Turn]:
    turns, done = [], 0
    for micro, forwards in enumerate(before):
        turns += [Turn(stage, "forward", m) for m in range(done, forwards)]
        turns.append(Turn(stage, "backward", micro))
        done = max(done, forwards)
    return turns
