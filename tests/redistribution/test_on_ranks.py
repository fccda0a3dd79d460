"""Redistributions on real processes: their arrays against NumPy's, their gradients against the transposed map."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from partita.redistribution.virtual import collect
from tests.ranks.pool import Pool
from tests.redistribution import dtensors_on_ranks as dtensors
from tests.redistribution import on_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def eight() -> Iterator[Pool]:
    made = Pool(8)
    yield made
    made.close()


def test_500_random_problems_equal_numpy(eight: Pool) -> None:
    answers = eight.run(on_ranks.one_after_another, 8, 7, 500, timeout=280)
    sums: dict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for rank, found in enumerate(answers):
        for number, array in found:
            sums[number][rank] = array
    # What ends as a sum is only right together.
    problems = [problem for problem, _ in on_ranks.problems(7, 500, 8)]
    assert len(sums) > 40
    for number, arrays in sums.items():
        wanted = on_ranks.whole(problems[number])
        np.testing.assert_array_equal(collect(arrays, problems[number].target), wanted, err_msg=str(problems[number]))


@pytest.mark.parametrize(("part_bytes", "collectives"), [(2**23, False), (2**23, True), (64, False), (64, True)])
def test_any_steps_equal_virtual_devices(eight: Pool, part_bytes: int, collectives: bool) -> None:
    """With parts of 64 bytes most arrays go through their steps in several parts."""
    ops = Counter(eight.run(on_ranks.walks, 8, part_bytes, 60, part_bytes, collectives, timeout=120)[0])
    assert len(ops) == 9
    assert min(ops.values()) > 0


def test_gradients_are_the_transposed_map(eight: Pool) -> None:
    assert eight.run(on_ranks.adjoints, 8, 1, 80, timeout=120) == [80] * 8


def test_a_dtensor_is_what_its_own_redistribute_gives(eight: Pool) -> None:
    assert eight.run(dtensors.as_its_own, 8, 1, 40, timeout=120) == [40] * 8


def test_axes_that_cut_a_dim_against_the_order_of_the_mesh(pool: Pool) -> None:
    given, found, back, whole = zip(*pool.run(dtensors.strided, 4), strict=True)
    assert given == back == ([0.0], [2.0], [1.0], [3.0])
    assert found == ([0.0], [1.0], [2.0], [3.0])
    assert whole == ([0.0, 1.0, 2.0, 3.0],) * 4


def test_uneven_strided_shards_are_torch_s(pool: Pool) -> None:
    assert pool.run(dtensors.strided_uneven, 4) == [12] * 4


def test_an_average_is_refused_by_name(pool: Pool) -> None:
    for message in pool.run(dtensors.average, 2):
        assert '"P(avg)"' in message
        assert "divide what each device has by 2" in message


def test_an_order_that_placements_do_not_say_is_refused(pool: Pool) -> None:
    for message in pool.run(dtensors.hidden_order, 4):
        assert "dim 0 by the axes 1 and 0. The same with _StridedShard says it" in message


def test_a_dtensor_from_mesh_to_mesh(eight: Pool) -> None:
    """Rows on four ranks, columns on two others; gradients go back the same way."""
    full = np.arange(64.0).reshape(8, 8)
    for rank, (found, gradient) in enumerate(eight.run(dtensors.between_meshes, 6)):
        columns = full[:, 4 * (rank - 4) : 4 * (rank - 3)] if rank >= 4 else np.empty(0)
        rows = full[::-1][2 * rank : 2 * rank + 2] if rank < 4 else np.empty(0)
        np.testing.assert_array_equal(found, columns)
        np.testing.assert_array_equal(gradient, rows)
