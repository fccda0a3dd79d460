"""Problem to plan on hand-made graphs: optimal over everything, every block once, cases from the field."""

from __future__ import annotations

import re
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.cli.options import problem as stated
from partita.cost.alike import alike
from partita.errors import Infeasible, InputError, PlanError
from partita.plan import load_plan, plan_document, save_plan
from partita.planner import parse_fix, plan
from partita.planner.joint.build import stage_memory
from partita.planner.joint.engine import DEPTHS, Engine
from partita.planner.joint.formula import stage_numbers
from partita.planner.joint.price import Pricing
from partita.planner.joint.space import Option, Shape
from partita.planner.joint.table import Chosen
from tests.planner.joint.brute import brute


def sizes(found) -> list[int]:
    return [len(stage.blocks) for stage in found.stages]


def brute_force(problem) -> float:
    """The least step time of all families, numbers of micro-batches and schedules, all cuts and all options, without
    any bound; infinite where nothing fits."""
    pricing = Pricing(problem, alike(problem.graph))
    kinds = [("1f1b", depth) for depth in DEPTHS] + [("gpipe", 0)]
    return min(
        brute(pricing.table(family, count, schedule, depth)).seconds
        for family in pricing.families
        for count in pricing.micro_batches(family)
        for schedule, depth in kinds
    )


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
@pytest.mark.parametrize("target", ["deepspeed", "partita"])
def test_the_plan_is_the_best_of_all(made, seed, target):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 4))
    graph = made.chain(
        rng.integers(1, 9, n) * 1e-3, rng.integers(0, 3, n) * 100_000, width=int(rng.integers(0, 2000)),
        kept=int(rng.integers(0, 50_000)), shared=[(0, n - 1)] if seed % 3 == 0 else (),
    )  # fmt: skip
    cluster = made.machine(int(rng.choice([2, 3, 4])), memory=int(rng.integers(2, 9)) * 1_000_000, latency=1e-5)
    problem = made.problem(graph, cluster, batch=6 if cluster.devices == 3 else 4, target=target)
    expected = brute_force(problem)
    if expected == inf:
        with pytest.raises(Infeasible):
            plan(problem)
        return
    found = plan(problem)
    assert found.predicted.step_seconds == pytest.approx(expected, rel=1e-8)
    assert (found.search.engine, found.search.optimal) == ("joint", True)
    assert found.search.bound_seconds == found.predicted.step_seconds
    assert max(found.predicted.peak_bytes.values()) <= problem.memory_limit


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_items_of_memory_add_up_to_what_the_search_compared(made, schedule):
    graph = made.chain([1e-3] * 6, [1000, 301, 5, 77, 9, 123], width=33, kept=70, shared=[(0, 4), (1, 5)])
    problem = made.problem(graph, batch=12, target="deepspeed", fix={"schedule": schedule})
    pricing = Pricing(problem, alike(graph))
    for family in pricing.families:
        for count in pricing.micro_batches(family):
            table = pricing.table(family, count, schedule)
            for start, stop in ((0, 6), (0, 3), (3, 6), (4, 5), (2, 6)):
                stage = Chosen(start, stop, 0, 0, (0,) * (stop - start))
                stated = stage_memory(pricing, family, table, stage, 0).total
                assert 0 <= stated - stage_numbers(table, stage, 0).bytes < 6  # each item is rounded up


class Interrupted(Engine):
    """The user presses Ctrl-C once there is an answer."""

    answers = 0

    def solve(self, task, below):
        if self.answers:
            raise KeyboardInterrupt
        answer = super().solve(task, below)
        self.answers += answer is not None
        return answer


def test_an_interrupted_search_returns_the_best_so_far_as_not_proven(made):
    # One of the few whose first answer isn't the best.
    rng = np.random.default_rng(17)
    seconds = rng.integers(1, 9, int(rng.integers(4, 9))) * 1e-3
    problem = made.problem(made.chain(seconds, [100] * len(seconds), width=100_000), batch=12, target="deepspeed")
    found = Interrupted(Pricing(problem, alike(problem.graph))).search()
    assert not found.optimal
    best = plan(problem).predicted.step_seconds  # rounded to nine digits
    assert found.bound_seconds * (1 - 1e-8) <= best <= found.best.seconds * (1 + 1e-8)
    assert found.bound_seconds < found.best.seconds


def test_a_search_without_time_for_an_answer_says_so(made):
    with pytest.raises(PlanError, match="no plan was found within 0 seconds"):
        plan(made.problem(made.chain([1e-3] * 3)), seconds=0)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seconds=st.lists(st.integers(1, 9), min_size=1, max_size=9), devices=st.integers(1, 12), batch=st.integers(1, 24)
)
def test_every_block_once_and_in_order_and_the_batch_closes(made, seconds, devices, batch):
    graph = made.chain([each * 1e-3 for each in seconds])
    found = plan(made.problem(graph, made.machine(devices), batch))
    assert [name for stage in found.stages for name in stage.blocks] == [block.name for block in graph.blocks]
    assert all(stage.samples * stage.micro_batches == batch for stage in found.stages)
    assert sorted([*found.devices, *found.idle_devices]) == list(range(devices))
    assert bool(found.idle_devices) == any("idle: no plan" in reason for reason in found.reasons)


