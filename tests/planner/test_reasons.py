"""The sentences about parameters that several stages hold, and about too few micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.plan import SharedParameter
from partita.planner.reasons import few_micro_batches, tied
from tests.towers import plan, towers

GIB = 2**30
TABLE = SharedParameter("wte.weight", 0, (0, 3), 3 * GIB)
SAID = '"wte.weight" is tied: stage 0 owns it, stages 0 and 3 hold it; 3.00 GiB of gradient are summed a step.'


def layer(name: str, stages: tuple[int, ...], size: int = GIB) -> SharedParameter:
    return SharedParameter(name, stages[0], stages, size)


# What is shared, what is said of it.
CASES = {
    "nothing": ([], []),
    "one": ([TABLE], [SAID]),
    "within a stage": ([layer("a", (1,), 0)], []),
    "two of the same stages": (
        [layer("a", (0, 2)), layer("b", (0, 2))],
        ['"a" and 1 other parameter are tied: stage 0 owns them, stages 0 and 2 hold them; 2.00 GiB of gradient are '
         "summed a step."],
    ),
    "of other stages": (
        [layer("a", (0, 2, 4)), TABLE, layer("b", (1, 3), 5), layer("c", (0, 2, 4)), layer("d", (2,)),
         layer("e", (0, 2, 4), GIB // 2)],
        ['"a" and 2 other parameters are tied: stage 0 owns them, stages 0, 2 and 4 hold them; 2.50 GiB of gradient '
         "are summed a step.",
         SAID,
         '"b" is tied: stage 1 owns it, stages 1 and 3 hold it; 5 bytes of gradient are summed a step.'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_sentence_for_all_parameters_of_the_same_stages(name: str) -> None:
    shared, said = CASES[name]
    assert list(tied(shared)) == said


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "said"),
    [
        ("1f1b", 4, ""), ("1f1b", 3, "(3) for 4 stages leave the devices idle for 27%"),
        ("kfkb", 3, ""), ("kfkb", 2, "(2) for the 3 stages of the longest path leave the devices idle for 27%"),
    ],
)  # fmt: skip
def test_of_stages_side_by_side_the_longest_path_counts(schedule: str, micro_batches: int, said: str) -> None:
    """Four stages, of which a path leads through three."""
    graph, made = towers(), plan(towers(), schedule)
    order, prediction = replace(made.order, micro_batches=micro_batches), replace(made.predicted, bubble_fraction=0.27)
    found = list(few_micro_batches(graph, replace(made, order=order, predicted=prediction)))
    enough = {"1f1b": 4, "kfkb": 3}[schedule]
    wanted = f"Warning: too few micro-batches {said} of the pipeline's time; {enough} or more micro-batches waste less."
    assert found == ([wanted] if said else [])


def test_kfkb_of_a_chain_counts_its_stages() -> None:
    chain = plan(towers(), stages=(("right0",), ("left", "right1"), ("head",)), micro_batches=2)
    (found,) = few_micro_batches(towers(), chain)
    assert found.startswith("Warning: too few micro-batches (2) for 3 stages leave")
