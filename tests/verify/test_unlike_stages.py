"""Stages of unlike data and tensor parallelism and micro-batches, on virtual devices beside one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from partita.adapters.verify.planned import verify_plan
from partita.adapters.verify.prove import Verdict, verify_program
from partita.adapters.verify.queues import run_queues
from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import plan_function
from partita.errors import PlanError
from partita.graph import Graph, check
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.spacetime.alike import aligned, require_alike
from partita.spacetime.program import Program
from tests.runtime.models import MODELS
from tests.spacetime.unlike import CASES, Case, Part, lowered, plan
from tests.verify.models import captured_at, example_of, with_captures

# Thorough: the fast suite has the proofs of the same programs.
pytestmark = pytest.mark.slow

FAST = {"dp2 to tp2", "2 to 3 of 6", "skip"}


def _graph(case: Case, samples: int) -> Graph:
    return captured_at(case.model, samples).graph


def _verified(case: Case, program: Program | None = None) -> Verdict:
    found = program or lowered(lambda samples: _graph(case, samples), case)
    return verify_program(with_captures(case.model, found), MODELS[case.model].build, example_of(case.model))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES])
def test_a_program_of_unlike_stages_is_one_device(name: str) -> None:
    verdict = _verified(CASES[name])
    assert verdict.equal, verdict.difference
    assert len(set(verdict.losses)) == verdict.steps == 3
    assert verdict.devices == CASES[name].devices


@pytest.mark.parametrize("name", ["three stages", "2 to 3 of 6"])
def test_the_queues_alone_come_to_an_end(name: str) -> None:
    run_queues(lowered(lambda samples: _graph(CASES[name], samples), CASES[name]))


@pytest.mark.slow
def test_by_a_plan_alone() -> None:
    """The model is captured at the samples of each stage. A value that only values show to be wrong is found in the
    stage that has it, with the samples of its turns."""
    case = CASES["half the micro-batches"]
    found = plan(lambda samples: _graph(case, samples), case)
    verdict = verify_plan(found, MODELS[case.model].build, example_of(case.model), case.model)
    assert verdict.equal, verdict.difference

    program = lowered(lambda samples: _graph(case, samples), case)
    last = program.pieces[1]
    norms = [s for s in last.segments if any(o.op.kind == "layer_norm" for o in s.ops)]
    ops = tuple(
        replace(o, op=replace(o.op, attributes=o.op.attributes | {"args": [*o.op.attributes["args"][:4], 0.5]}))
        if o.op.kind == "layer_norm"
        else o
        for o in norms[0].ops
    )
    segments = tuple(replace(s, ops=ops) if s is norms[0] else s for s in last.segments)
    other = _verified(case, replace(program, pieces=(program.pieces[0], replace(last, segments=segments))))
    assert other.difference is not None
    assert other.difference.op == next(o.op.name for o in norms[0].ops if o.op.kind == "layer_norm")
    assert (other.difference.device, other.difference.micro_batch) == (1, 0)


def test_captures_of_one_sample_and_of_two_fit_together() -> None:
    kind = MODELS["narrowing"]
    one, two = (
        capture_module(kind.build, kind.batch(n, torch.Generator(), False), name="narrowing").graph for n in (1, 2)
    )
    names = [[op.name for op in graph.ops] for graph in (one, two)]
    assert names[0] != names[1]
    assert len(names[0]) < len(names[1])
    found = aligned(one, two)
    require_alike([two, found])
    check(found)
    assert [(op.kind, op.block) for op in found.ops] == [(op.kind, op.block) for op in one.ops]
    with pytest.raises(PlanError, match="captured as other models: what is handed on from block"):
        require_alike([two, one])


@pytest.mark.slow
def test_the_example_of_the_documentation() -> None:
    """A tied table that neither stage cuts, copies of it on one side and wider ones on the other."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "wide_end.py"
    name = f"{example}:wide_end"
    problem = Problem(captured_at("gpt2", 2).graph, parse_cluster("cpu", 4), 16, precision="fp64", target="partita")
    found = drafted(plan_function(name), name, problem, {"first": 4, "last": 2})
    assert [(stage.dp, stage.tp, stage.samples) for stage in found.stages] == [(2, 1, 4), (1, 2, 8)]
    verdict = verify_plan(found, MODELS["gpt2"].build, example_of("gpt2"), name)
    assert verdict.equal, verdict.difference


@pytest.mark.slow
def test_random_programs_are_one_device() -> None:
    """Copies, pieces, micro-batches, ZeRO and orders by chance; what is refused divides a shared parameter's state."""
    random, equal, refused = Random(5), 0, 0
    while equal < 24:
        model, batch = random.choice(["narrowing", "skip", "gpt2 untied", "gpt2", "gpt2 frozen middle"]), 12
        parts = tuple(
            Part(
                dp,
                random.choice([1, 2]) if "gpt2" in model else 1,
                random.choice([c for c in (1, 2, 3) if 12 // dp % c == 0]),
            )
            for dp in random.choices([1, 2, 3], k=random.randint(2, 3))
        )
        whole = ("vocabulary",) if model == "gpt2" else ()
        case = Case(parts, batch, model, random.choice(["1f1b", "gpipe"]), zero=random.randint(0, 3), whole=whole)
        # The first and the last stage share the table, which neither may divide otherwise than the other.
        if model == "gpt2" and case.zero > 1 and parts[0].dp != parts[-1].dp:
            with pytest.raises(PlanError, match=r'share "model.transformer.wte.weight" and would divide it'):
                _verified(case)
            refused += 1
            continue
        verdict = _verified(case)
        assert verdict.equal, f"{case}: {verdict.difference}"
        equal += 1
    assert refused < equal
