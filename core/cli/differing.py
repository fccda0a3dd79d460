"""``partita explain one.json two.json``: what differs between two plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partita.plan import Plan

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One thing that both plans have: a number or a word of each."""

    what: str
    one: Any
    two: Any


@dataclass(frozen=True)
class Moved:
    """Neighbouring blocks of which the same is different: by name, what each plan says of them."""

    blocks: tuple[str, ...]
    one: dict[str, Any]
    two: dict[str, Any]


def rows(one: Plan, two: Plan) -> list[Row]:
    """What both plans say of the question and of the whole step, also where they agree."""
    return [Row(what, value, _whole(two)[what]) for what, value in _whole(one).items()]


def moved(one: Plan, two: Plan) -> list[Moved]:
    """The blocks that differ, in the order of the first plan, then those that the second alone has."""
    here, there = _blocks(one), _blocks(two)
    found: list[Moved] = []
    for block in [*here, *(name for name in there if name not in here)]:
        mine, theirs = here.get(block), there.get(block)
        if mine == theirs:
            continue
        if mine is None or theirs is None:
            different = ({"in the plan": mine is not None}, {"in the plan": theirs is not None})
        else:
            names = [name for name in mine if mine[name] != theirs[name]]
            different = {name: mine[name] for name in names}, {name: theirs[name] for name in names}
        if found and (found[-1].one, found[-1].two) == different:
            found[-1] = Moved((*found[-1].blocks, block), *different)
        else:
            found.append(Moved((block,), *different))
    return found


def document(one: Plan, two: Plan) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "same": one == two,
        "plan": [vars(row) for row in rows(one, two) if row.one != row.two],
        "blocks": [{"blocks": list(each.blocks), "one": each.one, "two": each.two} for each in moved(one, two)],
        "step_seconds": {"one": one.predicted.step_seconds, "two": two.predicted.step_seconds},
        "peak_bytes": {"one": _peak(one), "two": _peak(two)},
    }


def text(one: Plan, two: Plan, first: str, second: str) -> str:
    """What is printed for people."""
    from partita.cli import show

    if one == two:
        return f"{first} and {second} are the same plan"
    table = show.grid("what differs", first, second)
    for row in rows(one, two):
        if row.one != row.two:
            table.add_row(row.what, str(row.one), str(row.two))
    blocks = show.grid("blocks", f"in {first}", f"in {second}")
    for each in moved(one, two):
        sides = (", ".join(f"{name} {value}" for name, value in side.items()) for side in (each.one, each.two))
        blocks.add_row(show.block_range(each.blocks), *sides)
    return show.render([_verdict(one, two, first, second), "", table, "", blocks if blocks.row_count else "", ""])


def _verdict(one: Plan, two: Plan, first: str, second: str) -> str:
    seconds = one.predicted.step_seconds, two.predicted.step_seconds
    if one.global_batch != two.global_batch or one.model != two.model:
        return f"{first} and {second} answer different questions; their times don't compare"
    if seconds[0] == seconds[1] or not min(seconds):
        return f"both predict {seconds[0]:.4g} s a step"
    fast, slow = (first, second) if seconds[0] < seconds[1] else (second, first)
    return f"{fast} is predicted to take {1 - min(seconds) / max(seconds):.1%} less time a step than {slow}"


def _whole(plan: Plan) -> dict[str, Any]:
    from partita.planner.arrangement import arrangement

    predicted, profile = plan.predicted, plan.profile
    return {
        "model": plan.model, "cluster": plan.cluster, "target": plan.target, "precision": plan.precision,
        "optimizer": plan.optimizer, "tokens": plan.seq, "global batch": plan.global_batch,
        "profile": "none" if profile is None else f"{profile.path} ({profile.sha256[:8]})",
        "arrangement": arrangement(plan.stages, plan.order), "stages": len(plan.stages),
        "schedule": plan.order.words, "micro-batches": plan.order.micro_batches,
        "devices used": len(plan.devices), "step seconds": predicted.step_seconds,
        "samples a second": predicted.samples_per_second, "bubble": round(predicted.bubble_fraction, 4),
        "peak GiB a device": round(_peak(plan) / GIB, 2),
    }  # fmt: skip


def _peak(plan: Plan) -> int:
    return max(plan.predicted.peak_bytes.values(), default=0)


def _blocks(plan: Plan) -> dict[str, dict[str, Any]]:
    from partita.cli.show import ranges

    return {
        block: {
            "stage": index, "devices": ranges(stage.devices), "dp": stage.dp, "tp": stage.tp,
            "micro-batch": stage.samples // stage.dp, "ZeRO": strategy.zero, "recomputation": strategy.recompute,
            "cuts": " ".join(f"{cut.dim}:{'.'.join(cut.axes)}" for cut in strategy.cuts),
            **({"offload": True} if strategy.offload else {}),
        }
        for index, stage in enumerate(plan.stages)
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True)
    }  # fmt: skip
