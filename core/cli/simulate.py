"""``partita simulate``: a plan's queues against the clock, its memory over time, and how far the prediction is off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partita.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from partita.cli.stage_graph import Shown
    from partita.cluster import Cluster
    from partita.plan import Plan
    from partita.simulate import Simulation
    from partita.simulate.differ import Difference

EXAMPLES = """\b
Examples:
  partita simulate plan.json
  partita simulate plan.json --trace trace.json
  partita simulate plan.json --report step.html
  partita simulate plan.json --cluster 4x8xh200
"""


def simulate(
    plan: Annotated[str, typer.Argument(metavar="PLAN.json", show_default=False, help="A plan's file.")],
    model: options.OfPlanModel = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="As in partita plan. Default: the one that the plan names.")
    ] = None,
    devices: options.Devices = None,
    profile: options.OfPlanProfile = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto or chrome://tracing here.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw the step, device by device, on a page of its own.")
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Execute a plan's queues against the clock: time and memory of every device, beside what the plan predicts.

    The exit status is 1 where a device would need more memory than it has.
    """
    from partita.cli import answer, planned
    from partita.cli.stage_graph import Shown
    from partita.files import write_text
    from partita.plan import load_plan
    from partita.simulate import simulate as execute
    from partita.simulate.differ import difference
    from partita.simulate.stage_graph import forms, stage_graph

    found = load_plan(plan)
    graph = planned.model_of(found, plan, model)
    machine = planned.machine_of(found, plan, graph, cluster, devices, profile)
    simulation = execute(graph, found, machine)
    differs = difference(simulation, found, machine)
    stages = stage_graph(graph, found)
    shown = Shown(stages, None if stages.is_chain else forms(graph, found, machine, simulation))
    if trace is not None:
        from partita.simulate.trace import trace as traced

        write_text(trace, traced(simulation))
    if report is not None:
        draw(simulation, found, machine, report, shown)
    if as_json:
        answer.write_json(document(simulation, found, machine, differs, shown))
    else:
        written = [f"\nwritten: {file}" for file in (trace, report) if file is not None]
        answer.write("".join([text(simulation, found, machine, differs, shown), *written]))
    return 0 if fits(simulation, machine) else 1


def fits(simulation: Simulation, cluster: Cluster) -> bool:
    """Whether every device has the memory that it would need."""
    return not _over(simulation, cluster)


def _over(simulation: Simulation, cluster: Cluster) -> list[int]:
    """The devices that would need more memory than they have."""
    return [d for d, peak in simulation.peaks.items() if peak.total > cluster.device_at(d).memory_bytes]


def draw(simulation: Simulation, plan: Plan, cluster: Cluster, path: Path, shown: Shown) -> None:
    """Write the report; InputError where no plugin writes a file with that suffix."""
    from partita.errors import InputError
    from partita.hooks import plugins

    if not plugins().hook.partita_report(
        simulation=simulation, plan=plan, cluster=cluster, path=path, stages=shown.stages, forms=shown.forms
    ):
        found = f'a report with the suffix "{path.suffix}"' if path.suffix else "a report without a suffix"
        raise InputError(f"--report {path}: no plugin writes {found}; {path.with_suffix('.html')} works")


def document(simulation: Simulation, plan: Plan, cluster: Cluster, differs: Difference, shown: Shown) -> dict[str, Any]:
    """What ``--json`` prints."""
    from partita.cli import stage_graph
    from partita.simulate.differ import sentences

    step, predicted = simulation.step_seconds, plan.predicted
    return {
        "model": plan.model,
        "cluster": cluster.name,
        "step_seconds": step,
        "samples_per_second": plan.global_batch / step if step else 0.0,
        "bubble_fraction": simulation.bubble_fraction,
        "fits": fits(simulation, cluster),
        "peak_bytes": {device: peak.total for device, peak in simulation.peaks.items()},
        "predicted": {
            "step_seconds": predicted.step_seconds, "bubble_fraction": predicted.bubble_fraction,
            "peak_bytes": predicted.peak_bytes,
        },
        "difference": {
            "seconds": differs.seconds, "parts": differs.items(),
            "sentences": sentences(differs, simulation, plan, cluster),
        },
        "devices": [
            {
                "device": device,
                "stages": [plan.stages[place.stage].name for place in simulation.program.places[device]],
                "compute_seconds": use.compute_seconds, "collective_seconds": use.collective_seconds,
                "waiting_seconds": use.waiting_seconds, "sending_seconds": use.sending_seconds,
                "sent_bytes": use.sent_bytes, "collective_bytes": use.collective_bytes,
                "peak": {"seconds": simulation.peaks[device].seconds, "bytes": simulation.peaks[device].total,
                         "items": simulation.peaks[device].items()},
            }
            for device, use in simulation.use.items()
        ],
        "tasks": sum(map(len, simulation.program.queues.values())),
        **stage_graph.document(shown, plan),
    }  # fmt: skip


