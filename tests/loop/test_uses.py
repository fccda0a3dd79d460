"""Any module, its data, saving, and resuming to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loop.play import PLANS, Case
from tests.loop.uses import built_divided, loader, names_and_bits, plain_module, resumed, saved
from tests.ranks.pool import Pool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        ("dp2", "training_data"), ("zero3", "example_inputs"), ("pp2", "example_inputs"), ("pp2 dp2", "training_data"),
    ],
)  # fmt: skip
def test_a_module_of_ones_own(pool: Pool, plan: str, kind: str) -> None:
    outcomes = pool.run(plain_module, PLANS[plan][0], plan, kind, timeout=120)
    for losses, wanted, _ in outcomes:
        assert losses == pytest.approx(wanted, rel=1e-6)
    far = outcomes[0][2]
    assert {"first.weight", "middle.bias", "last.weight", "shift"} < set(far)
    assert {name: error for name, error in far.items() if error > 1e-5} == {}


def test_a_model_that_was_built_divided(pool: Pool) -> None:
    for losses, wanted in pool.run(built_divided, 2, timeout=120):
        assert losses == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("plan", ["zero2", "pp2", "pp2 dp2"])
def test_the_loader_divides_the_data_over_all_ranks(pool: Pool, plan: str) -> None:
    ranks = PLANS[plan][0]
    everyones = pool.run(loader, ranks, plan, timeout=120)
    assert {len(batch) for batches in everyones for batch in batches} == {4}
    taken = sorted(row for batches in everyones for batch in batches for row in batch)
    assert taken == list(range(16))


# Stages in copies with ZeRO-1, whose part of each copy is saved too, and pieces in stages have what these have alone.
@pytest.mark.parametrize("plan", ["dp2", "zero2", "zero3", "pp2 dp2 zero1", "pp2 tp2"])
def test_a_run_is_resumed_to_the_bit(pool: Pool, tmp_path: Path, plan: str) -> None:
    case = Case("", plan)
    for whole, continued, unloaded in pool.run(resumed, case.ranks, case, str(tmp_path), timeout=120):
        assert continued == whole
        assert unloaded != whole[0]


@pytest.mark.parametrize("plan", ["dp2", "zero3", "pp2", "tp2", "pp2 tp2"])
def test_the_dense_model_is_saved(pool: Pool, tmp_path: Path, plan: str) -> None:
    pool.run(saved, PLANS[plan][0], plan, str(tmp_path), timeout=120)
    assert names_and_bits(str(tmp_path)) == {"dense": [], "one": [], "pretrained": []}
