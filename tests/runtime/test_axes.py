"""Cuts along other axes than ``tensor``, and of what flows through the model: training is that of one device."""

from __future__ import annotations

import pytest

from partita.plan import Axis, Cut
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout
from tests.runtime.training import train

CLASSES = tuple(Cut(name, ("tensor",)) for name in ("heads", "hidden", "vocabulary"))
CONTEXT, EXPERT = Axis("context", 2, "space"), Axis("expert", 2, "space")
ALONG_CONTEXT = Cut("sequence", ("context",))


def shards(k: int, *before: str) -> tuple[Cut, ...]:
    """Attention and the layers after it in turns, inside what the axes before cut."""
    return tuple(Cut(name, (*before, "shard")) for name in ("heads", "hidden"))


def turns(k: int) -> Axis:
    return Axis("shard", k, "turns")


LAYOUTS = {
    "sequence": Layout(tp=2, cuts=(*CLASSES, Cut("sequence", ("tensor",)))),
    "context": Layout(cuts=(ALONG_CONTEXT,), other_axes=(CONTEXT,)),
    "context and tensor": Layout(tp=2, cuts=(*CLASSES, ALONG_CONTEXT), other_axes=(CONTEXT,)),
    "context and sequence": Layout(
        tp=2, cuts=(*CLASSES, Cut("sequence", ("context", "tensor"))), other_axes=(CONTEXT,)
    ),
    "samples": Layout(cuts=(Cut("batch", ("expert",)),), other_axes=(EXPERT,)),
    "samples and context": Layout(cuts=(Cut("batch", ("expert",)), ALONG_CONTEXT), other_axes=(EXPERT, CONTEXT)),
    "co-shard 2": Layout(cuts=shards(2), other_axes=(turns(2),)),
    "co-shard 4": Layout(cuts=shards(4), other_axes=(turns(4),)),
    "co-shard inside tensor": Layout(
        tp=2, cuts=(*shards(2, "tensor"), Cut("vocabulary", ("tensor",))), other_axes=(turns(2),)
    ),
    "co-shard and context": Layout(cuts=(*shards(2), ALONG_CONTEXT), other_axes=(CONTEXT, turns(2))),
    "co-shard, recomputed": Layout(cuts=shards(2), other_axes=(turns(2),), recompute=True),
    "context in stages": Layout(pp=2, cuts=(ALONG_CONTEXT,), other_axes=(CONTEXT,)),
    "sequence in stages": Layout(pp=2, tp=2, cuts=(*CLASSES, Cut("sequence", ("tensor",)))),
    "context in copies": Layout(dp=2, cuts=(ALONG_CONTEXT,), other_axes=(CONTEXT,)),
}
# The heads of Llama's keys and values are 2.
UNFIT = {("llama", "co-shard 4"), ("llama", "co-shard inside tensor")}
FAST = {"gpt2 sequence", "llama context", "gpt2 co-shard 2"}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("model", ["gpt2", "llama", "t5"])
def test_training_is_that_of_one_device(pool: Pool, model: str, name: str) -> None:
    if (model, name) in UNFIT:
        pytest.skip("doesn't divide its heads")
    case = Case(model, LAYOUTS[name], dtype="float64", padded=model != "t5")
    assert_equal(case, pool.run(train, case.layout.devices, case))
