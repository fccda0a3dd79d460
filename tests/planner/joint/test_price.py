"""Tables of real models: every stage of an answer costs what the simulator says its plan costs, and the plan lowers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from partita.cli.model import load_model
from partita.cluster import Cluster, parse_cluster
from partita.cost.alike import alike
from partita.cost.stage import Group
from partita.graph import Graph
from partita.plan import Plan, Search
from partita.planner.joint.boundary import boundary_share, messages
from partita.planner.joint.build import build
from partita.planner.joint.formula import stage_numbers, step_seconds, terms
from partita.planner.joint.price import Pricing
from partita.planner.joint.space import Family, Shape
from partita.planner.joint.table import Chosen, JointTable
from partita.problem import Problem
from partita.profile.profiled import profiled
from partita.simulate import simulate
from partita.simulate.stages import Stages
from partita.simulate.table import chosen
from partita.spacetime.lower import lower_to_time
from tests.planner.joint.tables import random_answer

# Thorough: the fast suite has the search against brute force and whole plans.
pytestmark = pytest.mark.slow

SEARCH = Search("joint", True, 0.0, 0)
H200 = Path(__file__).parents[2] / "data" / "profiles" / "h200.json"


@cache
def graph(model: str, samples: int = 1, dtype: str = "bfloat16") -> Graph:
    return load_model(model, None, dtype, samples=samples)


def pricing(model: str, cluster: Cluster | str, batch: int, target: str = "partita", samples: int = 1) -> Pricing:
    where, whole = parse_cluster(cluster) if isinstance(cluster, str) else cluster, graph(model, samples)
    return Pricing(Problem(whole, where, batch, target=target), alike(whole), most_units=16)


Answer = tuple[Family, JointTable, tuple[Chosen, ...]]


def answers(prices: Pricing, seed: int, count: int, depth: int = 0) -> Iterator[Answer]:
    """Random answers of random tables; ``depth`` is 1F1B's."""
    random = Random(seed)
    while count:
        family = random.choice(prices.families)
        schedule = random.choice(["1f1b", "gpipe"])
        count_of = random.choice(prices.micro_batches(family))
        table = prices.table(family, count_of, schedule, depth if schedule == "1f1b" else 0)
        stages = random_answer(random, table)
        if stages is not None:
            count -= 1
            yield family, table, stages


def one(prices: Pricing, shapes: list[Shape], micro_batches: int, options: list[tuple[int, ...]], **given) -> Answer:
    """The answer with these shapes, in the first family that has it."""
    for family in prices.families:
        if all(shape in family.shapes for shape in shapes):
            table = prices.table(family, micro_batches, **given)
            start = unit = 0
            stages = []
            for shape, each in zip(shapes, options, strict=True):
                k = family.shapes.index(shape)
                stages.append(Chosen(start, start + len(each), unit, k, each))
                start, unit = start + len(each), unit + int(table.units[k])
            if unit == family.units and np.isfinite(step_seconds(table, stages)):
                return family, table, tuple(stages)
    raise AssertionError(shapes)


def check(prices: Pricing, answer: Answer) -> Plan:
    """Each stage's numbers against those of the plan's simulation."""
    family, table, stages = answer
    plan = build(prices, family, table, stages, SEARCH)
    priced = Stages(prices.problem.graph, plan, prices.cluster, prices.groups)
    for index, (at, stage) in enumerate(zip(stages, plan.stages, strict=True)):
        behind = len(stages) - 1 - index
        numbers, turns = stage_numbers(table, at, behind), priced.turns(stage)
        assert numbers.forward == pytest.approx(turns.forward, rel=1e-12)
        assert numbers.backward == pytest.approx(turns.backward, rel=1e-12)
        v = int(table.prices_of[at.shape, at.unit])
        lent = float(table.prices.lent_sync[v, at.start, at.start : at.stop].sum())
        ways = {axes for axes, paid in prices.ways(family).paid() if paid[v, 0]}
        if len(priced.trained(stage)) == len(ways):
            # Latency is paid once for each way in which a stage may add gradients up, also where no block needs it.
            assert numbers.sync - lent == pytest.approx(sum(priced.ending(stage)), rel=1e-12)
        memory, held = priced.memory(index), table.held(behind)
        theirs = {**memory.items(), "activations": memory.activations * held}
        if turns.backward:
            stated = plan.predicted.breakdown.stages[index].memory
            assert stated.items() == pytest.approx(theirs, abs=held + 1)
            less = table.memory_limit - prices.problem.memory_limit_of(stage.devices)
            assert stated.total == pytest.approx(numbers.bytes - less, abs=6)
    return plan


