"""When two runs are equal, and when they aren't."""

from __future__ import annotations

from math import inf, nan

import pytest

from partita.recipes.compare import compare

CASES = [
    ([5.0, 4.0], [5.0, 4.0], True, "largest difference 0.0e+00"),
    ([5.0, 4.0], [5.00009, 4.0], True, "largest difference 9.0e-05"),
    ([5.0, 4.0], [5.0, 4.00011], False, "largest difference 1.1e-04"),
    ([5.0, 4.0], [3.9, 4.0], False, "largest difference 1.1e+00"),
    # A maximum forgets a NaN, wherever it stands.
    ([nan, 4.0], [5.0, 4.0], False, "largest difference nan"),
    ([5.0, nan], [5.0, 4.0], False, "largest difference nan"),
    ([5.0, 4.0], [5.0, nan], False, "largest difference nan"),
    ([nan], [nan], False, "largest difference nan"),
    ([inf], [inf], False, "largest difference nan"),
    ([inf], [5.0], False, "largest difference inf"),
    ([5.0, 4.0], [5.0], False, "the plan made 2 steps, one device 1"),
    ([], [5.0], False, "the plan made 0 steps, one device 1"),
    ([], [], False, "equal: false"),
]


@pytest.mark.parametrize(("planned", "one", "equal", "says"), CASES)
def test_compare(planned: list[float], one: list[float], equal: bool, says: str) -> None:
    table, answer = compare(planned, one)
    assert answer is equal
    assert says in table
    assert table.endswith(f"\nequal: {str(equal).lower()}")
    # A line of each step that both made, and a mark where they differ.
    rows = table.splitlines()[1 : 1 + min(len(planned), len(one))]
    marks = [not abs(a - b) <= 1e-4 for a, b in zip(planned, one, strict=False)]
    assert [row.endswith("<") for row in rows] == marks
