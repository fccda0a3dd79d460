"""Training with Megatron's layers and torch's optimizer, as plans for Megatron run, against training on one device."""

from __future__ import annotations

import pytest

from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout
from tests.runtime.training import train

LAYOUTS = {
    "tp2": Layout(tp=2),
    "pp2 tp2": Layout(pp=2, tp=2),
    "dp2 tp2": Layout(dp=2, tp=2),
    "pp2 tp2 recompute": Layout(pp=2, tp=2, recompute=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_training_is_that_of_one_device(pool: Pool, name: str, model: str, dtype: str, padded: bool) -> None:
    case = Case(model, LAYOUTS[name], dtype=dtype, engine="megatron", padded=padded)
    assert_equal(case, pool.run(train, case.layout.devices, case, timeout=120))
