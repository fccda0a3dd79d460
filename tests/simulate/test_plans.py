"""Plans in simulation beside what they predict: the step, the memory, the bytes, and why they differ."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from partita.cluster import parse_cluster
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Cut, Plan
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.simulate import simulate
from partita.simulate.differ import difference, sentences
from partita.spacetime.lower import lower

NEAR = parse_cluster("8xa100-80gb")
FAR = parse_cluster("4x2xa100-80gb")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture_config(config("gpt3-tiny"), samples=1, seq=64, dtype="bfloat16", name="gpt3-tiny")


def made(graph: Graph, cluster=NEAR, batch=32, **fix: object) -> Plan:
    return plan(Problem(graph, cluster, batch, fix=parse_fix(f"{name}={value}" for name, value in fix.items())))


@pytest.mark.parametrize("cluster", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize(("zero", "recompute", "tp"), list(product(range(4), ["none", "full"], [1, 2])))
def test_without_stages_the_step_and_the_memory_are_the_predicted_ones(graph, cluster, zero, recompute, tp):
    found = made(graph, cluster, dp=8 // tp, tp=tp, pp=1, zero=zero, recompute=recompute, micro_batches=2)
    simulated = simulate(graph, found, cluster)
    # A plan's seconds have nine digits.
    assert simulated.step_seconds == pytest.approx(found.predicted.step_seconds, rel=2e-8)
    assert {device: peak.total for device, peak in simulated.peaks.items()} == found.predicted.peak_bytes
    assert {peak.buffers for peak in simulated.peaks.values()} == {0}
    assert simulated.bubble_fraction == pytest.approx(0, abs=1e-12)
    differs = difference(simulated, found, cluster)
    assert sentences(differs, simulated, found, cluster) == ["The queues take exactly what the formula says."]


@pytest.mark.parametrize("cluster", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize(("schedule", "count"), list(product(["1f1b", "gpipe"], [1, 2, 4, 16])))
def test_with_stages_the_memory_is_the_predicted_one_and_the_buffers(graph, cluster, schedule, count):
    found = made(graph, cluster, dp=2, tp=1, pp=4, schedule=schedule, micro_batches=count)
    simulated = simulate(graph, found, cluster)
    for device, predicted in found.predicted.peak_bytes.items():
        stage = simulated.program.only_place(device).stage
        memory = simulated.costs.memory[stage]
        state = memory.total - memory.activations - memory.temporary
        moments = list(simulated.memory(device))
        assert max(state + m.activations + m.temporary for m in moments) == predicted
        assert simulated.peaks[device].total == state + max(m.total for m in moments)
        held = found.predicted.breakdown.stages[stage].in_flight
        assert max(m.activations for m in moments) == held * memory.activations
        backward = {start: end for task, start, end in simulated.intervals(device) if task.kind == "backward"}
        # Each backward turn has its temporary tensors from its first second to its last.
        assert {m.seconds for m in moments if m.temporary} >= backward.keys()
        assert not any(m.temporary for m in moments if not any(s <= m.seconds <= e for s, e in backward.items()))
        # All is freed at the end, nothing more than there was.
        assert (moments[-1].activations, moments[-1].temporary, moments[-1].buffers) == (0, 0, 0)
        assert min(min(m.activations, m.temporary, m.buffers) for m in moments) == 0


def test_buffers_are_counted_in_flight(graph):
    """Two stages, one micro-batch: by hand."""
    found = made(graph, dp=1, tp=1, pp=2, micro_batches=1, schedule="gpipe")
    simulated = simulate(graph, found, NEAR)
    value = found.stages[0].samples * 64 * config("gpt3-tiny")["n_embd"] * 2
    tied = 2 * graph.tensor["transformer.wte.weight"].elements
    first, last = (max(m.buffers for m in simulated.memory(device)) for device in (0, 1))
    # The first: its output until its backward has run, the gradient of it, the tied gradient posted with its receive.
    assert first == 2 * value + tied
    # The last: the value until it takes it in; then its gradient, and the tied weights that come back.
    assert last == value + tied


@pytest.mark.parametrize("fix", [{"pp": 4, "dp": 2}, {"pp": 2, "tp": 2, "dp": 2}, {"pp": 6}, {"dp": 8}])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_parts_of_a_difference_add_up_to_it(graph, fix, schedule):
    batch = 64
    found = made(graph, FAR, batch, **{"tp": 1, "dp": 1, "pp": 1} | fix, schedule=schedule, micro_batches=8)
    simulated = simulate(graph, found, FAR)
    differs = difference(simulated, found, FAR)
    assert sum(differs.items().values()) == pytest.approx(differs.seconds, abs=1e-12)
    assert differs.costs_seconds == pytest.approx(0, abs=1e-8 * found.predicted.step_seconds)
    assert differs.end_seconds <= 1e-12
    if schedule == "gpipe" or len(found.stages) == 1:
        # Its maxima are exact for any turns; of transfers it knows their sum.
        assert differs.turns_seconds == pytest.approx(0, abs=1e-12)
    assert abs(differs.seconds) < 0.12 * found.predicted.step_seconds


def test_another_cluster_is_a_difference_in_costs(graph):
    found = made(graph, FAR, dp=8, tp=1, pp=1, micro_batches=1)
    simulated = simulate(graph, found, NEAR)
    differs = difference(simulated, found, NEAR)
    assert differs.costs_seconds < 0
    assert differs.items() == pytest.approx({"costs": differs.seconds, "turns": 0, "transfers": 0, "end": 0}, abs=1e-12)
    assert "(it was made for 4x2xa100-80gb)" in sentences(differs, simulated, found, NEAR)[1]


def test_a_plan_that_predicts_nothing_is_told_what_it_takes(graph):
    found = made(graph, dp=8, tp=1, pp=1, micro_batches=1)
    silent = replace(found, predicted=replace(found.predicted, step_seconds=0.0, peak_bytes={}))
    simulated = simulate(graph, silent, NEAR)
    words = sentences(difference(simulated, silent, NEAR), simulated, silent, NEAR)
    assert words[0].startswith("The queues take 100% more than predicted (+")
    assert "the plan's own prediction has other numbers" in words[1]


def test_recomputation_is_each_block_s_own(graph):
    """Recomputing half of the blocks lies half way between none and all, in time and in activations."""
    steps, peaks = [], []
    base = made(graph, dp=1, tp=1, pp=1, recompute="none", micro_batches=1)
    blocks = base.stages[0].strategies
    for count in range(len(blocks) + 1):
        chosen = tuple(replace(s, recompute="full" if i < count else "none") for i, s in enumerate(blocks))
        changed = replace(base, stages=(replace(base.stages[0], strategies=chosen),))
        simulated = simulate(graph, changed, NEAR)
        steps.append(simulated.step_seconds)
        peaks.append(simulated.costs.memory[0].activations)
    full = made(graph, dp=1, tp=1, pp=1, recompute="full", micro_batches=1).predicted
    assert steps[-1] == pytest.approx(full.step_seconds, rel=2e-8)
    assert peaks[-1] == full.breakdown.stages[0].memory.activations
    assert steps == sorted(steps)
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


def test_bytes_moved_are_those_of_rings_and_messages(graph):
    size = 2 * graph.parameter_count
    data = simulate(graph, made(graph, dp=8, tp=1, pp=1, zero=0, micro_batches=1), NEAR)
    assert data.use[0].moved_bytes == pytest.approx(2 * 7 / 8 * size)
    zero = simulate(graph, made(graph, dp=8, tp=1, pp=1, zero=3, recompute="none", micro_batches=2), NEAR)
    # Twice a micro-batch the weights are gathered, once the gradients are scattered.
    assert zero.use[0].moved_bytes == pytest.approx(2 * 3 * 7 / 8 * size)
    piped = made(graph, dp=1, tp=1, pp=2, micro_batches=4)
    sent = simulate(graph, piped, NEAR).use
    value = piped.stages[0].samples * 64 * config("gpt3-tiny")["n_embd"] * 2
    tied = 2 * graph.tensor["transformer.wte.weight"].elements
    assert [sent[device].moved_bytes for device in (0, 1)] == [4 * value + tied, 4 * value + tied]


def test_a_device_s_seconds_add_up_to_the_step(graph):
    simulated = simulate(graph, made(graph, FAR, 64, pp=2, tp=2, dp=2, micro_batches=8), FAR)
    for use in simulated.use.values():
        assert use.busy_seconds + use.waiting_seconds == pytest.approx(simulated.step_seconds)
        assert use.collective_seconds > 0


def test_the_graph_s_samples_don_t_matter(graph):
    found = made(graph, batch=64, pp=4, dp=1, tp=2, micro_batches=8)
    samples = found.stages[0].samples
    assert samples == 8
    other = capture_config(config("gpt3-tiny"), samples=samples, seq=64, dtype="bfloat16", name="gpt3-tiny")
    one, many = simulate(graph, found, NEAR), simulate(other, found, NEAR)
    assert many.step_seconds == pytest.approx(one.step_seconds, rel=1e-12)
    assert one.program.queues.keys() == many.program.queues.keys()
    # And the queues are those that the runtime gets.
    lowered = lower(other, found)
    assert many.program.queues == lowered.queues


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, stages=p.stages[:1]), r'the plan has \d blocks, model "gpt3-tiny" has 6; not in both: '),
        (
            lambda p: replace(p, stages=(replace(p.stages[0], devices=(0, 9)), *p.stages[1:])),
            "the plan uses device 9, cluster 8xa100-80gb has devices 0 to 7; it was planned for 8xa100-80gb",
        ),
        (
            lambda p: replace(p, stages=(replace(p.stages[0], samples=2, micro_batches=16), *p.stages[1:])),
            "the plan's order is of 4 stages and 8 micro-batches, its stages take 16, 8, 8 and 8; ",
        ),
        (
            lambda p: replace(p, stages=tuple(replace(s, tp=1, dp=2, samples=1, micro_batches=32) for s in p.stages)),
            "a turn's 1 samples can't be divided over dp=2",
        ),
        (
            lambda p: replace(p, stages=tuple(
                replace(s, strategies=tuple(replace(x, cuts=(Cut("words", ("tensor",)),)) for x in s.strategies))
                for s in p.stages
            )),
            'block "embedding" has no dims "words" that could be cut; it has vocabulary',
        ),
    ],
)  # fmt: skip
def test_plans_that_are_not_this_model_s_or_cluster_s_are_refused(graph, change, message):
    found = made(graph, pp=4, dp=1, tp=2, micro_batches=8)
    with pytest.raises(PlanError, match=message):
        simulate(graph, change(found), NEAR)
