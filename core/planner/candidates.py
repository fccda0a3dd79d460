"""Every uniform way to use a number of devices: dp × tp × pp, micro-batch, ZeRO, recomputation, schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.errors import divisors
from partita.problem import Target


@dataclass(frozen=True, order=True)
class Candidate:
    """``micro`` is the samples of one replica's micro-batch, ``micro_batches`` their number c."""

    pp: int
    tp: int
    dp: int
    zero: int
    recompute: bool
    schedule: str
    micro: int
    micro_batches: int

    @property
    def mesh(self) -> tuple[int, int, int]:
        return self.dp, self.tp, self.pp


def candidates(
    devices: int, blocks: int, batch: int, tps: Sequence[int], target: Target, fix: Mapping[str, int | str]
) -> Iterator[Candidate]:
    """All candidates that use exactly that many devices, in a fixed order. Choices that ``fix`` holds are not varied.

    With dp = 1 every ZeRO stage is the same, with pp = 1 every schedule is: one of them is listed.
    """
    for tp in (tp for tp in tps if devices % tp == 0 and fix.get("tp", tp) == tp):
        for pp in divisors(devices // tp):
            dp = devices // tp // pp
            if pp > blocks or batch % dp or fix.get("pp", pp) != pp or fix.get("dp", dp) != dp:
                continue
            zeros: Sequence[int] = target.zero_alone if pp == 1 else target.zero_in_pipeline
            if "zero" in fix:
                zeros = [zero for zero in zeros if zero == fix["zero"]]
            elif dp == 1:
                zeros = [0]
            schedules: Sequence[str] = ["1f1b", "gpipe"] if pp > 1 else ["1f1b"]
            if "schedule" in fix:
                schedules = [str(fix["schedule"])]
            recomputes = [fix["recompute"] == "full"] if "recompute" in fix else [False, True]
            for micro in divisors(batch // dp):
                count = batch // dp // micro
                if fix.get("micro_batch", micro) != micro or fix.get("micro_batches", count) != count:
                    continue
                for zero in zeros:
                    for recompute in recomputes:
                        for schedule in schedules:
                            yield Candidate(pp, tp, dp, zero, recompute, schedule, micro, count)