CASES = [
    ("gpt3-tiny", "4x2xa100-80gb", 32),  # tied words
    ("gpt3-tiny", "2x3xa100-80gb", 24),
    ("gpt3-tiny", "4xcpu", 16),  # processes that share cores
    ("swin-tiny", "2x4xa100-80gb", 16),
    ("gpt3-tiny", "1x2xh100-80gb+1x4xa100-40gb+1x2xh100-80gb", 16),  # unlike nodes
    ("gpt3-1.3b", "1x2xh100-80gb+1x4xa100-40gb+1x2xh100-80gb", 16),
    pytest.param("mixture-tiny", "1x4xh100-80gb", 8, marks=pytest.mark.slow),
    # Passes without gradients, parameters that all of them share.
    pytest.param("alphafold2-tiny", "2x4xa100-80gb", 16, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("model", "cluster", "batch"), CASES)
def test_a_stage_costs_in_the_table_what_it_costs_in_the_simulator(model, cluster, batch):
    prices = pricing(model, cluster, batch)
    for answer in answers(prices, 3, 30, depth=1):
        check(prices, answer)


def test_the_same_by_a_measured_profile():
    cluster = profiled(parse_cluster("1x4xh200"), H200, "bf16")
    prices = pricing("gpt3-tiny", cluster, 16)
    for answer in answers(prices, 4, 30):
        check(prices, answer)
    assert all(way.base_sync.min() > 0 for way in map(prices.ways, prices.families))  # an update's start


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster", "batch"), CASES[:-1])
def test_what_is_offered_lowers(model, cluster, batch):
    """The lowering takes every answer."""
    prices = pricing(model, cluster, batch)
    for family, table, stages in answers(prices, 5, 16, depth=1):
        plan = build(prices, family, table, stages, SEARCH)
        assert lower_to_time(graph(model, plan.sample_parts), plan).queues


@pytest.mark.parametrize(("model", "cluster"), [("gpt3-tiny", "2x2xa100-80gb"), ("swin-tiny", "4xcpu")])
def test_without_a_pipeline_step_and_memory_are_the_simulated_ones(model, cluster):
    prices = pricing(model, cluster, 16, samples=4)
    found = [answer for answer in answers(prices, 8, 120) if len(answer[2]) == 1]
    assert len(found) > 20
    for family, table, stages in found:
        plan = build(prices, family, table, stages, SEARCH)
        simulated = simulate(prices.problem.graph, plan, prices.cluster, prices.groups)
        shape = family.shapes[stages[0].shape]
        if shape.mixed and len({family.options[m].form for m in stages[0].options}) == 1:
            continue  # pays latency for a form that it hasn't
        # A plan's seconds have nine digits.
        assert simulated.step_seconds == pytest.approx(plan.predicted.step_seconds, rel=2e-8)
        assert {device: peak.total for device, peak in simulated.peaks.items()} == plan.predicted.peak_bytes
        parts = plan.predicted.breakdown
        whole = parts.compute_seconds + parts.recompute_seconds + parts.collective_seconds + parts.sync_seconds
        assert whole == pytest.approx(plan.predicted.step_seconds, rel=1e-7)
        uses = simulated.use[0]
        reduced = simulated.costs.collective_seconds[0, "reduce"] + simulated.costs.collective_seconds[0, "update"]
        assert parts.collective_seconds == pytest.approx(uses.collective_seconds - reduced, rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_with_a_pipeline_they_differ_by_what_the_formula_cannot_see(schedule):
    """The simulated memory is the predicted one; the seconds of turns, transfers and ends that both are given agree."""
    prices = pricing("swin-tiny", "1x4xa100-80gb", 16, samples=4)
    found = [answer for answer in answers(prices, 9, 60) if len(answer[2]) > 1 and answer[1].schedule == schedule]
    assert len(found) > 10
    for family, table, stages in found:
        plan = build(prices, family, table, stages, SEARCH)
        simulated = simulate(prices.problem.graph, plan, prices.cluster, prices.groups)
        theirs = simulated.costs.table
        both = [terms(table, stages), terms(theirs, chosen(theirs))]
        assert both[1].total == pytest.approx(both[0].total, rel=1e-12)
        assert both[1].slowest == pytest.approx(both[0].slowest, rel=1e-12)
        assert both[1].slowest_backward == pytest.approx(both[0].slowest_backward, rel=1e-12)
        for device, stated in plan.predicted.peak_bytes.items():
            assert simulated.peaks[device].memory.total <= stated <= simulated.peaks[device].total


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        (((2, 2), (2, 2)), 1 / 2),
        (((1, 1), (1, 1)), 1),
        (((2, 1), (1, 1)), 1),  # the one that reads takes in both copies' samples
        (((1, 1), (2, 1)), 1),  # the one that sends serves both copies
        (((1, 2), (2, 1)), 1 / 2),  # the devices of a copy send in turn
        (((1, 4), (4, 1)), 1 / 4),
        (((1, 1), (1, 4)), 4),  # all four read all samples from one device
        (((2, 1), (1, 2)), 1),
        (((4, 1), (2, 2)), 1 / 2),
        (((3, 1), (2, 1)), 1 / 2),
        (((2, 1), (3, 1)), 1 / 2),
    ],
)
def test_the_part_of_a_turn_that_the_busiest_device_moves(shapes, wanted):
    assert boundary_share(*shapes[0], *shapes[1]) == wanted


