"""Manners beside tensor parallelism: each is chosen where it wins, costs what its simulation says, lowers, and computes
what one device computes; what is held is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest

from partita.adapters.verify.planned import module_of, verify_plan
from partita.cli.model import load_model
from partita.cluster import Cluster, parse_cluster
from partita.cost.alike import alike
from partita.errors import InputError, PlanError
from partita.plan import SIMULATED, Plan
from partita.planner.fix import check_fix, parse_fix
from partita.planner.joint import manners
from partita.planner.joint.manner import DIVIDED, PLAIN
from partita.planner.joint.plan import Solved, device_counts, solve
from partita.planner.joint.price import Pricing
from partita.problem import Problem
from partita.ranking import ranked
from partita.spacetime.lower import lower_to_time
from tests.planner.joint.test_price import answers, check, graph

MIB = 2**20
# Feed-forward layers that take most of the memory, and sequences that are most of the work.
WIDE = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 128, "n_inner": 512}
LONG = {"n_embd": 1024, "n_layer": 2, "n_head": 2, "vocab_size": 257, "n_positions": 16384}


@dataclass(frozen=True)
class Case:
    """A problem, the manners of its plan, and whether it is small enough to be run."""

    model: str | dict
    devices: int
    batch: int
    wanted: set[str]
    fix: dict = field(default_factory=dict)
    memory_bytes: float | None = None
    device_bytes: int | None = None
    seq: int | None = None
    preset: str = "a100-80gb"
    runs: bool = True


CASES = {
    # Of what tensor parallelism keeps whole, each device has half.
    "sequence": Case("gpt3-tiny", 4, 8, {"sequence"}, {"tp": 2, "pp": 1, "recompute": "none"}, 1033.5 * MIB),
    # One sample: no copies, no micro-batches.
    "context": Case(LONG, 4, 1, {"context 2"}, seq=16384, runs=False),
    "context, held": Case("gpt3-tiny", 2, 2, {"context 2"}, {"cp": 2}),
    "context and sequence, held": Case("gpt3-tiny", 4, 2, {"context 2, sequence"}, {"cp": 2, "sp": 1}),
    # Copies hold all experts, and don't fit.
    "experts": Case("mixture-tiny", 4, 8, {"experts 2"}, {"zero": 0, "tp": 1, "pp": 1}, 1026.8 * MIB),
    "experts, held": Case("mixture-tiny", 4, 4, {"experts 4"}, {"ep": 4}),
    # Computing a whole layer again takes more than there is.
    "co-shard": Case(WIDE, 1, 1, {"plain", "co-shard 2"}, device_bytes=2 * MIB, seq=128, preset="cpu"),
}


def question(case: Case, folder: Path) -> tuple[Problem, str]:
    """The problem of a case, and its model's name."""
    name = case.model if isinstance(case.model, str) else str(folder / "config.json")
    if isinstance(case.model, dict):
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        Path(name).write_text(json.dumps({"model_type": "gpt2", **drops, **case.model}))
    cluster = machine(case, f"1x{case.devices}x{case.preset}")
    memory = None if case.memory_bytes is None else int(case.memory_bytes)
    whole = load_model(name, case.seq, "bfloat16", samples=1) if isinstance(case.model, dict) else graph(name)
    return Problem(whole, cluster, case.batch, target="partita", fix=case.fix, memory_bytes=memory), name


def machine(case: Case, words: str) -> Cluster:
    """The cluster, with as much memory as the case says."""
    found = parse_cluster(words)
    if case.device_bytes is None:
        return found
    return found.with_kinds(lambda kind: replace(kind, device=replace(kind.device, memory_bytes=case.device_bytes)))


def used(found: Solved) -> set[str]:
    """The names of the manners of an answer's blocks."""
    family = found.best.family
    return {
        family.options[m].run(family.shapes[stage.shape]).name
        for stage in found.best.found.stages
        for m in stage.options
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "experts" in name else ()) for name in CASES]
)
def test_it_is_chosen_and_its_stages_cost_what_the_simulator_says(name: str, tmp_path: Path) -> None:
    problem, model = question(CASES[name], tmp_path)
    found = solve(problem)
    assert used(found) == CASES[name].wanted
    best = found.best
    plan = check(found.engine.pricing, (best.family, best.table, best.found.stages))
    assert lower_to_time(load_model(model, problem.graph.seq, "bfloat16", samples=plan.sample_parts), plan).queues


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.runs])
def test_it_computes_what_one_device_computes(name: str, tmp_path: Path) -> None:
    problem, model = question(CASES[name], tmp_path)
    found = solve(problem)
    plan: Plan = found.plan(found.best)
    assert verify_plan(plan, *module_of(model, problem.graph.seq), "plan").equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (
            Case("gpt3-tiny", 8, 32, {"plain", "divided", "context 2", "context 2, sequence"}, {"cp": 2}),
            {"context 2", "context 2, sequence"},
        ),
        (Case("gpt3-tiny", 4, 16, set(), device_bytes=4 * MIB), {"sequence", "co-shard 2", "co-shard 4"}),
        (Case("mixture-tiny", 4, 16, set()), {"sequence", "experts 2", "experts 4"}),
    ],
)
def test_stages_of_every_manner_cost_what_the_simulator_says(case: Case, wanted: set[str], tmp_path: Path) -> None:
    """Not the best answers, but any; on nodes of two devices."""
    problem, _ = question(case, tmp_path)
    cluster = machine(case, f"{case.devices // 2}x2x{case.preset}")
    problem = Problem(
        problem.graph, cluster, case.batch, target="partita", fix=case.fix, memory_bytes=problem.memory_bytes
    )
    prices = Pricing(problem, alike(problem.graph))
    assert {manner.name for manner in prices.manners} == wanted
    met = set()
    for family, table, stages in answers(prices, 12, 60, depth=1):
        check(prices, (family, table, stages))
        met |= {family.options[m].run(family.shapes[stage.shape]).name for stage in stages for m in stage.options}
    assert met - {PLAIN.name, DIVIDED.name} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("target", ["deepspeed", "megatron"])