def test_c01_30_layers_on_4_stages(made):
    found = plan(made.problem(made.chain([1e-3] * 30), batch=16, fix=parse_fix(["pp=4"])))
    assert sorted(sizes(found)) == [7, 7, 8, 8]
    assert [name for stage in found.stages for name in stage.blocks] == [f"b{i}" for i in range(30)]


def test_c02_three_blocks_on_four_stages(made):
    graph = made.chain([1e-3] * 3)
    with pytest.raises(PlanError, match="pp=4: 4 stages need at least 4 blocks, the model has 3; 1 to 3 work"):
        plan(made.problem(graph, fix=parse_fix(["pp=4"])))
    found = plan(made.problem(graph, fix=parse_fix(["pp=3"])))
    assert sizes(found) == [1, 1, 1]
    assert found.idle_devices == (3,)
    assert any("device 3 is idle" in reason for reason in found.reasons)


def test_c03_the_head_in_layers(made):
    # Forward and backward together take three times what a block reads.
    graph = made.chain([1e-3 / 3] + [10e-3 / 3] * 24 + [15e-3 / 3])
    found = plan(made.problem(graph, batch=8, fix=parse_fix(["pp=4", "micro_batch=1", "recompute=none"])))
    assert found.predicted.step_seconds == pytest.approx(0.746, abs=1e-6)
    assert sizes(found)[-1] - 1 < 6
    assert any('"b25" costs 1.5 layers' in reason for reason in found.reasons)


def test_c04_memory_of_the_heaviest_stage(made):
    graph = made.chain([1e-3] * 10, [800] + [872] * 8 + [816])
    numbers_of = made.problem(graph, precision="bf16", fix=parse_fix(["pp=4", "recompute=none"]))
    pricing = Pricing(numbers_of, alike(graph))
    family = next(f for f in pricing.families if f.stages == 4 and f.shapes == (Shape(1, 1),))
    assert family.options == (Option("none"),)
    table = pricing.table(family, 8)
    bounds = (0, 2, 4, 6, 10)  # layers 1, 2, 2, 3
    memory = [
        stage_memory(pricing, family, table, Chosen(i, j, s, 0, (0,) * (j - i)), 3 - s)
        for s, (i, j) in enumerate(pairwise(bounds))
    ]
    state = [m.parameters + m.gradients + m.optimizer for m in memory]
    assert state == [16 * 1672, 16 * 1744, 16 * 1744, 54_912]
    assert sum(state) == 16 * graph.parameter_count == 16 * 8592
    found = plan(numbers_of)
    assert len(set(found.predicted.peak_bytes.values())) > 1


def test_c05_recomputation_stored_and_temporary_apart(made):
    # A unit is one float32: each of 24 layers keeps 10 inside and is handed 1.
    graph = made.chain([1e-3] * 25, [1] * 25, width=1, kept=10)
    memory = {
        choice: plan(made.problem(graph, made.machine(1), 1, fix=parse_fix([f"recompute={choice}"])))
        .predicted.breakdown.stages[0].memory
        for choice in ("none", "full")
    }  # fmt: skip
    assert memory["full"].activations == 4 * 24
    assert memory["full"].temporary == 4 * 10 + 4 * (10 + 1)  # activations again, and gradients of one op
    assert memory["none"].activations == 4 * 10 * 25
    assert memory["none"].temporary == 4 * (10 + 1)


def test_c06_a_tied_parameter_on_two_stages(made):
    found = plan(made.problem(made.chain([1e-3] * 3, shared=[(0, 2)]), fix=parse_fix(["pp=3"])))
    (tied,) = found.shared_parameters
    assert (tied.parameter, tied.owner, tied.stages, tied.gradient_bytes) == ("tied0", 0, (0, 2), 4000)
    memory = [stage.memory for stage in found.predicted.breakdown.stages]
    assert [(m.parameters, m.gradients, m.optimizer) for m in memory] == [
        (4000, 4000, 8000),
        (0, 0, 0),
        (4000, 4000, 0),
    ]


def test_c23_fewer_micro_batches_than_stages_is_a_warning(made):
    graph = made.chain([1e-3] * 4)
    found = plan(made.problem(graph, batch=2, fix=parse_fix(["pp=4", "micro_batches=2", "recompute=none"])))
    assert found.predicted.bubble_fraction == 0.6
    assert any(reason.startswith("Warning: too few micro-batches (2) for 4 stages") for reason in found.reasons)
    with pytest.raises(PlanError, match=r"micro_batches=4 does not divide the 3 samples; 1 and 3 do"):
        plan(made.problem(graph, batch=3, fix=parse_fix(["micro_batches=4"])))