def test_that_part_is_what_the_messages_come_to():
    for before, after in product(product((1, 2, 3, 4, 6), (1, 2, 3, 4)), repeat=2):
        found, samples = messages(*before, *after)
        moved = Counter()
        for (source, reader), count in found.items():
            moved["sends", source] += count
            moved["gets", reader] += count
        assert boundary_share(*before, *after) == pytest.approx(max(moved.values()) / samples), (before, after)


PORTS = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (3, 1), (3, 2)]


@pytest.mark.parametrize("before", PORTS)
def test_a_boundary_moves_what_the_lowered_plan_moves(before):
    for after in PORTS:
        devices, micro_batches = before[0] * before[1] + after[0] * after[1], 2
        prices = pricing("swin-tiny", f"1x{devices}xa100-80gb", 24)
        shapes = [Shape(*before), Shape(*after)]
        answer = one(prices, shapes, micro_batches, [(0, 0, 0), (0, 0, 0, 0)])
        plan = build(prices, *answer, SEARCH)
        program = lower_to_time(graph("swin-tiny"), plan)
        crossing, samples = prices.crossing, 24 // micro_batches
        stages = Stages(prices.problem.graph, plan, prices.cluster, prices.groups)
        most = {}
        for device, queue in program.queues.items():
            for task in queue:
                if task.kind in ("send", "receive") and task.transfer.what in ("value", "gradient"):
                    each = np.prod(task.transfer.shape) * stages.item(task.transfer.dtype)
                    each *= 1 if task.transfer.samples else samples / plan.stages[task.transfer.source].dp
                    key = task.transfer.what, task.kind, device
                    most[key] = most.get(key, 0) + each / micro_batches
        for what, size, share in (
            ("value", crossing.forward_bytes[3], boundary_share(*before, *after)),
            ("gradient", crossing.backward_bytes[3], boundary_share(*after, *before)),
        ):
            busiest = max(found for (kind, _, _), found in most.items() if kind == what)
            assert busiest == pytest.approx(size * samples * share), (before, after, what)


