"""Programs with one thing wrong that only values can show, and some that proofs refuse: verify sees each, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from partita.adapters.torch.prepare import Lowered
from partita.adapters.verify.prove import verify_program
from partita.errors import ModelError, PlanError
from partita.spacetime.program import LocalOp, Program
from partita.spacetime.prove import prove
from tests.runtime.models import Skip
from tests.runtime.programs import Layout
from tests.runtime.programs import program as by_hand
from tests.spacetime.programs import with_ops, with_pieces, with_tasks
from tests.verify.models import model

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow


def of_kind(found: Program, kind: str, number: int = -1) -> LocalOp:
    """An op of a program, the last of its kind if nothing else is said."""
    return [o for piece in found.pieces for s in piece.segments for o in s.ops if o.op.kind == kind][number]


def with_op(found: Program, changed: LocalOp) -> Program:
    return with_ops(found, lambda local: [changed if local.op.name == changed.op.name else local])


def with_argument(local: LocalOp, place: int, value: object) -> LocalOp:
    args = list(local.op.attributes["args"])
    args += [None] * (place + 1 - len(args))
    args[place] = value
    return replace(local, op=replace(local.op, attributes=local.op.attributes | {"args": args}))


def other_epsilon(found: Program) -> tuple[Program, str]:
    """A normalisation with another literal argument."""
    norm = of_kind(found, "layer_norm", 3)
    return with_op(found, with_argument(norm, 4, 1e-3)), f'op "{norm.op.name}"'


def other_mask(found: Program) -> tuple[Program, str]:
    """A dropout whose elements are drawn under another name."""
    drop = of_kind(found, "dropout", 2)
    changed = replace(drop, op=replace(drop.op, name=f"{drop.op.name}_again"))
    return with_ops(found, lambda o: [changed if o is drop else o]), f'op "{drop.op.name}_again"'


def other_chance(found: Program) -> tuple[Program, str]:
    """A dropout that drops more."""
    drop = of_kind(found, "dropout", 1)
    return with_op(found, with_argument(drop, 1, 0.3)), f'op "{drop.op.name}"'


def missing_sum(found: Program) -> tuple[Program, str]:
    """A linear layer whose partial products are never added up."""
    row = next(o for piece in found.pieces for s in piece.segments for o in s.ops if o.form == "row")
    return with_op(found, replace(row, form="column")), f'op "{row.op.name}"'


def wrong_offset(found: Program) -> tuple[Program, str]:
    """Query, key and value in one weight, of which a device takes the next rows instead of its part of each."""

    def changed(piece):
        shards = {
            name: replace(shard, parts=1) if shard and shard.parts == 3 and shard.dim == 1 else shard
            for name, shard in piece.parameters.items()
        }
        return replace(piece, parameters=shards)

    return with_pieces(found, changed), 'op "addmm"'


def gradients_not_averaged(found: Program) -> tuple[Program, str]:
    """Copies that train apart."""
    return with_tasks(found, lambda _, task: [] if task.kind == "reduce" else [task]), "the gradient of"


def lost_gradient(found: Program) -> tuple[Program, str]:
    """The last stage's loss weighs nothing where it should be the mean over all copies: twice too much with two."""
    assert found.loss is not None
    return replace(found, loss=replace(found.loss, weighting="sum")), "times what it should be"


Mutate = Callable[[Program], tuple[Program, str]]
TABLE: list[tuple[str, Layout, Mutate]] = [
    ("gpt2", Layout(dp=2), other_epsilon),
    ("gpt2", Layout(pp=2, tp=2), other_epsilon),
    ("gpt2 dropout", Layout(pp=2), other_mask),
    ("gpt2 dropout", Layout(tp=2), other_mask),
    ("gpt2 dropout", Layout(dp=2), other_chance),
    ("gpt2", Layout(tp=2), missing_sum),
    ("gpt2", Layout(pp=2, tp=2), missing_sum),
    ("gpt2", Layout(tp=2), wrong_offset),
    ("gpt2", Layout(dp=2), gradients_not_averaged),
    ("gpt2", Layout(pp=2, dp=2), gradients_not_averaged),
    ("skip", Layout(pp=2, dp=2), lost_gradient),
]


@pytest.mark.parametrize(
    ("name", "layout", "mutate"),
    [pytest.param(*row, id=f"{row[0]} {row[2].__name__} {i}") for i, row in enumerate(TABLE)],
)
def test_a_mutant_is_not_equal_and_named(name: str, layout: Layout, mutate: Mutate) -> None:
    found = model(name)
    mutant, words = mutate(by_hand(found.captured.graph, layout))
    verdict = found.verify(mutant)
    assert not verdict.equal
    assert words in str(verdict.difference)
    assert verdict.difference is not None
    assert verdict.difference.error > 1e-10


def test_what_only_values_can_show_is_accepted_by_proofs() -> None:
    """Which is why there is verify: these mutants are valid programs."""
    for name, mutate in (("gpt2", other_epsilon), ("gpt2 dropout", other_chance)):
        graph = model(name).captured.graph
        mutant, _ = mutate(by_hand(graph, Layout(tp=2)))
        assert prove(graph, mutant) is mutant
    graph = model("gpt2").captured.graph
    with pytest.raises(PlanError):
        prove(graph, missing_sum(by_hand(graph, Layout(tp=2)))[0])


class Doubled(Skip):
    """Another model than the one that was captured."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_graph_that_is_not_the_model_is_said_to_be_so() -> None:
    found = model("skip")
    program = by_hand(found.captured.graph, Layout(pp=2))
    with pytest.raises(ModelError, match='the captured graph of "skip" is not the model: on one device, '):
        verify_program(Lowered(found.captured, program), Doubled, found.example)


def test_the_first_difference_says_device_and_slice() -> None:
    """Of a linear layer without its sum each device has its own: the first is named, with what it has of the value."""
    found = model("gpt2")
    mutant, _ = missing_sum(by_hand(found.captured.graph, Layout(tp=2)))
    first = found.verify(mutant).difference
    assert first is not None
    assert (first.what, first.device, first.step, first.micro_batch) == ("value", 0, 0, 0)
    assert first.place == "[0, 32) × [0, 32)"


def test_a_factor_is_given() -> None:
    """Two copies and two micro-batches, each loss counted whole instead of a quarter."""
    found = model("skip")
    mutant, _ = lost_gradient(by_hand(found.captured.graph, Layout(pp=2, dp=2)))
    verdict = found.verify(mutant)
    assert verdict.difference is not None
    assert verdict.difference.ratio == pytest.approx(4.0, rel=1e-9)
    assert verdict.errors.loss == pytest.approx(3 * max(verdict.losses), rel=1e-9)
