"""A plan as text for people: a table of stages, a table of where the time goes, and the reasons."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partita.cli.options import GIB
from partita.plan import SIMULATED, Plan, Stage
from partita.planner.branches import NAME as BRANCHES

# Where there is no terminal: wide enough for the tables, narrow enough for a mail.
WIDTH = 120


def render(parts: Iterable[Table | Text | Padding | str]) -> str:
    """Text and tables one below the other, as wide as the terminal, without colours."""
    console = Console(
        file=io.StringIO(), width=shutil.get_terminal_size((WIDTH, 40)).columns, color_system=None, highlight=False,
        markup=False, emoji=False,
    )  # fmt: skip
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def plan_text(plan: Plan, seconds: float) -> str:
    """What ``partita plan`` prints."""
    return render([heading(plan), *stages(plan), "", breakdown(plan), "", *reasons(plan), "", found(plan, seconds)])


def heading(plan: Plan) -> str:
    """The question, the answer and what is left idle."""
    predicted = plan.predicted
    tokens = f" of {plan.seq} tokens" if plan.seq else ""
    rate = f" ({predicted.samples_per_second * plan.seq:,.0f} tokens/s)" if plan.seq else ""
    idle = f"\nidle devices: {ranges(plan.idle_devices)}" if plan.idle_devices else ""
    return (
        f"{plan.model} on {plan.cluster}: {plan.global_batch} samples{tokens} a step, {plan.precision}, "
        f"{plan.optimizer}, for {plan.target}\n"
        f"predicted step {duration(predicted.step_seconds)}, {predicted.samples_per_second:.4g} samples/s{rate}, "
        f"schedule {plan.order.words}, bubble {predicted.bubble_fraction:.1%}{idle}"
    )


def stages(plan: Plan) -> list[Table | str]:
    """One row a stage; memory is that of each of its devices. What all stages share stands in a line above, once."""
    choices = {
        "dp": [str(stage.dp) for stage in plan.stages],
        "tp": [str(stage.tp) for stage in plan.stages],
        "micro-batches": [str(stage.micro_batches) for stage in plan.stages],
        "samples in each": [
            f"{stage.samples}" + (f" ({stage.samples // stage.dp} a copy)" if stage.dp > 1 else "")
            for stage in plan.stages
        ],
        "ZeRO": [zero(stage) for stage in plan.stages],
        "recomputation": [recompute(stage) for stage in plan.stages],
    }
    shared = [f"{name} {texts[0]}" for name, texts in choices.items() if len(set(texts)) == 1]
    differing = {name: texts for name, texts in choices.items() if len(set(texts)) > 1}
    table = grid("stage", "blocks", "devices", *differing, "GiB a device")
    costs = plan.predicted.breakdown.stages
    # A device that serves several stages holds them all.
    peaks = [max(plan.predicted.peak_bytes[device] for device in stage.devices) for stage in plan.stages]
    heaviest = max(range(len(costs)), key=lambda index: peaks[index])
    for index, (stage, peak) in enumerate(zip(plan.stages, peaks, strict=True)):
        mark = " heaviest" if index == heaviest and len(costs) > 1 else ""
        own = [texts[index] for texts in differing.values()]
        size = f"{peak / GIB:.2f}{mark}"
        table.add_row(stage.name, block_range(stage.blocks), ranges(stage.devices), *own, size)
    return [*([f"on every stage: {', '.join(shared)}"] if shared else []), "", table]


def breakdown(plan: Plan) -> Table:
    """Where the seconds of a step go on the busiest stage."""
    table = grid("where the step goes", "seconds", "share")
    parts = plan.predicted.breakdown
    for name, seconds in (
        ("computing", parts.compute_seconds),
        ("computing again (recomputation)", parts.recompute_seconds),
        ("collectives of tp and ZeRO", parts.collective_seconds),
        ("waiting for other stages", parts.waiting_seconds),
        ("end of the step (gradients, update)", parts.sync_seconds),
        ("step", plan.predicted.step_seconds),
    ):
        # A simulated prediction has all computing in one number.
        if seconds or not (name.startswith("computing again") and parts.formula == SIMULATED):
            table.add_row(name, f"{seconds:.4g}", f"{seconds / plan.predicted.step_seconds:.1%}")
    return table


def reasons(plan: Plan) -> list[Padding | str]:
    """The plan's sentences as a list."""
    return ["reasons", *(bullet(sentence) for sentence in plan.reasons)]


def bullet(sentence: str) -> Padding:
    """A sentence of a list, indented where it wraps."""
    table = Table.grid(padding=(0, 1))
    table.add_row("-", Text(sentence))
    return Padding(table, (0, 0, 0, 2))


def found(plan: Plan, seconds: float | None) -> str:
    """How the plan was found; the time is known only to whoever searched."""
    took = "" if seconds is None else f" in {duration(seconds)}"
    search, simulated = plan.search, plan.predicted.breakdown.formula == SIMULATED
    if simulated and not search.bound_seconds:
        return f"made by {search.engine}{took}; the prediction is that of its simulation"
    counts = f"{search.considered:,} tables considered, {search.pruned:,} of them ruled out by bounds"
    least = f"no plan takes less than {duration(search.bound_seconds)} under the formula"
    unproven = "not proven" if search.engine == BRANCHES else "stopped before the proof"
    proof = f"proven: {least}" if search.optimal else f"{unproven}: {least}, {gap(plan):.1%} less"
    shown = "; the prediction is that of its simulation" if simulated else ""
    return f"found by {search.engine}{took}: {counts}; {proof}{shown}"


def gap(plan: Plan) -> float:
    """By what share of its predicted seconds a plan may be above the best."""
    return max(0.0, 1 - plan.search.bound_seconds / plan.predicted.step_seconds)


def grid(*columns: str) -> Table:
    """A table with a line under its head; all but the first two columns are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or column in ("blocks", "devices") else "right")
    return table


def block_range(blocks: Sequence[str]) -> str:
    """One or two names in full, more as the first, the last and their number: ``h.0 … 7 (8)``."""
    if len(blocks) <= 2:
        return ", ".join(blocks)
    first, last = blocks[0], blocks[-1]
    parent, dot, name = last.rpartition(".")
    if dot and name.isdigit() and first.rpartition(".")[0] == parent:
        last = name
    return f"{first} … {last} ({len(blocks)})"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in order, runs written as 0-7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def zero(stage: Stage) -> str:
    """The ZeRO stages of a stage's blocks."""
    return ", ".join(str(level) for level in sorted({strategy.zero for strategy in stage.strategies}))


def recompute(stage: Stage) -> str:
    """How many of a stage's blocks are computed again, and of how many attention's inside is."""
    whole, inside = (sum(strategy.recompute == what for strategy in stage.strategies) for what in ("full", "selective"))
    blocks = len(stage.strategies)
    if blocks in (whole, inside):
        return "full" if whole else "selective"
    said = [f"{whole} of {blocks}"] if whole else []
    return ", ".join([*said, *([f"{inside} of {blocks} selective"] if inside else [])]) or "no"


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    if seconds >= 100:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