def text(simulation: Simulation, plan: Plan, cluster: Cluster, differs: Difference, shown: Shown) -> str:
    """What is printed for people."""
    from partita.cli import show, stage_graph
    from partita.errors import listed
    from partita.simulate.differ import sentences
    from partita.simulate.predict import as_simulated

    predicted = plan.predicted
    step = simulation.step_seconds
    off = f" ({100 * differs.seconds / predicted.step_seconds:+.3g}%)" if predicted.step_seconds else ""
    return show.render([
        f"{plan.model} on {cluster.name}: {plan.global_batch} samples a step, schedule {plan.order.words}, "
        f"{listed(dict.fromkeys(stage.micro_batches for stage in plan.stages))} micro-batches",
        f"simulated step {show.duration(step)}, predicted {show.duration(predicted.step_seconds)}{off}; "
        f"bubble {simulation.bubble_fraction:.1%}, predicted {predicted.bubble_fraction:.1%}",
        "", _times(simulation, plan), "", _memory(simulation, plan, cluster),
        *stage_graph.text(shown, as_simulated(simulation, plan), ()), "",
        "why the step differs from the prediction",
        *map(show.bullet, [*sentences(differs, simulation, plan, cluster), *_peaks(simulation, plan, cluster)]),
    ])  # fmt: skip


def _times(simulation: Simulation, plan: Plan) -> Table:
    """Milliseconds of a device's step; what it sends is on its way beside the rest."""
    from partita.cli import show

    table = show.grid("ms of a step", "devices", "computing", "collectives", "waiting", "busy", "sending", "GiB moved")
    rows = {}
    for device, use in simulation.use.items():
        seconds = (use.compute_seconds, use.collective_seconds, use.waiting_seconds)
        busy = use.busy_seconds / simulation.step_seconds if simulation.step_seconds else 0.0
        rows[device] = [
            *(f"{1e3 * value:.4g}" for value in seconds), f"{busy:.1%}", f"{1e3 * use.sending_seconds:.4g}",
            _gib(use.moved_bytes),
        ]  # fmt: skip
    for cells in _grouped(simulation, plan, rows):
        table.add_row(*cells)
    return table


def _memory(simulation: Simulation, plan: Plan, cluster: Cluster) -> Table:
    """GiB of each device at its peak."""
    from partita.cli import show

    first = next(iter(simulation.peaks.values()))
    table = show.grid("GiB at the peak", "devices", *first.items(), "total")
    rows = {
        device: [_gib(size) for size in (*peak.items().values(), peak.total)]
        for device, peak in simulation.peaks.items()
    }
    for cells in _grouped(simulation, plan, rows):
        table.add_row(*cells)
    return table


def _gib(size: float) -> str:
    """GiB with three decimals, of less than a tenth three digits: small models are simulated too."""
    value = size / options.GIB
    return f"{value:.3f}" if value >= 0.1 or not value else f"{value:.3g}"


def _grouped(simulation: Simulation, plan: Plan, rows: dict[int, list[str]]) -> list[list[str]]:
    """One row for the devices of a stage that read the same."""
    from partita.cli import show

    groups: dict[tuple[tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for device, cells in rows.items():
        stages = tuple(place.stage for place in simulation.program.places[device])
        groups.setdefault((stages, tuple(cells)), []).append(device)
    return [
        [", ".join(plan.stages[stage].name for stage in stages), show.ranges(devices), *cells]
        for (stages, cells), devices in sorted(groups.items(), key=lambda group: (group[0][0], group[1]))
    ]


def _peaks(simulation: Simulation, plan: Plan, cluster: Cluster) -> list[str]:
    """Memory beside the prediction, and what doesn't fit."""
    from partita.planner.words import gib

    def left(device: int) -> int:
        return cluster.device_at(device).memory_bytes - simulation.peaks[device].total

    unlike = len(cluster.different_devices(simulation.peaks)) > 1
    device = min(simulation.peaks, key=left)
    peak, predicted = simulation.peaks[device], plan.predicted.peak_bytes.get(device)
    here = cluster.device_at(device)
    found = [
        f"Device {device} {f'({here.name}) has the least left' if unlike else 'holds most'}, {gib(peak.total)} of "
        f"{gib(here.memory_bytes)}, of which "
        f"{gib(peak.buffers)} are buffers of messages"
        + (f"; the prediction, which has none, is {gib(predicted)}." if predicted is not None else ".")
    ]
    if over := _over(simulation, cluster):
        from partita.cli import show

        found.append(f"It does not fit: devices {show.ranges(over)} need more than they have.")
    return found
