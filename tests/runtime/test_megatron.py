"""Training with Megatron's layers and torch's optimizer, as plans for Megatron run, against training on one device."""

from __future__ import annotations

import pytest

from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout
from tests.runtime.training import train

LAYOUTS = {
    "tp2": Layout(tp=2, schedule="gpipe"),
    "pp2 tp2": Layout(pp=2, tp=2),
    "dp2 tp2": Layout(dp=2, tp=2, schedule="gpipe"),
    "pp2 tp2 recompute": Layout(pp=2, tp=2, micro_batches=3, recompute="full"),
}
TABLE = [
    *((name, "float64", True, "gpt2") for name in LAYOUTS),
    *(("pp2 tp2", dtype, padded, "gpt2") for dtype, padded in (("float32", True), ("float64", False))),
    # Recomputed, in stages: what Llama's layers are made of is asked of test_megatron_layers.
    ("pp2 tp2 recompute", "float64", True, "llama"),
    ("pp2 tp2", "float64", False, "llama"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "padded", "model"), TABLE)
def test_training_is_that_of_one_device(pool: Pool, name: str, dtype: str, padded: bool, model: str) -> None:
    case = Case(model, LAYOUTS[name], dtype=dtype, engine="megatron", padded=padded)
    assert_equal(case, pool.run(train, case.layout.devices, case, timeout=120))
