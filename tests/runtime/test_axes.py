"""Cuts along other axes than ``tensor``, and of what flows through the model: training is that of one device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.spacetime.program import LocalOp, Program
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.parity import assert_equal
from tests.runtime.programs import program
from tests.runtime.training import train
from tests.spacetime.layouts import LAYOUTS
from tests.spacetime.programs import with_ops
from tests.verify.models import model, verified

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

# Each holds what others cut alone: classes and tokens, samples and tokens, turns and tokens, stages, copies.
TOGETHER = (
    "context and sequence", "samples and context", "co-shard and context", "co-shard, recomputed", "context in stages",
    "sequence in stages", "context in copies",
)  # fmt: skip
# The heads of Llama's keys and values are 2, and so are those of Swin's first layers: four can't share them. ViT has 3
# heads and 13 patches. With dropout GPT-2 is the same model and more.
TURNS_OF_4 = ("co-shard by 4", "co-shard and sequence")
MODELS: dict[str, tuple[str, ...]] = {
    "gpt2": ("sequence", "co-shard inside tensor"),
    "gpt2 dropout": tuple(name for name in LAYOUTS if "experts" not in name),
    # Copies are those of any model: the other ones have the rest.
    "llama": ("context", *TOGETHER[:-1]),
    "t5": (*TOGETHER[:-1], *TURNS_OF_4),
    "mixture": ("experts", "experts and tensor", *TOGETHER, *TURNS_OF_4),
    "vit": ("samples",),
    "swin": ("co-shard", *TOGETHER[:-1]),
}
# On processes.
REAL = {
    ("gpt2", "sequence"), ("llama", "context"), ("mixture", "experts"), ("gpt2", "co-shard inside tensor"),
    ("llama", "context in stages"), ("gpt2", "co-shard by 4"), ("gpt2", "context and sequence"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "layout"),
    [pytest.param(name, layout, id=f"{name} {layout}") for name, found in MODELS.items() for layout in found],
)
def test_virtual_devices_train_like_one(name: str, layout: str) -> None:
    verdict = verified(name, LAYOUTS[layout])
    assert verdict.equal, verdict.difference


@pytest.mark.parametrize(("name", "layout"), [pytest.param(*case, id=" ".join(case)) for case in sorted(REAL)])
def test_processes_train_like_one(pool: Pool, name: str, layout: str) -> None:
    case = Case(name, LAYOUTS[layout], dtype="float64", padded=name != "mixture")
    assert_equal(case, pool.run(train, case.layout.devices, case))


def test_rows_that_see_too_much_are_found() -> None:
    """Of causal attention the second device's rows begin in the middle: it matters that they do."""
    found = program(model("mixture").captured.graph, LAYOUTS["context"])
    queries = [o for piece in found.pieces for segment in piece.segments for o in segment.ops if o.form == "queries"]
    assert [o.op.attributes["rows"] for o in queries] == [[["context", 2]]] * 2
    verdict = model("mixture").verify(_with_rows(found, []))
    assert not verdict.equal
    assert verdict.difference is not None
    assert verdict.difference.op == queries[0].op.name


def _with_rows(found: Program, rows: list[list[object]]) -> Program:
    def change(local: LocalOp) -> list[LocalOp]:
        if local.form != "queries":
            return [local]
        return [replace(local, op=replace(local.op, attributes=local.op.attributes | {"rows": rows}))]

    return with_ops(found, change)
