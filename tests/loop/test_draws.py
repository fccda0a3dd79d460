"""Random draws depend on the call and on nothing else: not on a rank's own seed, nor on who looked in between."""

from __future__ import annotations

import pytest

from tests.loop.draws import again, gradient_of_an_input, losses
from tests.ranks.pool import Pool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fix", [{"pp": 2}, {"dp": 2}, {"dp": 2, "zero": 0, "micro_batches": 2}], ids=str)
def test_ranks_agree_whatever_their_seeds(pool: Pool, fix: dict[str, int]) -> None:
    first, second = pool.run(losses, 2, fix, timeout=120)
    assert first["calls"] == second["calls"]
    # Each call drops otherwise.
    assert len(set(first["calls"])) == 4
    # The buffer is rank 0's on both.
    assert first["evaluation"] == second["evaluation"]
    # A module that is in evaluation doesn't drop, in a model that trains.
    evaluated = first["submodules in evaluation"]
    assert evaluated == pytest.approx([first["evaluation"]] * 2, rel=1e-6)


def test_looking_changes_no_draw(pool: Pool) -> None:
    assert pool.run(again, 2, False, timeout=120) == pool.run(again, 2, True, timeout=120)


def test_an_input_gets_no_gradient_in_silence(pool: Pool) -> None:
    told = pool.run(gradient_of_an_input, 2, timeout=120)
    assert told[0] == told[1]
    assert told[0].startswith("InputError: Small was called with x, which wants a gradient")