@pytest.mark.parametrize("forms", ["ttttttt", "bbbbbbb", "btbtbtb", "bbbtttb", "tbbbbtt"])
@pytest.mark.parametrize("bounds", [(7,), (3, 7), (2, 7)])
def test_changes_of_form_take_the_collectives_of_the_lowered_plan(forms, bounds):
    """Bytes that go over the axis tensor between blocks of unlike forms, and between these and other stages."""
    tp, micro_batches = 2, 2
    prices = pricing("swin-tiny", f"1x{tp * len(bounds)}xa100-80gb", 8)
    options = [{"t": 0, "b": 2}[form] for form in forms]
    parts = [tuple(options[: bounds[0]]), tuple(options[bounds[0] :])][: len(bounds)]
    family, table, stages = one(
        prices, [Shape(1, tp, mixed=True, recompute="none")] * len(bounds), micro_batches, parts
    )
    assert [family.options[m].form for m in (0, 2)] == ["tensor", "batch"]
    samples = 8 // micro_batches
    whole = graph("swin-tiny", samples)
    program = lower_to_time(whole, build(prices, family, table, stages, SEARCH))
    link = prices.cluster.link(False)
    tensor = Group(tp, link.latency_seconds, link.reached_bytes_per_second)
    for at, piece in zip(stages, program.pieces, strict=True):
        crossed = {name for segment in piece.segments for name in (*segment.inputs, *segment.outputs)}
        crossed |= {*piece.inputs, *piece.outputs}
        wanted = {"forward": 0.0, "backward": 0.0}
        for segment in piece.segments:
            for op in segment.ops:
                name = op.op.inputs[0].removesuffix(".piece")
                if op.form in ("gather", "slice") and name in crossed and whole.tensor[name].gradient:
                    seconds = tensor.seconds(1, whole.tensor[name].elements * 2)
                    wanted["forward" if op.form == "gather" else "backward"] += seconds
        v, prices_of = int(table.prices_of[at.shape, at.unit]), table.prices
        for phase in ("forward", "backward"):
            change, enter, leave = (getattr(prices_of, f"{kind}_{phase}")[v] for kind in ("change", "enter", "leave"))
            found = enter[at.start, at.options[0]] + leave[at.stop - 1, at.options[-1]]
            for i in range(at.start + 1, at.stop):
                before, after = at.options[i - at.start - 1 : i - at.start + 1]
                found += change[i, before, after]
            assert found == pytest.approx(wanted[phase], rel=1e-12), phase


