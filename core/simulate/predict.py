"""The prediction of a plan that was written by hand: what its simulation says."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from partita.cluster import Cluster
from partita.graph import Graph
from partita.plan import SIMULATED, Breakdown, MemoryBytes, Plan, Prediction, StageCost, rounded
from partita.schedules import Turn, in_flight
from partita.simulate.result import Simulation
from partita.simulate.run import simulate


def predicted(graph: Graph, plan: Plan, cluster: Cluster) -> Plan:
    """The plan with the prediction of its simulation. PlanError as of the simulation."""
    return as_simulated(simulate(graph, plan, cluster), plan)


def as_simulated(found: Simulation, plan: Plan) -> Plan:
    """The plan with the prediction of a simulation that there is."""
    step = found.step_seconds
    return replace(
        plan,
        predicted=Prediction(
            step_seconds=rounded(step),
            samples_per_second=rounded(plan.global_batch / step) if step else 0.0,
            peak_bytes={device: found.peaks[device].memory.total for device in sorted(found.peaks)},
            bubble_fraction=rounded(found.bubble_fraction),
            breakdown=_breakdown(found, plan),
        ),
    )


def _breakdown(found: Simulation, plan: Plan) -> Breakdown:
    """Where the busiest device's seconds go, and each stage's own; recomputation is part of the computing."""
    busiest = max(found.use, key=lambda device: (found.use[device].busy_seconds, -device))
    use, ends = found.use[busiest], found.pipeline_seconds
    stages = [place.stage for place in found.program.places[busiest]]
    sync = sum(found.costs.seconds[stage, kind] for stage in stages for kind in ("reduce", "update"))
    in_sync = sum(found.costs.collective_seconds[stage, kind] for stage in stages for kind in ("reduce", "update"))
    compute = use.compute_seconds - (sync - in_sync)
    collective = use.collective_seconds - in_sync
    return Breakdown(
        formula=SIMULATED, compute_seconds=rounded(compute), recompute_seconds=0.0,
        collective_seconds=rounded(max(0.0, collective)),
        waiting_seconds=rounded(max(0.0, ends - compute - collective)), sync_seconds=rounded(found.step_seconds - ends),
        stages=tuple(_stage(found, plan, index) for index in range(len(plan.stages))),
    )  # fmt: skip


def _stage(found: Simulation, plan: Plan, index: int) -> StageCost:
    stage, seconds = plan.stages[index], found.costs.seconds
    device = stage.devices[0]
    held = in_flight([
        Turn(index, task.kind, task.micro)
        for task in found.program.queues[device]
        if task.stage == index and task.micro is not None and task.kind in ("forward", "backward", "weight")
    ])  # fmt: skip
    memory: MemoryBytes = found.costs.memory[index]
    sends: dict[bool, list[float]] = {False: [], True: []}
    for task, start, end in found.intervals(device):
        if task.kind == "send" and task.stage == index and task.micro is not None:
            assert task.transfer is not None
            sends[task.transfer.backwards].append(end - start)
    return StageCost(
        name=stage.name, forward_seconds=rounded(seconds[index, "forward"]),
        backward_seconds=rounded(seconds.get((index, "backward"), 0.0) + seconds.get((index, "weight"), 0.0)),
        transfer_forward_seconds=rounded(fmean(sends[False])) if sends[False] else 0.0,
        transfer_backward_seconds=rounded(fmean(sends[True])) if sends[True] else 0.0,
        sync_seconds=rounded(seconds[index, "reduce"] + seconds[index, "update"]), in_flight=held,
        memory=replace(memory, activations=held * memory.activations),
    )  # fmt: skip