def test_other_frameworks_are_offered_nothing_that_they_cannot_run(target: str) -> None:
    whole = graph("mixture-tiny")
    problem = Problem(whole, parse_cluster("1x4xa100-80gb"), 8, target=target)
    prices = Pricing(problem, alike(whole))
    assert prices.manners == ()
    assert {shape.manner for family in prices.families for shape in family.shapes} == {PLAIN}


def test_contexts_are_offered_to_long_sequences(tmp_path: Path) -> None:
    for seq, wanted in ((manners.LONG, {2, 4, 8}), (manners.LONG - 1, set())):
        problem, _ = question(Case(LONG, 8, 1, set(), seq=seq), tmp_path)
        found = Pricing(problem, alike(problem.graph)).manners
        assert {manner.held("cp") for manner in found} - {1} == wanted


@pytest.mark.parametrize(
    ("model", "fix", "facts"),
    [
        ("gpt3-tiny", ["sp=2"], ['"sp=2"', "0 or 1"]),
        ("gpt3-tiny", ["cp=0"], ['"cp=0"', "at least 1"]),
        ("gpt3-tiny", ["sp=1", "tp=1"], ["sp=1", "tp=1", "tp=2"]),
        ("gpt3-tiny", ["ep=2"], ["ep=2", "no experts"]),
        ("gpt3-tiny", ["cp=4", "tp=4"], ["tp=4 · cp=4 needs 16 devices", "has 8"]),
        pytest.param("mixture-tiny", ["ep=3"], ["ep=3", "experts=4", "1, 2 and 4"], marks=pytest.mark.slow),
        pytest.param("mixture-tiny", ["ep=2", "tp=2"], ["ep=2", "tp"], marks=pytest.mark.slow),
        ("swin-tiny", ["cp=2"], ["cp=2", "no sequence"]),
    ],
)
def test_what_cannot_be_held_is_said(model: str, fix: list[str], facts: list[str]) -> None:
    whole = graph(model)
    cluster = parse_cluster("8xa100-80gb")
    with pytest.raises((InputError, PlanError)) as refused:
        check_fix(Problem(whole, cluster, 8, target="partita", fix=parse_fix(fix)), alike(whole))
    assert [fact for fact in facts if fact not in str(refused.value)] == []


def test_c11_a_sequence_that_two_axes_must_divide(tmp_path: Path) -> None:
    """The context's parts are divided over tp once more: cp · tp must divide the length, not lcm(cp, tp)."""
    model = {**LONG, "n_head": 4, "n_embd": 32}
    fix = {"cp": 2, "tp": 4, "sp": 1}
    problem, _ = question(Case(model, 8, 1, set(), fix, seq=4100), tmp_path)
    with pytest.raises(PlanError) as refused:
        check_fix(problem, alike(problem.graph))
    facts = ["cp=2", "tp=4", "sp=1", "4100 tokens", "remainder 4 of 8", "4096 and 4104"]
    assert [fact for fact in facts if fact not in str(refused.value)] == []
    for seq in (4096, 4104):
        problem, _ = question(Case(model, 8, 1, set(), fix, seq=seq), tmp_path)
        check_fix(problem, alike(problem.graph))


def test_c11_the_two_cuts_one_after_the_other(tmp_path: Path) -> None:
    """What is offered for a length is what can be cut twice."""
    model = {**LONG, "n_head": 4, "n_embd": 32, "n_layer": 1}
    for seq in range(1, 25):
        for cp in (2, 3):
            problem, _ = question(Case(model, 8, 1, set(), {"cp": cp}, seq=seq), tmp_path)
            found = {manner.name: manner for manner in Pricing(problem, alike(problem.graph)).manners}
            for tp, (name, sp) in product((2, 4), ((f"context {cp}", 0), (f"context {cp}, sequence", 1))):
                parts = seq / cp / (tp if sp else 1)
                assert found[name].fits(1, tp) == parts.is_integer(), (seq, cp, tp, name)


def test_devices_that_are_held_divide_the_counts_that_are_tried() -> None:
    problem = Problem(graph("gpt3-tiny"), parse_cluster("7xa100-80gb"), 8, target="partita", fix={"cp": 2})
    assert list(device_counts(problem)) == [6, 4, 2]


@pytest.mark.slow
def test_a_plan_whose_devices_divide_samples_is_simulated_on_a_graph_that_has_as_many() -> None:
    case = Case("mixture-tiny", 4, 8, set(), {"ep": 4, "pp": 1})
    problem = Problem(graph(case.model), parse_cluster("1x4xa100-80gb"), 8, target="partita", fix=case.fix)
    found = solve(problem)
    plan = ranked(found)
    assert (problem.graph.samples, plan.sample_parts) == (1, 4)
    assert plan.predicted.breakdown.formula == SIMULATED
    assert plan.predicted.step_seconds == pytest.approx(found.best.seconds, rel=1e-6)
