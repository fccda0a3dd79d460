"""Plan to Program: transform, schedule, preserve, in this order and never back (SuperScaler, section 3). And proven."""

from __future__ import annotations

from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Plan, Stage
from partita.spacetime.preserve import Version, preserve, shared_parameters
from partita.spacetime.program import Program
from partita.spacetime.prove import prove
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import BlockCode, StageCode, transform


def stage_code(stage: Stage) -> StageCode:
    """A stage as transform takes it."""
    return StageCode(
        tuple(
            BlockCode(block, strategy.cuts, strategy.recompute == "full", strategy.offload)
            for block, strategy in zip(stage.blocks, stage.strategies, strict=True)
        ),
        (*stage.inner, *(axis for axis in stage.other_axes if axis.kind == "turns")),
    )


def lower(graph: Graph, plan: Plan) -> Program:
    """The program of a plan, proven valid.

    ``graph`` must be captured with as many samples as one data-parallel copy takes in one turn (stage.samples ÷ dp).
    PlanError when the plan isn't this graph's: other blocks, other samples, stages of unlike shapes; or its program
    isn't valid.
    """
    require_blocks(graph, plan)
    shapes = {(stage.dp, stage.samples, stage.micro_batches) for stage in plan.stages}
    if len(shapes) > 1:
        raise PlanError(f"stages of different dp or micro-batch can't be lowered yet: {sorted(shapes)}")
    ((dp, samples, micro_batches),) = shapes
    if samples != graph.samples * dp:
        raise PlanError(
            f'graph "{graph.name}" was captured with {graph.samples} samples, the plan needs {samples // dp} '
            f"({samples} a turn ÷ dp {dp})"
        )
    pieces = transform(graph, [stage_code(stage) for stage in plan.stages])
    devices_of = tuple(tuple(stage.devices) for stage in plan.stages)
    widths = tuple(stage.width for stage in plan.stages)
    places = assign(devices_of, [s.dp for s in plan.stages], widths)
    turns = order(plan.order, places)
    queues = preserve(Version(graph, pieces), places, devices_of, turns)
    shared: dict[str, tuple[int, ...]] = {}
    for name, owner, copy in shared_parameters(graph, pieces):
        shared[name] = (*shared.get(name, (owner,)), copy)
    zeros = {strategy.zero for stage in plan.stages for strategy in stage.strategies}
    if len(zeros) > 1:
        raise PlanError(f"blocks of different ZeRO stages can't be lowered yet: {sorted(zeros)}")
    (zero,) = zeros
    program = Program(
        pieces, queues, places, devices_of, tuple(s.dp for s in plan.stages), tuple(s.inner for s in plan.stages),
        micro_batches, samples // dp, zero, graph.loss, shared,
    )  # fmt: skip
    return prove(graph, program)


def require_blocks(graph: Graph, plan: Plan) -> None:
    """PlanError unless the plan has the graph's blocks, all of them in their order."""
    planned = [block for stage in plan.stages for block in stage.blocks]
    blocks = [block.name for block in graph.blocks]
    if planned != blocks:
        odd = [name for name in planned if name not in blocks] or [name for name in blocks if name not in planned]
        raise PlanError(
            f'the plan has {len(planned)} blocks, model "{graph.name}" has {len(blocks)}; '
            + (f"not in both: {', '.join(odd[:8])}" if odd else "their order differs or one occurs twice")
        )
