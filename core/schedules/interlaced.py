"""The interlaced pipeline (SuperScaler, Lin et al., 2023): embedding and head lie on all devices, the rest is piped.

Stage 0 is the embedding and stage p + 1 the head: every lane takes their turns, at the same time, because they hold
collectives of all devices. Stages 1 … p are a pipeline: lane i serves {0, i + 1, p + 1}. Where a shared turn falls
decides how long the lanes wait for each other, so the order is found by playing the step: a backward takes two units,
every other turn one. A lane takes a backward before a forward; a shared turn that is ready stops the lanes, which until
all of them are free only begin what ends by then.

Stage i + 1 holds 1F1B's p − i micro-batches, and ``extra`` more. A step of m micro-batches takes at least
m·(F + B + the shared turns) + (p − 1)(F + B); with ``extra`` = p − 1 it takes no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from partita.errors import PlanError
from partita.schedules.playing import Playing
from partita.schedules.schedule import Lanes
from partita.schedules.turn import Phase, Turn, check_counts

SHARED = 1
UNITS: Mapping[Phase, int] = {"forward": 1, "backward": 2}


def interlaced_lanes(stages: int, extra: int) -> Lanes:
    """Lane i serves the embedding, stage i + 1 and the head. PlanError for fewer than three stages."""
    if stages < 3:
        raise PlanError(
            f"stages={stages}: an interlaced pipeline is an embedding, a head and stages between them; 3 would do"
        )
    if extra < 0:
        raise PlanError(f"extra={extra}: the micro-batches that a stage holds beyond those of 1F1B; 0 is the least")
    return tuple((0, lane + 1, stages - 1) for lane in range(stages - 2))


def interlaced(stages: int, micro_batches: int, extra: int) -> dict[int, list[Turn]]:
    """Each lane's order of turns."""
    check_counts(stages, micro_batches)
    interlaced_lanes(stages, extra)
    plays = [_Play(stages, micro_batches, extra, awaited) for awaited in (1, micro_batches)]
    best = min(plays, key=lambda play: play.run())
    return dict(enumerate(best.playing.orders))


class _Play:
    """One way through the step.

    ``awaited``: for how many of the last micro-batches the lanes also stop for a head turn that will be ready soon. It
    shortens the way of those micro-batches and idles the lanes of others: of use for the last one, which nothing
    follows, and for all where so many are in flight that every lane has other work.
    """

    def __init__(self, stages: int, micro_batches: int, extra: int, awaited: int):
        self.head, self.last = stages - 1, stages - 2
        self.micro_batches, self.extra, self.awaited = micro_batches, extra, awaited
        self.playing = Playing(stages - 2)

    def run(self) -> int:
        """Plays the whole step and says how long it took."""
        left = (2 * self.last + 4) * self.micro_batches
        while left:
            left -= self._begin()
            self.playing.wait()
        return max(self.playing.free)

    def _begin(self) -> int:
        """Begins what can begin now; how many turns that is."""
        playing, shared, begun = self.playing, self._shared(), 0
        busy = max(playing.free) > playing.now
        if shared and not busy:
            playing.take(range(self.last), *shared, SHARED)
            return 1
        # From the last lane on, whose forward says when the head can be next.
        for lane in reversed(range(self.last)):
            latest = max(playing.free) if shared else self._awaited_end()
            if playing.free[lane] <= playing.now and (phase := self._own(lane + 1, latest - playing.now)):
                playing.take([lane], lane + 1, phase, UNITS[phase])
                begun += 1
        return begun

    def _shared(self) -> tuple[int, Phase] | None:
        """The shared turn that all lanes should stop for, nearest to the loss first."""
        playing, head = self.playing, self.head
        backward, forward = playing.begun(head, "backward"), playing.begun(head, "forward")
        if playing.ended(head, "forward", backward):
            return head, "backward"
        if playing.ended(self.last, "forward", forward):
            return head, "forward"
        embedded, piped = playing.begun(0, "forward"), playing.begun(1, "forward")
        if embedded < self.micro_batches and embedded == piped and self._room(1):
            return 0, "forward"
        return (0, "backward") if playing.ended(1, "backward", playing.begun(0, "backward")) else None

    def _awaited_end(self) -> float:
        """When the head turn that is waited for can begin; infinity if none is."""
        playing, micro = self.playing, self.playing.begun(self.head, "forward")
        end = playing.end(self.last, "forward", micro)
        return end if self.micro_batches - micro <= self.awaited and end > playing.now else inf

    def _own(self, stage: int, units: float) -> Phase | None:
        """What the lane of a stage of the pipeline takes now and ends within so many units."""
        playing = self.playing
        backward, forward = playing.begun(stage, "backward"), playing.begun(stage, "forward")
        if units >= UNITS["backward"] and playing.ended(stage + 1, "backward", backward):
            return "backward"
        ready = playing.ended(stage - 1, "forward", forward) and self._room(stage)
        return "forward" if ready and units >= UNITS["forward"] else None

    def _room(self, stage: int) -> bool:
        """Whether a stage of the pipeline may hold one more micro-batch."""
        held = self.playing.begun(stage, "forward") - self.playing.begun(stage, "backward")
        return held <= self.last - stage + self.extra
