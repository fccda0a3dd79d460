"""What no proof can see in plans of the library, because only values show it: verify does, and says where.

| fault | seen as |
|---|---|
| a literal argument of an op: a scale, an epsilon, a chance to drop | the op |
| replicas with different random state | the op, on the device that is apart |
| an op computed again with another mask | the op, and gradients of losses that are right |
| a gradient scaled in the runtime | a gradient, with its factor |

All other faults stand in ``tests/spacetime/test_library_mutants.py`` and are refused before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.execute import Context
from partita.adapters.verify import prove as proving
from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, recompute
from partita.drafted import library
from partita.plan import Recompute
from partita.problem import Problem
from partita.spacetime.lower import lower
from partita.spacetime.program import LocalOp, Program
from partita.spacetime.prove import prove
from tests.verify.models import model
from tests.verify.test_mutants import Mutate, of_kind, other_chance, other_epsilon, with_op

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow


def of_library(
    name: str, plan: str, devices: int, copies: int = 1, *, again: Recompute = "none", **numbers: int
) -> Program:  # fmt: skip
    """A plan of the library for a model; ``again``: what the backward pass of every block computes again."""
    graph = model(name).captured.graph
    micro_batches = numbers.setdefault("micro_batches", 2)
    batch = copies * micro_batches * graph.samples

    def function(draft: Draft) -> None:
        library()[plan](draft)
        recompute(draft, draft.blocks, again)

    problem = Problem(graph, parse_cluster("cpu", devices), batch, precision="fp64", target="partita")
    return lower(graph, drafted(function, plan, problem, numbers))


def other_scale(found: Program) -> tuple[Program, str]:
    """Attention whose products are scaled by another number."""
    attention = of_kind(found, "scaled_dot_product_attention", 1)
    attributes = attention.op.attributes | {"kwargs": {**attention.op.attributes.get("kwargs", {}), "scale": 0.3}}
    changed = replace(attention, op=replace(attention.op, attributes=attributes))
    return with_op(found, changed), f'op "{attention.op.name}"'


def other_scale_in_turns(found: Program) -> tuple[Program, str]:
    """The same where heads run in turns: what differs first is what is read behind them."""
    return other_scale(found)[0], 'op "addmm_5.bias"'


# Literal arguments: each in plans that the proof accepts.
LITERAL: list[tuple[str, Callable[[], Program], Mutate]] = [
    ("gpt2", lambda: of_library("gpt2", "sequence-parallel", 2), other_epsilon),
    ("gpt2", lambda: of_library("gpt2", "co-shard", 1), other_epsilon),
    ("gpt2", lambda: of_library("gpt2", "interleaved", 2), other_epsilon),
    ("gpt2", lambda: of_library("gpt2", "context-parallel", 2), other_scale),
    ("gpt2", lambda: of_library("gpt2", "co-shard", 1), other_scale_in_turns),
    ("gpt2", lambda: of_library("gpt2", "interlaced", 2), other_scale),
    ("gpt2 dropout", lambda: of_library("gpt2 dropout", "sequence-parallel", 2), other_chance),
    ("gpt2 dropout", lambda: of_library("gpt2 dropout", "zero-bubble", 2), other_chance),
    ("gpt2 dropout", lambda: of_library("gpt2 dropout", "interlaced", 2), other_chance),
]


@pytest.mark.parametrize(
    ("name", "made", "mutate"), [pytest.param(*row, id=f"{row[2].__name__} {i}") for i, row in enumerate(LITERAL)]
)
def test_a_literal_argument_of_a_plan_of_the_library(name: str, made: Callable[[], Program], mutate: Mutate) -> None:
    found = model(name)
    mutant, words = mutate(made())
    assert prove(found.captured.graph, mutant) is mutant
    difference = found.verify(mutant, steps=1).difference
    assert difference is not None
    assert words in str(difference)


def _draws(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Counter[object], LocalOp, Context], Context]) -> None:
    """Let every device draw what ``changed`` says instead of what belongs to the op and the sample."""
    right = proving.share_draws

    def share(program, graph, stages, drop):
        right(program, graph, stages, drop)
        for stage in stages.values():
            draw, seen = stage.context.draw, Counter()

            def wrong(local, tensors, context, draw=draw, seen=seen):
                return draw(local, tensors, changed(seen, local, context))

            stage.context = replace(stage.context, draw=wrong)

    monkeypatch.setattr(proving, "share_draws", share)


@pytest.mark.parametrize(
    ("plan", "devices", "again", "named"),
    [
        # The first op behind the turns of attention's heads.
        ("co-shard", 1, "full", 'op "addmm_1.bias"'),
        ("megatron", 2, "full", 'op "scaled_dot_product_attention"'),
        ("zero-bubble", 2, "full", 'op "scaled_dot_product_attention"'),
        # What was computed first is what is looked at.
        ("megatron", 2, "selective", 'the gradient of "'),
    ],
)
def test_an_op_computed_again_with_another_mask(
    plan: str, devices: int, again: Recompute, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes forward is right and so is the loss; what is computed again isn't, nor are the gradients."""

    def second(seen: Counter[object], local: LocalOp, context: Context) -> Context:
        key = (local.op.name, context.key, tuple(context.coordinates.items()))
        seen[key] += 1
        return replace(context, key=(context.key[0] + seen[key] - 1, *context.key[1:]))

    program = of_library("gpt2 dropout", plan, devices, again=again)
    assert model("gpt2 dropout").verify(program, steps=1).equal
    _draws(monkeypatch, second)
    verdict = model("gpt2 dropout").verify(program, steps=1)
    assert verdict.errors.loss < 1e-12
    assert verdict.errors.largest("gradient") > 1e-3
    assert named in str(verdict.difference)


@pytest.mark.parametrize("plan", ["megatron", "sequence-parallel", "interlaced"])
def test_replicas_with_different_random_state(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second device that has a value drops other elements of it."""

    def apart(seen: Counter[object], local: LocalOp, context: Context) -> Context:
        return replace(context, key=(context.key[0] + context.coordinates.get("tensor", 0), *context.key[1:]))

    program = of_library("gpt2 dropout", plan, 2)
    _draws(monkeypatch, apart)
    difference = model("gpt2 dropout").verify(program, steps=1).difference
    assert difference is not None
    assert 'op "dropout' in str(difference)
    assert difference.device == 1


@pytest.mark.parametrize(
    ("plan", "devices", "numbers"),
    [("data-parallel", 2, {}), ("zero-bubble", 4, {"pp": 2}), ("interleaved", 4, {"pp": 2})],
)
def test_a_gradient_scaled_in_the_runtime(
    plan: str, devices: int, numbers: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is a sum over two copies already is divided by two again."""
    right = TorchEngine.reduce

    def halved(engine: TorchEngine, stage: int) -> None:
        right(engine, stage)
        for parameter in engine.stages[stage].trained.values():
            if stage in engine.groups.data and parameter.grad is not None:
                parameter.grad /= 2

    monkeypatch.setattr(TorchEngine, "reduce", halved)
    verdict = model("gpt2").verify(of_library("gpt2", plan, devices, 2, **numbers), steps=1)
    assert verdict.difference is not None
    assert "the gradient of" in str(verdict.difference)
    assert verdict.difference.ratio == pytest.approx(0.5, rel=1e-9)
