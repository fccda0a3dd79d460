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

MODELS = ("gpt2", "llama", "t5", "mixture", "vit", "swin", "gpt2 dropout")
# The heads of Llama's keys and values are 2, and so are those of Swin's first layers. ViT has 3 heads and 13 patches.
HEADS_OF_2 = ("co-shard by 4", "co-shard inside tensor", "co-shard and sequence")
UNFIT = {(name, layout) for name in ("llama", "swin") for layout in HEADS_OF_2}
UNFIT |= {("vit", layout) for layout in LAYOUTS if layout != "samples"}
# On virtual devices.
FAST = {
    ("gpt2", "sequence"), ("llama", "context"), ("mixture", "experts"), ("gpt2", "co-shard inside tensor"),
    ("t5", "context and sequence"), ("swin", "co-shard"),
}  # fmt: skip
# On processes.
REAL = {
    ("gpt2", "sequence"), ("llama", "context"), ("mixture", "experts"), ("gpt2", "co-shard inside tensor"),
    ("llama", "context in stages"), ("gpt2", "co-shard by 4"), ("gpt2", "context and sequence"),
}  # fmt: skip


def slow(case: tuple[str, str], fast: set[tuple[str, str]]) -> object:
    return pytest.param(*case, marks=() if case in fast else pytest.mark.slow, id=" ".join(case))


TABLE = [
    (name, layout)
    for name in MODELS
    for layout in LAYOUTS
    if (name, layout) not in UNFIT
    and ("experts" not in layout or name == "mixture")
    # With dropout it is the same model and more.
    and (name != "gpt2" or (name, layout) in FAST)
]


@pytest.mark.parametrize(("name", "layout"), [slow(case, FAST) for case in TABLE])
def test_virtual_devices_train_like_one(name: str, layout: str) -> None:
    verdict = verified(name, LAYOUTS[layout])
    assert verdict.equal, verdict.difference


@pytest.mark.parametrize(("name", "layout"), [slow(case, {("gpt2", "sequence")}) for case in sorted(REAL)])
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
