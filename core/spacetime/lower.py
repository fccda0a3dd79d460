"""Plan to Program: transform, schedule, preserve, in this order and never back (SuperScaler, section 3). And proven."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.edges import block_edges, stage_edges
from partita.plan import Plan, Stage
from partita.spacetime.alike import loss_of, of_stages, require_alike
from partita.spacetime.preserve import Version, preserve
from partita.spacetime.program import Program, Share
from partita.spacetime.prove import prove, prove_any
from partita.spacetime.schedule import assign, order
from partita.spacetime.shared import require_chunks, shared_parameters
from partita.spacetime.transform import BlockCode, StageCode, transform


def stage_code(stage: Stage) -> StageCode:
    """A stage as transform takes it."""
    return StageCode(
        tuple(
            BlockCode(block, strategy.cuts, strategy.recompute, strategy.offload)
            for block, strategy in zip(stage.blocks, stage.strategies, strict=True)
        ),
        (*stage.inner, *(axis for axis in stage.other_axes if axis.kind == "turns")),
    )


def lower(graph: Graph | Sequence[Graph], plan: Plan) -> Program:
    """The program of a plan, proven valid.

    ``graph`` must be captured with as many samples as one data-parallel copy takes in one turn (stage.samples ÷ dp);
    where stages differ in that, there is one of the same model for each stage. PlanError when the plan isn't this
    graph's: other blocks, other samples; or its program isn't valid.
    """
    graphs = of_stages(graph, len(plan.stages))
    require_blocks(graphs[0], plan)
    for stage, found in zip(plan.stages, graphs, strict=True):
        if stage.samples != found.samples * stage.dp:
            where = f' for stage "{stage.name}"' if len(set(shares_of(plan))) > 1 else ""
            raise PlanError(
                f'graph "{found.name}" was captured with {found.samples} samples, the plan needs '
                f"{stage.samples / stage.dp:g} ({stage.samples} a turn ÷ dp {stage.dp}){where}"
            )
    return prove(graphs, _program(graphs, plan))


def lower_to_time(graph: Graph, plan: Plan) -> Program:
    """The same for a graph of any number of samples: its pieces have these, its queues are the plan's."""
    require_blocks(graph, plan)
    graphs = of_stages(graph, len(plan.stages))
    return prove_any(graphs, _program(graphs, plan))


def _program(graphs: Sequence[Graph], plan: Plan) -> Program:
    require_alike(graphs)
    shares = shares_of(plan)
    _require_one_batch(plan, shares)
    codes = [stage_code(stage) for stage in plan.stages]
    cut = {samples: transform(found, codes) for samples, found in {found.samples: found for found in graphs}.items()}
    pieces = tuple(cut[found.samples][index] for index, found in enumerate(graphs))
    devices_of = tuple(tuple(stage.devices) for stage in plan.stages)
    widths = tuple(stage.width for stage in plan.stages)
    places = assign(devices_of, [s.dp for s in plan.stages], widths)
    turns = order(plan.order, places, [stage.micro_batches for stage in plan.stages], edges_between(graphs[0], plan))
    queues = preserve(Version(tuple(graphs), pieces), places, devices_of, turns, shares)
    shared: dict[str, tuple[int, ...]] = {}
    for name, owner, copy in shared_parameters(pieces):
        shared[name] = (*shared.get(name, (owner,)), copy)
    zero = _zero(graphs[0], plan)
    loss = loss_of(graphs, pieces)
    inner = tuple(stage.inner for stage in plan.stages)
    found = Program(pieces, queues, places, devices_of, shares, inner, zero, loss, shared)
    require_chunks(found)
    return found


def edges_between(graph: Graph, plan: Plan) -> tuple[tuple[int, int], ...]:
    """The edges (maker, reader) of the graph of stages. PlanError, with the value, for one that reads what a later one
    makes."""
    between = block_edges(graph)
    stage_of = {block: index for index, stage in enumerate(plan.stages) for block in stage.blocks}
    for (maker, reader), names in between.items():
        if stage_of[maker] > stage_of[reader]:
            raise PlanError(
                f'stage {stage_of[reader]} reads "{names[0]}", which stage {stage_of[maker]} makes: '
                "stages must come in an order in which each reads what earlier ones make"
            )
    return stage_edges(between, [stage.blocks for stage in plan.stages])


def _zero(graph: Graph, plan: Plan) -> dict[str, int]:
    """The ZeRO stage of every parameter: that of the block that owns it, in whichever stages it is read."""
    of_block = {
        block: strategy.zero
        for stage in plan.stages
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True)
    }
    return {name: of_block[users[0]] for name, users in graph.parameter_users.items()}


def shares_of(plan: Plan) -> tuple[Share, ...]:
    """What each stage takes of the global batch."""
    return tuple(Share(stage.dp, stage.micro_batches, stage.samples // stage.dp) for stage in plan.stages)


def _require_one_batch(plan: Plan, shares: Sequence[Share]) -> None:
    """PlanError where a device serves stages that divide the batch in unlike ways."""
    first: dict[int, int] = {}
    for index, stage in enumerate(plan.stages):
        for device in stage.devices:
            other = first.setdefault(device, index)
            if shares[other] != shares[index]:
                said = ", and ".join(
                    f'of "{plan.stages[at].name}" dp {shares[at].dp} with {shares[at].turns} micro-batches of '
                    f"{shares[at].samples} samples a copy"
                    for at in (other, index)
                )
                raise PlanError(
                    f"device {device} serves stages that divide the batch in unlike ways: {said}. It reads one batch: "
                    "stages that share a device must be alike in these, or have devices of their own"
                )


def require_blocks(graph: Graph, plan: Plan) -> None:
    """PlanError unless the plan has each of the graph's blocks once, those of a stage in the model's order.

    The stages themselves need only an order in which each reads what earlier ones make, which
    ``_edges`` sees to: of two branches either may come first, and a stage may have blocks of both.
    """
    planned = [block for stage in plan.stages for block in stage.blocks]
    place = {block.name: index for index, block in enumerate(graph.blocks)}
    if sorted(planned) != sorted(place):
        odd = [name for name in planned if name not in place] or [name for name in place if name not in planned]
        twice = [name for name in planned if planned.count(name) > 1]
        raise PlanError(
            f'the plan has {len(planned)} blocks, model "{graph.name}" has {len(place)}; '
            + (f"not in both: {', '.join(odd[:8])}" if odd else f'"{twice[0]}" occurs twice')
        )
    for stage in plan.stages:
        for before, after in pairwise(stage.blocks):
            if place[before] > place[after]:
                raise PlanError(
                    f'stage "{stage.name}" has block "{before}" before "{after}"; in model "{graph.name}" it comes '
                    "after it, and a stage has its blocks in the model's order"
                )
