"""3F1B (SuperScaler, Lin et al., 2023): several forward passes for one backward, as AlphaFold2's recycling has.

Of P passes all but the last are without gradient and keep nothing. The graph is unrolled: pass k on lane s is stage
k·p + s. The last pass is trained as in 1F1B, with its p − s micro-batches in flight on lane s; and on lane 0 no more
than p·⌊P/2⌋ micro-batches are between their first pass and their last, since what recycles is kept meanwhile.

The order is found by playing the step, where a backward takes two units and a forward one: a lane waits only when it
can do nothing, takes a forward before a backward and an early pass before a late one. So the last lane never waits once
it has begun, and a step of m ≥ p micro-batches takes m·(P·F + B) + (p − 1)(F + B) units, which no order can beat.
"""

from __future__ import annotations

from partita.errors import PlanError, divisors, listed
from partita.schedules.playing import Playing
from partita.schedules.schedule import Lanes
from partita.schedules.turn import Turn, check_counts, check_positive

FORWARD, BACKWARD = 1, 2


def three_f_one_b_lanes(stages: int, passes: int) -> Lanes:
    """Lane s serves the stages s, p + s, 2p + s, …: one of each pass."""
    check_positive("stages", stages)
    check_positive("passes", passes)
    if stages % passes:
        raise PlanError(f"passes={passes} does not divide stages={stages}; {listed(divisors(stages))} would")
    lanes = stages // passes
    return tuple(tuple(range(lane, stages, lanes)) for lane in range(lanes))


def three_f_one_b(stages: int, micro_batches: int, passes: int) -> dict[int, list[Turn]]:
    """Each lane's order of turns. PlanError unless every pass has the same number of stages."""
    check_counts(stages, micro_batches)
    served = three_f_one_b_lanes(stages, passes)
    playing, left = Playing(len(served)), (stages + len(served)) * micro_batches
    while left:
        for lane, mine in enumerate(served):
            if playing.free[lane] > playing.now:
                continue
            forward = (stage for stage in mine if _can_forward(playing, stage, served, micro_batches))
            if (stage := next(forward, None)) is not None:
                playing.take([lane], stage, "forward", FORWARD)
                left -= 1
            elif _can_backward(playing, mine[-1], stages, micro_batches):
                playing.take([lane], mine[-1], "backward", BACKWARD)
                left -= 1
        playing.wait()
    return dict(enumerate(playing.orders))


def _can_forward(playing: Playing, stage: int, served: Lanes, micro_batches: int) -> bool:
    """Whether the stage's next forward can begin: its input is there, and the limit of its lane leaves room."""
    micro, lanes, trained = playing.begun(stage, "forward"), len(served), served[0][-1]
    if micro == micro_batches or (stage and not playing.ended(stage - 1, "forward", micro)):
        return False
    if stage >= trained:
        return micro - playing.begun(stage, "backward") < lanes - (stage - trained)
    return stage > 0 or micro - playing.begun(trained, "forward") < lanes * (len(served[0]) // 2)


def _can_backward(playing: Playing, stage: int, stages: int, micro_batches: int) -> bool:
    micro = playing.begun(stage, "backward")
    if stage == stages - 1:
        return playing.ended(stage, "forward", micro)
    return micro < micro_batches and playing.ended(stage + 1, "backward", micro)
