"""The Evoformer recipe under plans of the library, on real ranks: its training is that of one device."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import Lowered, prepare
from partita.adapters.torch.weights import StateDict
from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import plan_function
from partita.errors import InputError, PartitaError
from partita.graph import Graph
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.recipes.alphafold2.alignments import Alignments
from partita.recipes.alphafold2.hooks import AlphaFold2 as Recipe
from partita.recipes.alphafold2.sizes import SIZES
from partita.recipes.compare import TOLERANCE
from partita.recipes.one_device import losses_on_one_device
from partita.recipes.recipe import Workload
from partita.spacetime.lower import lower
from partita.spacetime.program import Task
from tests.ranks.pool import Pool, RankError
from tests.recipes.ranks import losses_by_plan
from tests.runtime.library import Outcome, Row, assert_one_device, capture, evoformer, plan_of, train
from tests.runtime.models import micro_batches

pytestmark = pytest.mark.slow

TINY = "alphafold2-tiny"
APART = Path(__file__).parents[2] / "docs" / "examples" / "passes_apart.py"
# 3F1B on two ranks is among the plans of the library.
ROWS = {
    "tp2": Row("megatron", 2, "evoformer", micro_batches=1),
    "pp2": Row("1f1b", 2, "evoformer"),
    "3F1B dp2": Row("3f1b", 4, "evoformer", numbers={"pp": 2}, copies=2),
    "passes apart, kFkB": Row(f"{APART}:passes_apart", 4, "evoformer", numbers={"k": 2}),
    "DAP2 dp2": Row("context-parallel", 4, "evoformer", numbers={"cp": 2}, copies=2, micro_batches=1),
}
# The stages that each rank serves, where it isn't the first alone: in 3F1B one of each pass.
STAGES = {
    "pp2": [(0,), (1,)], "3F1B dp2": [(0, 2, 4), (0, 2, 4), (1, 3, 5), (1, 3, 5)],
    "passes apart, kFkB": [(0,), (1,), (2,), (3,)],
}  # fmt: skip
AXES = {"tp2": ("tensor",), "DAP2 dp2": ("context",)}


@pytest.mark.parametrize("name", ROWS)
def test_equal_to_one_device(pool: Pool, name: str) -> None:
    """In float64: losses to 1e-13 of themselves, gradients of three steps and the weights after them to 1e-10."""
    row = ROWS[name]
    outcomes: list[Outcome] = pool.run(train, row.devices, row, timeout=240)
    assert_one_device(outcomes)
    assert [outcome.stages for outcome in outcomes] == STAGES.get(name, [(0,)] * row.devices)
    assert outcomes[0].axes == AXES.get(name, ())


def refusals() -> list[str]:
    """Three steps under 3F1B, the second with proteins of 6 residues: the losses, or what this rank is told."""
    plan = plan_of(Row("3f1b", 2, "evoformer"))
    lowered = Lowered(capture("evoformer"), lower(capture("evoformer").graph, plan))
    torch.manual_seed(0)
    model = evoformer().double()
    dense = torch.optim.Adam(model.parameters(), lr=1e-2)
    prepared = prepare(lowered, weights=StateDict(model.state_dict(), lowered.captured.graph.aliases))
    stages = prepared.stages
    engine = TorchEngine(stages, prepared.groups, optimizers(stages, lambda p: torch.optim.Adam(p.values(), lr=1e-2)))
    share, said = lowered.program.share(prepared.groups.rank), []
    for step, residues in enumerate((8, 6, 8)):
        batch = Alignments(replace(SIZES[TINY], residues=residues), 0).batch(step, plan.global_batch)
        try:
            found = prepared.runtime.step(micro_batches(batch, share, 0), engine)
        except InputError as error:
            said.append(str(error))
            continue
        loss = model(**batch).loss
        loss.backward()
        dense.step()
        dense.zero_grad()
        said.append("equal" if abs(found - loss.item()) <= 1e-13 * loss.item() else f"{found} is not {loss.item()}")
    return said


def test_a_batch_of_other_proteins_is_refused_and_the_next_one_trains(pool: Pool) -> None:
    told = 'rank 0: micro-batch 0: "letters" has shape [1, 4, 6], the plan was lowered for [1, 4, 8]'
    assert pool.run(refusals, 2, timeout=240) == [["equal", told, "equal"]] * 2


# A plan, its numbers, devices, samples; what is said of it.
MISTAKES = {
    "devices": ("3f1b", {"pp": 2}, 3, 12, "3 devices can't be divided into 2 equal parts; 1 and 3 parts work"),
    "depth": (
        "3f1b", {}, 8, 16,
        '"alphafold2-tiny" can\'t be divided into 8 parts a pass: '
        "over 3 passes it shares the parameters of 5 blocks, so 1 to 5 parts work",
    ),
    "passes": (
        "3f1b", {"passes": 2}, 2, 8,
        '"alphafold2-tiny" can\'t be divided into 2 parts a pass: '
        "over 2 passes it shares the parameters of 1 block, so only 1 part works; over 3 passes it shares 5",
    ),
    "no such passes": (
        "3f1b", {"passes": 4}, 2, 8,
        'no blocks of "alphafold2-tiny" share parameters over 4 passes; over 2 and 3 some do',
    ),
    "batch": (
        "3f1b", {"pp": 2}, 4, 6,
        "global batch 6 can't be divided into 4 micro-batches of 2 data-parallel copies; 1 and 3 micro-batches work",
    ),
    "an axis of three": ("context-parallel", {"cp": 3}, 4, 4, "cp=3 doesn't divide 4 devices; 1, 2 and 4 would"),
    "residues": (
        "context-parallel", {"micro_batches": 3}, 3, 3,
        'block "embedding" has no sequence that context=3 could cut: it has sizes of 4 and 8, which 1, 2 and 4 would '
        "divide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_the_users_numbers(name: str) -> None:
    function, numbers, devices, batch, told = MISTAKES[name]
    graph = tiny_graph()
    problem = Problem(graph, parse_cluster("cpu", devices), batch, precision="fp32", target="partita")
    with pytest.raises(PartitaError) as raised:
        lower(graph, drafted(plan_function(function), function, problem, numbers))
    assert str(raised.value) == told


@cache
def tiny_graph() -> Graph:
    return load_model(TINY, None, "float32")


RECIPE = {"steps": 2, "batch": 4, "rate": 1e-3, "seed": 0}


def workload() -> Workload:
    """The recipe's, with two blocks a pass."""
    return Recipe().workload(TINY, seq=None, dtype=torch.float32, seed=0, files={})._replace(model=evoformer)


