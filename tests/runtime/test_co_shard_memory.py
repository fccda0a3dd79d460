"""Co-shard lowers the measured peak of a real step by about the number of shards, and changes no loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch.nn.attention import SDPBackend

from tests.ranks.pool import Pool

pytestmark = pytest.mark.slow
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


def peaks(seq: int) -> list[tuple[int, float]]:
    """The benchmark's own measurements, of a shorter sequence: peak and loss for 1, 2 and 4 shards."""
    sys.path.insert(0, BENCHMARKS)
    try:
        import co_shard_memory as bench
    finally:
        sys.path.remove(BENCHMARKS)
    bench.SEQ = seq
    captured = bench.capture_module(bench.gpt, bench.batch(), name="gpt2")
    return [bench.measured(captured, "co-shard", {"shards": shards}, SDPBackend.MATH) for shards in (1, 2, 4)]


def test_the_peak_falls_by_about_the_number_of_shards(pool: Pool) -> None:
    found: Any = pool.run(peaks, 1, 512)
    ((one, loss), (two, loss_of_two), (four, loss_of_four)) = found[0]
    # The matrices of one layer's 8 heads, of which autograd keeps more than one, make up nearly all of it.
    assert one > 2 * 8 * 512 * 512 * 4
    assert 1.8 < one / two < 2
    assert 3.2 < one / four < 4
    assert loss_of_two == pytest.approx(loss, rel=1e-6)
    assert loss_of_four == pytest.approx(loss, rel=1e-6)
