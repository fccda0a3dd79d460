"""Stages of unlike data and tensor parallelism and micro-batches, on virtual devices beside one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from partita.adapters.verify.prove import Verdict, verify_program
from partita.graph import Graph
from partita.spacetime.program import Program
from tests.runtime.models import MODELS
from tests.spacetime.unlike import CASES, Case, lowered
from tests.verify.models import captured_at

FAST = {"dp2 to tp2", "2 to 3 of 6", "skip"}
pytestmark = pytest.mark.usefixtures("one_thread")


def _batch(case: Case, samples: int) -> Mapping[str, Any]:
    return MODELS[case.model].batch(samples, torch.Generator().manual_seed(0), False)


def _graph(case: Case, samples: int) -> Graph:
    return captured_at(case.model, samples).graph


def _verified(case: Case, program: Program | None = None) -> Verdict:
    found = program or lowered(lambda samples: _graph(case, samples), case)
    first, *others = (captured_at(case.model, n) for n in dict.fromkeys(share.samples for share in found.shares))
    return verify_program(
        first, found, MODELS[case.model].build, lambda samples: _batch(case, samples), others=tuple(others)
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES])
def test_a_program_of_unlike_stages_is_one_device(name: str) -> None:
    verdict = _verified(CASES[name])
    assert verdict.equal, verdict.difference
    assert len(set(verdict.losses)) == verdict.steps == 3
    assert verdict.devices == CASES[name].devices