@pytest.mark.parametrize(
    ("cluster", "unit", "units", "stages"),
    [
        ("4x8xa100-80gb", 2, 16, [1, 2, 4]),  # 6 blocks: no more stages
        ("1x6xa100-80gb", 1, 6, [1, 2, 3, 6]),
        ("3x8xa100-80gb", 2, 12, [1, 2, 3, 4, 6]),
        ("1x7xa100-80gb", 1, 7, [1]),
    ],
)
def test_the_families_of_a_cluster(cluster, unit, units, stages):
    found = pricing("gpt3-tiny", cluster, 3360).families
    assert list(dict.fromkeys(family.stages for family in found)) == [*stages, None]
    devices = unit * units
    for family in found:
        assert family.unit * family.units == devices
        assert {shape.devices % family.unit for shape in family.shapes} == {0}
        if family.stages is None:
            assert (family.unit, family.units) == (unit, units)
            assert {shape.devices // unit for shape in family.shapes} <= set(range(1, units + 1))
        else:
            assert {shape.devices for shape in family.shapes} == {devices // family.stages}
    # Stages that share the words have the same tp, and the blocks the same form.
    assert {family.tied for family in found if family.stages == 1} >= {(1, "tensor")}


@pytest.mark.parametrize(
    ("target", "zeros"), [("deepspeed", {1: {0, 1, 2, 3}, 2: {0, 1}}), ("megatron", {1: {0}, 2: {0}})]
)
def test_a_framework_whose_stages_are_alike_has_a_family_for_each_shape(target, zeros):
    found = pricing("gpt3-tiny", "1x4xa100-80gb", 8, target).families
    assert all(len(family.shapes) == 1 and not family.shapes[0].mixed for family in found)
    for stages, allowed in zeros.items():
        assert {family.shapes[0].zero for family in found if family.stages == stages} == allowed


@pytest.mark.parametrize(
    ("fix", "wanted"),
    [
        ({"tp": 2}, lambda s, o, c: s.tp == 2 and not s.mixed),
        ({"dp": 2, "micro_batch": 2}, lambda s, o, c: s.dp == 2 and c == 4),
        ({"pp": 2}, lambda s, o, c: s.devices == 2),
        ({"zero": 1}, lambda s, o, c: s.zero == 1),
        ({"recompute": "full"}, lambda s, o, c: o.recompute == "full"),
        ({"micro_batches": 4}, lambda s, o, c: c == 4),
    ],
)
def test_what_is_held_is_kept(fix, wanted):
    whole = graph("gpt3-tiny")
    prices = Pricing(Problem(whole, parse_cluster("1x4xa100-80gb"), 16, target="partita", fix=fix), alike(whole))
    found = list(answers(prices, 6, 30))
    for family, table, stages in found:
        for stage in stages:
            shape, option = family.shapes[stage.shape], family.options[stage.options[0]]
            assert wanted(shape, option, table.micro_batches)


def test_groups_that_cross_nodes_have_other_prices():
    prices = pricing("gpt3-tiny", "2x3xa100-80gb", 12)
    family = prices.families[-1]
    assert family.stages is None
    where = prices.places(family)
    pair = family.shapes.index(Shape(1, 2))
    crosses = [where.variants[v].along({"tensor"}).crosses for v in where.of[pair] if v >= 0]
    assert crosses == [False, False, True, False, False]
    assert where.crosses.tolist() == [0, 0, 0, 1, 0, 0, 0]
    copies = family.shapes.index(Shape(3, 1))
    assert [where.variants[v].along({"data"}).crosses for v in where.of[copies] if v >= 0] == [False, True, True, False]
    table = prices.table(family, 2)
    fast, slow = table.prices_of[pair, 0], table.prices_of[pair, 2]
    layer = 1
    assert table.prices.forward[slow, layer, 0] > table.prices.forward[fast, layer, 0]


def test_tied_words_are_cut_alike_in_all_stages():
    prices = pricing("gpt3-tiny", "1x4xa100-80gb", 8)
    for family in prices.families:
        table = prices.table(family, 2)
        ends = np.isfinite(table.prices.forward[:, [0, -1], :])
        for v, variant in enumerate(prices.places(family).variants):
            for m, option in enumerate(family.options):
                exists = option.form == "tensor" or variant.shape.mixed
                exists = exists and variant.shape.recompute in (None, option.recompute)
                fits = exists and family.tied == (variant.shape.tp, option.form)
                if family.stages is None and variant.shape.zero >= 2 and variant.shape.devices < 4:
                    # The owner's copies would divide what other stages have in other numbers of copies.
                    assert not ends[v, 0, m]
                else:
                    assert ends[v, 0, m] == fits
                assert ends[v, 1, m] == fits


def test_what_a_stage_borrows_counts_where_it_is_used_first():
    prices = pricing("gpt3-tiny", "1x2xa100-80gb", 8)
    family = next(family for family in prices.families if family.stages == 2)
    table = prices.table(family, 2)
    words, width = 257, 128  # of the recipe; bf16 weights and gradients
    lent = table.prices.lent_bytes[0]
    assert lent[0].sum() == 0
    assert all(lent[start, -1] == words * width * 4 and lent[start, :-1].sum() == 0 for start in range(1, len(lent)))
    link = prices.cluster.link(False)
    message = link.latency_seconds + words * width * 2 / link.reached_bytes_per_second
    assert table.prices.lent_sync[0][1, -1] == pytest.approx(2 * message)
