"""The sentences about parameters that several stages hold."""

from __future__ import annotations

import pytest

from partita.plan import SharedParameter
from partita.planner.reasons import tied

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