def test_c24_no_pipeline_with_zero_2_for_deepspeed(made):
    graph = made.chain([1e-3] * 4, [1000] * 4)
    with pytest.raises(PlanError, match=r"zero=2 with pp=2: DeepSpeed's pipeline engine takes ZeRO 0 and 1"):
        plan(made.problem(graph, target="deepspeed", fix=parse_fix(["zero=2", "pp=2"])))
    found = plan(made.problem(graph, target="deepspeed", fix=parse_fix(["zero=2"])))
    assert len(found.stages) == 1
    assert {strategy.zero for strategy in found.stages[0].strategies} == {2}


def test_c25_nothing_fits(made):
    graph = made.chain([1e-3] * 8, [500_000_000] * 8)
    with pytest.raises(Infeasible) as caught:
        plan(made.problem(graph, made.machine(4, memory=10**10)))
    text = str(caught.value)
    assert "14.90 GiB a device (16,000,000,000 bytes)" in text
    assert "optimizer states" in text
    assert "7 devices would hold it if it could be split evenly" in text
    assert "8 devices of this kind would do, and no fewer" in text
    assert sizes(plan(made.problem(graph, made.machine(4, memory=16 * 10**9)))) == [2, 2, 2, 2]
    with pytest.raises(Infeasible):
        plan(made.problem(graph, made.machine(4, memory=16 * 10**9 - 1)))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_the_least_memory_is_exact(made, seed):
    rng = np.random.default_rng(100 + seed)
    graph = made.chain(rng.integers(1, 9, 6) * 1e-3, rng.integers(1, 9, 6) * 1000, width=50, kept=700)
    given = {"target": "deepspeed" if seed % 2 else "partita", "batch": 6}
    with pytest.raises(Infeasible) as caught:
        plan(made.problem(graph, made.machine(3, memory=10), **given))
    least = int(re.search(r"\(([\d,]+) bytes\)", str(caught.value))[1].replace(",", ""))
    assert plan(made.problem(graph, made.machine(3, memory=least), **given)).search.optimal
    with pytest.raises(Infeasible):
        plan(made.problem(graph, made.machine(3, memory=least - 1), **given))


def test_the_file_is_the_same_byte_for_byte_and_reads_back(made, tmp_path):
    problem = made.problem(made.chain([1e-3, 2e-3, 3e-3], [10, 20, 30], shared=[(0, 2)]))
    save_plan(plan(problem), tmp_path / "a.json")
    save_plan(plan(problem), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert load_plan(tmp_path / "a.json") == plan(problem)
    document = plan_document(plan(problem))
    assert document["problem"] == problem.digest
    assert "seconds" not in document["search"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"dp": 4', '"dp": 2', "has 4 devices, but dp=2"),
        ('"global_batch": 8', '"global_batch": 9', "is not the global batch 9"),
        ('"schedule"', '"scedule"', "scedule"),
        ('"samples": 8', '"samples": "many"', "samples"),
    ],
)
def test_a_broken_plan_file_is_refused(made, tmp_path, before, after, message):
    problem = made.problem(made.chain([1e-3]), fix=parse_fix(["micro_batch=2"]))
    save_plan(plan(problem), tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert before in text
    (tmp_path / "plan.json").write_text(text.replace(before, after))
    with pytest.raises(InputError, match=message):
        load_plan(tmp_path / "plan.json")


def test_a_step_s_parts_add_up(made):
    graph = made.chain([1e-3] * 6, [1000] * 6, width=100)
    for held in (["pp=4"], ["pp=2"], ["pp=1"]):
        predicted = plan(made.problem(graph, batch=16, fix=parse_fix(held))).predicted
        parts = predicted.breakdown
        found = (
            parts.compute_seconds + parts.recompute_seconds + parts.collective_seconds + parts.waiting_seconds
            + parts.sync_seconds
        )  # fmt: skip
        assert found == pytest.approx(predicted.step_seconds, rel=1e-6)
        assert predicted.samples_per_second == pytest.approx(16 / predicted.step_seconds, rel=1e-6)


def test_1f1b_where_gpipe_is_no_faster():
    """A tie to the last bit: GPipe's bound is lower, so it is searched first; 1F1B holds less and runs anywhere."""
    asked = ("gpt3-6.7b", "6xa100-80gb", None, 7, None, "bf16", "adam", None, "deepspeed")
    found, held = plan(stated(*asked, ())), plan(stated(*asked, ("schedule=gpipe",)))
    assert (found.schedule, held.schedule) == ("1f1b", "gpipe")
    assert found.predicted.step_seconds == held.predicted.step_seconds
    assert max(found.predicted.peak_bytes.values()) < max(held.predicted.peak_bytes.values())
