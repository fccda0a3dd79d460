"""accelerate's own loop: accumulate, backward, clipping, schedules, gathering, saving; with the key and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.ranks.pool import Pool
from tests.trainer.accelerated import Loop, Seen, accelerated
from tests.trainer.compare import distance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# With the key, and what the same script does without.
LOOPS = {
    "dp2": (Loop({"fix": {"dp": 2}}), Loop()),
    "pp2": (Loop({"fix": {"pp": 2}}), Loop()),
    "tp2": (Loop({"fix": {"tp": 2}}), Loop()),
    "pp2, no stage": (Loop({"fix": {"pp": 2}}, stage=None), Loop()),
    "pp2, configured": (Loop({"fix": {"pp": 2}}, configured=True), Loop(configured=True)),
    "zero1": (Loop({}, stage=1), Loop(stage=1)),
}


@pytest.fixture(scope="module")
def plain(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """What rank 0 sees without the key, by the row's name: rows whose scripts are then the same share the run."""
    seen: dict[str, Seen] = {}

    def of(name: str) -> Seen:
        loop = LOOPS[name][1]
        if repr(loop) not in seen:
            seen[repr(loop)] = pool.run(accelerated, 2, loop, str(tmp_path_factory.mktemp("without")), timeout=200)[0]
        return seen[repr(loop)]

    return of


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_that_without_the_key(
    pool: Pool, plain: Callable[[str], Seen], tmp_path: Path, name: str
) -> None:  # fmt: skip
    wanted = plain(name)
    found = pool.run(accelerated, 2, LOOPS[name][0], str(tmp_path), timeout=200)
    assert len(wanted.losses) == 6
    assert len(wanted.again) == 2
    for seen in found:
        np.testing.assert_allclose(seen.losses, wanted.losses, rtol=1e-5)
        np.testing.assert_allclose(seen.again, wanted.again, rtol=1e-5)
        assert seen.rates == pytest.approx(wanted.rates)
        np.testing.assert_allclose(seen.gathered, wanted.gathered, rtol=1e-5)
    assert len(wanted.gathered) == 24
    assert found[0].state.keys() == wanted.state.keys() == found[0].saved.keys() != set()
    for key, value in wanted.state.items():
        assert distance(found[0].state[key], value) <= 1e-5, key
        assert np.array_equal(found[0].saved[key], found[0].state[key])
