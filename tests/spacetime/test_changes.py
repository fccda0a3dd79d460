"""Every change of one kind, at every place of a program: none may be accepted unless it changes nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import get_args

import pytest

from partita.errors import PlanError
from partita.spacetime.program import Form, LocalOp, Program, Shard, Task
from partita.spacetime.prove import prove
from tests.spacetime.programs import graph, lowered, ops_of, with_ops, with_pieces
from tests.spacetime.queues import stands_still

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

CASES = [
    ("gpt2", 2, 1, 2, 2),
    ("llama", 2, 2, 2, 2),
    ("t5", 3, 1, 2, 2),
    ("products", 2, 2, 2, 2),
    ("exported", 2, 1, 2, 2),
]


def _with(found: Program, device: int, *queue: Task) -> Program:
    return replace(found, queues={**found.queues, device: queue})


def _with_op(found: Program, odd: LocalOp, *new: LocalOp) -> Program:
    return with_ops(found, lambda op: list(new) if op is odd else [op])


def _with_shard(found: Program, name: str, shard: Shard | None) -> Program:
    return with_pieces(
        found, lambda p: replace(p, parameters={n: shard if n == name else s for n, s in p.parameters.items()})
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_task_left_out_or_doubled(case):
    found = lowered(*case)
    for device, queue in found.queues.items():
        for place in range(len(queue)):
            for part in (queue[place:place], queue[place : place + 1] * 2):
                with pytest.raises(PlanError, match=f"device {device}"):
                    prove(graph(case[0]), _with(found, device, *queue[:place], *part, *queue[place + 1 :]))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_op_left_out_or_of_another_form(case):
    found = lowered(*case)
    for odd in ops_of(found):
        with pytest.raises(PlanError):
            prove(graph(case[0]), _with_op(found, odd))
        for form in get_args(Form):
            # A column is a local op: the word says only that frameworks have a layer for it.
            if form == odd.form or ({form, odd.form} == {"column", "local"} and odd.op.kind in ("linear", "addmm")):
                continue
            with pytest.raises(PlanError):
                prove(graph(case[0]), _with_op(found, odd, replace(odd, form=form)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_parameter_laid_out_otherwise(case):
    found = lowered(*case)
    for name, tensor in graph(case[0]).tensor.items():
        if tensor.role != "parameter":
            continue
        shard = next(p.parameters[name] for p in found.pieces if name in p.parameters)
        others: list[Shard | None] = [None]
        for dim, size in enumerate(tensor.shape):
            others += [Shard(dim, parts, 2, size, -(-size // (2 * parts)) * 2 * parts) for parts in (1, 2, 3)]
        for other in others:
            if other == shard:
                continue
            changed = _with_shard(found, name, other)
            with pytest.raises(PlanError):
                prove(graph(case[0]), changed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_two_neighbours_of_a_queue_swapped(case):
    """Some swaps are harmless. Those that are accepted come to their end."""
    found, random, accepted = lowered(*case), Random(3), 0
    for device, queue in found.queues.items():
        for place in range(len(queue) - 1):
            changed = _with(found, device, *queue[:place], queue[place + 1], queue[place], *queue[place + 2 :])
            try:
                prove(graph(case[0]), changed)
            except PlanError:
                continue
            accepted += 1
            assert stands_still(changed, random) is None
    assert accepted
