"""Plans of the library on real ranks: losses, every gradient and the weights after three steps are one device's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.ranks.pool import Pool
from tests.runtime.library import Outcome, Row, assert_one_device, train

ROWS = {
    "interleaved": Row("interleaved", 2, numbers={"chunks": 2}),
    "interleaved, copies": Row("interleaved", 4, numbers={"pp": 2, "chunks": 2}, copies=2, micro_batches=2),
    "interleaved, pieces": Row("interleaved", 4, "llama", numbers={"pp": 2, "tp": 2, "chunks": 2}, micro_batches=2),
    "breadth-first, copies": Row("breadth-first", 4, numbers={"pp": 2, "chunks": 2}, copies=2, micro_batches=2),
    "1f1b, more ahead": Row("1f1b", 4, numbers={"pp": 2, "depth": 1}, copies=2),
    "zero-bubble": Row("zero-bubble", 2),
    "zero-bubble, pieces": Row("zero-bubble", 4, numbers={"pp": 2, "tp": 2}),
    "zero-bubble, encoder and decoder": Row("zero-bubble", 2, "t5"),
    "co-shard": Row("co-shard", 1, micro_batches=2),
    "co-shard in stages": Row("co-shard", 2, numbers={"pp": 2, "shards": 4}, micro_batches=2),
    "interlaced": Row("interlaced", 2),
    "interlaced over four": Row("interlaced", 4, "llama"),
    "interlaced, copies": Row("interlaced", 4, numbers={"pp": 2}, copies=2, micro_batches=2),
    "3f1b": Row("3f1b", 2, "evoformer"),
    "sequence-parallel": Row("sequence-parallel", 2, "llama", micro_batches=2),
    "context-parallel": Row("context-parallel", 2, micro_batches=2),
    "expert-parallel": Row("expert-parallel", 2, "mixture", micro_batches=2),
}
# Besides one stage a device, nothing but forward and backward turns, and no axis but data and tensor.
STAGES = {"interleaved": 2, "breadth-first": 2, "interlaced": 3, "3f1b": 3}
AXES = {"sequence-parallel": ("tensor",), "context-parallel": ("context",), "expert-parallel": ("expert",)}
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "my_plan.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_training_is_that_of_one_device(pool: Pool, name: str) -> None:
    row = ROWS[name]
    outcomes = _equal_to_one_device(pool, row)
    _is_the_plan_it_says(row, outcomes)


@pytest.mark.slow
def test_a_plan_of_ones_own(pool: Pool) -> None:
    """The example of the documentation."""
    outcomes = _equal_to_one_device(pool, Row(f"{EXAMPLE}:light_start", 2, numbers={"first": 1}))
    assert [outcome.stages for outcome in outcomes] == [(0,), (1,)]
    assert outcomes[0].recomputed == [2, 0]


def _equal_to_one_device(pool: Pool, row: Row) -> list[Outcome]:
    outcomes: list[Outcome] = pool.run(train, row.devices, row)
    assert_one_device(outcomes)
    return outcomes


def _is_the_plan_it_says(row: Row, outcomes: list[Outcome]) -> None:
    """Equal by being another plan would be no success."""
    for outcome in outcomes:
        assert len(outcome.stages) == STAGES.get(row.plan, 1)
        turns = Counter((task.kind, task.stage) for task in outcome.queue)
        trained = [stage for stage in outcome.stages if turns["backward", stage]]
        assert len(trained) == (1 if row.plan == "3f1b" else len(outcome.stages))
        for stage in outcome.stages:
            assert turns["forward", stage] == row.micro_batches
            weight = row.micro_batches if row.plan == "zero-bubble" else 0
            assert turns["weight", stage] == weight
    assert bool(outcomes[0].turns) == (row.plan == "co-shard")
    assert outcomes[0].axes == AXES.get(row.plan, outcomes[0].axes)
