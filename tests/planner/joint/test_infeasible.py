"""Where nothing fits: each figure of the message is asked again, on both sides."""

from __future__ import annotations

import re

import numpy as np
import pytest

from partita.errors import Infeasible
from partita.planner import parse_fix, plan


def fits(problem) -> bool:
    try:
        plan(problem)
    except Infeasible:
        return False
    return True


def figure(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else int(found[1].replace(",", ""))


@pytest.mark.parametrize("seed", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, *range(3, 10)))])
@pytest.mark.parametrize("target", ["deepspeed", "partita"])
def test_the_least_memory_devices_and_the_largest_batch_are_exact(made, seed, target):
    rng = np.random.default_rng(seed)
    n, devices, batch = int(rng.integers(2, 6)), int(rng.integers(1, 5)), int(rng.choice([3, 4, 5, 7, 8, 11]))
    graph = made.chain(
        rng.integers(1, 9, n) * 1e-3, rng.integers(0, 40, n) * 1000, width=int(rng.integers(0, 2000)),
        kept=int(rng.integers(0, 60_000)), shared=[(0, n - 1)] if seed % 3 == 0 else (),
    )  # fmt: skip
    held = parse_fix([[], ["schedule=gpipe", "recompute=none"], ["micro_batches=1"], ["recompute=none"]][seed % 4])

    def asked(devices=devices, batch=batch, memory=1):
        return made.problem(graph, made.machine(devices, memory=memory), batch, target=target, fix=held)

    with pytest.raises(Infeasible) as caught:
        plan(asked())
    least = figure(r"the least is .* a device \(([\d,]+) bytes\)", str(caught.value))
    assert fits(asked(memory=least))
    assert not fits(asked(memory=least - 1))
    with pytest.raises(Infeasible) as caught:
        plan(asked(memory=least - 1))
    text = str(caught.value)
    assert figure(r"the least is .* a device \(([\d,]+) bytes\)", text) == least
    most = figure(r"A global batch of (\d+) would do, and no larger one", text)
    assert (most is None) == ("No smaller global batch would do" in text)
    assert [b for b in range(1, batch) if fits(asked(batch=b, memory=least - 1))][-1:] == (
        [] if most is None else [most]
    )
    more = figure(r"(\d+) devices of this kind would do, and no fewer", text)
    if more is None:
        assert "No number of such devices" in text
        assert not any(fits(asked(devices=number, memory=least - 1)) for number in range(devices, devices + 8))
    else:
        assert fits(asked(devices=more, memory=least - 1))
        assert not any(fits(asked(devices=number, memory=least - 1)) for number in range(devices, more))


@pytest.mark.parametrize(
    ("batch", "devices", "kept", "held", "answer"),
    [
        # State alone is too large.
        (7, 4, 0, [], None),
        # 32,000 bytes of state, 300,000 of a sample.
        (8, 1, 25_000, ["micro_batches=1", "recompute=none"], 3),
    ],
)
def test_batches_that_would_do(made, batch, devices, kept, held, answer):
    graph = made.chain([1e-3] * 2, [1000] * 2, kept=kept)
    with pytest.raises(Infeasible) as caught:
        plan(made.problem(graph, made.machine(devices, memory=932_000 if kept else 10), batch, fix=parse_fix(held)))
    assert figure(r"A global batch of (\d+) would do, and no larger one", str(caught.value)) == answer
