"""What ranks read of each other's captures is what torch.export gives, and a key has all that matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from partita.plugins.capture_torch import Skeleton, build_skeleton
from tests.ranks import captures
from tests.ranks.pool import Pool
from tests.runtime.models import MODELS


class Scaled(nn.Module):
    """A buffer, a dropout and two weights."""

    def __init__(self, scale: float = 2.0, chance: float = 0.1):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(3, 3), nn.Linear(3, 3), nn.Dropout(chance)
        self.register_buffer("scale", torch.full((3,), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.first(x)) * self.scale).mean()


def frozen() -> nn.Module:
    model = Scaled()
    model.first.weight.requires_grad_(False)
    return model


def tied() -> nn.Module:
    model = Scaled()
    model.second.weight = model.first.weight
    return model


def digest(
    build: Callable[[], nn.Module] = Scaled, rows: int = 2, dtype: torch.dtype | None = None, **options: Any
) -> str | None:
    inputs = {"x": torch.zeros(rows, 3)}
    return captures._digest(build_skeleton(build, dtype), inputs, {"name": "scaled", **options})


def test_all_that_a_capture_depends_on_is_in_its_key() -> None:
    found = [
        digest(), digest(rows=3), digest(dtype=torch.float64), digest(frozen), digest(tied),
        digest(lambda: Scaled(scale=3.0)), digest(lambda: Scaled(chance=0.2)), digest(name="other"),
        digest(goal="outputs"), digest(training=False), digest(others=("drop",)),
    ]  # fmt: skip
    assert None not in found
    assert len(set(found)) == len(found)
    with torch.no_grad():
        assert digest() not in found


def test_the_same_again_has_the_same_key() -> None:
    assert digest() == digest()
    # In whatever mode a model was captured before.
    skeleton, inputs = build_skeleton(Scaled), {"x": torch.ones(2, 3)}
    captures._digest(skeleton, inputs, {"name": "scaled", "training": False})
    assert captures._digest(skeleton, inputs, {"name": "scaled"}) == digest()


def test_what_can_not_be_told_by_what_it_holds_has_none() -> None:
    class Local(Scaled):
        pass

    assert digest(Local) is None


def captured(model: str) -> list[bool]:
    """Whether the first capture, one that is read, and torch.export's own are the same."""
    kind, found = MODELS[model], []
    inputs = kind.batch(kind.samples, torch.Generator(), False)

    def skeleton() -> Skeleton:
        return build_skeleton(kind.build)

    shared = captures.capturing.capture_skeleton
    assert shared is not captures.right
    own = skeleton()
    first, read = shared(skeleton(), inputs, name=model), shared(own, inputs, name=model)
    assert read.skeleton is own
    alone = captures.right(skeleton(), inputs, name=model)
    for one in (first, read):
        found += [getattr(one, name) == getattr(alone, name) for name in ("graph", "given", "returned", "tree")]
        found.append(one.buffers.keys() == alone.buffers.keys())
        found += [torch.equal(one.buffers[name], value) for name, value in alone.buffers.items()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks"), [("gpt2", 2), ("t5", 1)])
def test_what_is_read_is_what_torch_exports(pool: Pool, model: str, ranks: int) -> None:
    for found in pool.run(captured, ranks, model):
        assert len(found) >= 10
        assert all(found)