def test_what_run_does_with_3f1b(pool: Pool) -> None:
    """The recipes' own loop in float32, with the plan of `partita run … --plan-function 3f1b --compare`."""
    graph = capture_module(evoformer, workload().example(1), name="evoformer", dtype=torch.float32).graph
    problem = Problem(graph, parse_cluster("cpu", 2), RECIPE["batch"], precision="fp32", target="partita")
    plan = drafted(plan_function("3f1b"), "3f1b", problem, {})
    everyones = pool.run(losses_by_plan, 2, plan, workload, *RECIPE.values(), timeout=240)
    one_device = losses_on_one_device(workload(), steps=2, global_batch=4, learning_rate=1e-3, seed=0)
    assert everyones[0] == everyones[1] == pytest.approx(one_device, abs=TOLERANCE)


def killed() -> None:
    """Rank 1 is killed in the middle of the second step of 3F1B."""
    plan = plan_of(Row("3f1b", 2, "evoformer"))
    prepared = prepare(Lowered(capture("evoformer"), lower(capture("evoformer").graph, plan)))
    runtime, stages = prepared.runtime, prepared.stages
    engine = TorchEngine(stages, prepared.groups, optimizers(stages, lambda p: torch.optim.SGD(p.values(), lr=0.1)))

    def observe(task: Task) -> None:
        if runtime.steps and prepared.groups.rank and (task.kind, task.micro) == ("backward", 1):
            os.kill(os.getpid(), signal.SIGKILL)

    runtime.observe = observe
    for step in range(2):
        batch = Alignments(SIZES[TINY], 0).batch(step, plan.global_batch)
        runtime.step(micro_batches(batch, prepared.lowered.program.share(prepared.groups.rank), 0), engine)


def test_a_killed_rank_leaves_nobody_waiting(pool: Pool) -> None:
    """The other one, which receives gradients from it, is told at once by its connection."""
    with pytest.raises(RankError) as raised:
        pool.run(killed, 2, timeout=240)
    assert "rank 1 of 2: died with exit code -9" in str(raised.value)
    assert "rank 0 of 2: Traceback" in str(raised.value)
