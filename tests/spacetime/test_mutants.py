"""Valid programs are accepted; each with one thing broken is refused with that thing named."""

from __future__ import annotations

import pytest

from partita.errors import PlanError
from partita.spacetime.prove import prove
from tests.spacetime.mutants_of_pieces import PIECES
from tests.spacetime.mutants_of_queues import QUEUES
from tests.spacetime.programs import graph, lowered

MUTANTS = PIECES | QUEUES
# (model, pp, dp, tp, micro-batches, schedule)
PROGRAMS = [
    ("gpt2", 2, 1, 2, 3, "1f1b"), ("gpt2", 1, 1, 2, 2, "gpipe"), ("gpt2", 4, 2, 1, 5, "1f1b"),
    ("llama", 2, 2, 2, 2, "gpipe"), ("llama", 1, 1, 2, 3, "gpipe"), ("llama", 3, 1, 2, 4, "1f1b"),
    ("t5", 3, 1, 2, 3, "gpipe"), ("t5", 2, 1, 1, 2, "1f1b"), ("vit", 3, 2, 1, 3, "1f1b"), ("swin", 2, 1, 1, 2, "gpipe"),
    ("products", 2, 1, 2, 3, "gpipe"), ("products", 1, 2, 2, 2, "gpipe"), ("products", 1, 1, 4, 1, "1f1b"),
    ("exported", 2, 1, 2, 3, "1f1b"), ("exported", 1, 1, 2, 2, "gpipe"), ("exported", 2, 2, 1, 2, "1f1b"),
    ("exported", 3, 1, 4, 2, "gpipe"),
]  # fmt: skip


@pytest.mark.parametrize("case", PROGRAMS, ids=str)
def test_what_lowering_makes_is_valid(case):
    found = lowered(*case)
    assert prove(graph(case[0]), found) is found


@pytest.mark.parametrize("kind", MUTANTS)
def test_a_mutant_is_refused_and_named(kind):
    broken = 0
    for case in PROGRAMS:
        mutant = MUTANTS[kind](graph(case[0]), lowered(*case))
        if mutant is None:
            continue
        model, program, words = mutant
        broken += 1
        with pytest.raises(PlanError) as error:
            prove(model, program)
        for word in words:
            assert any(one in str(error.value) for one in word.split("|")), (
                f"{case}: {word!r} is not said by: {error.value}"
            )
    assert broken >= 3
