"""What of a stage's blocks is computed again, in a word or two."""

from __future__ import annotations

import pytest

from partita.cli.show import recompute
from partita.plan import BATCH_CUT, Recompute, Stage, Strategy


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ("none none", "no"),
        ("full full", "full"),
        ("selective selective", "selective"),
        ("full none none", "1 of 3"),
        ("none selective selective", "2 of 3 selective"),
        ("full full selective none", "2 of 4, 1 of 4 selective"),
    ],
)
def test_what_is_computed_again(blocks: str, said: str) -> None:
    kinds: list[Recompute] = blocks.split()  # type: ignore[assignment]
    names = tuple(str(number) for number in range(len(kinds)))
    strategies = tuple(Strategy((BATCH_CUT,), 0, what) for what in kinds)
    assert recompute(Stage("s", names, (0,), 1, 1, 1, 1, strategies)) == said
