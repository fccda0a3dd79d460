"""Programs of the plan library to break: small models, each under the plans that change something for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from partita.cluster import parse_cluster
from partita.draft import Draft, PlanFunction, drafted, op_assign, op_order, op_trans
from partita.drafted import library
from partita.graph import Block, Graph, Op, Tensor, check
from partita.plan import Axis
from partita.problem import Problem
from partita.spacetime.lower import lower
from partita.spacetime.program import Program
from tests.runtime.library import KINDS, capture
from tests.spacetime.programs import products


def recycled() -> Graph:
    """Vectors go through two layers three times, the last time alone with a gradient.

    Every pass has the same parameters. A layer also adds what the layer before it was given.
    """
    tensors = [Tensor("x", (2, 4, 6), role="input", gradient=False)]
    tensors += [Tensor(f"w{i}", (6, 6), role="parameter") for i in range(2)]
    ops, blocks, before, last = [], [], "x", "x"
    for turn in range(3):
        for layer in range(2):
            name, trained = f"p{turn}.{layer}", turn == 2
            tensors += [Tensor(f"{name}.{part}", (2, 4, 6), gradient=trained) for part in ("h", "s", "y")]
            ops += [
                Op(f"{name}.linear", "linear", (last, f"w{layer}"), (f"{name}.h",), name),
                Op(f"{name}.add", "add", (f"{name}.h", before), (f"{name}.s",), name),
                Op(f"{name}.tanh", "tanh", (f"{name}.s",), (f"{name}.y",), name),
            ]
            blocks.append(Block(name, (f"w{layer}",) if turn == 0 else ()))
            before, last = last, f"{name}.y"
    return check(Graph("recycled", 2, None, tuple(tensors), tuple(ops), tuple(blocks), ("x",), (last,)))


def hidden_in_turns(draft: Draft) -> None:
    """Co-shard of what lies between two products, on one device after another."""
    op_assign(draft, draft.blocks, draft.devices, data=len(draft.devices))
    op_trans(draft, draft.blocks, "hidden", Axis("shard", 2, "turns"))
    op_trans(draft, draft.blocks, "batch", Axis("micro", 2, "turns"))
    op_order(draft, "1f1b")


def tokens_of_both_ends(draft: Draft) -> None:
    """A pipeline of two stages of two devices, each of which has a part of the tokens: the tied table too."""
    half = len(draft.blocks) // 2
    for blocks, devices in ((draft.blocks[:half], (0, 1)), (draft.blocks[half:], (2, 3))):
        op_assign(draft, blocks, devices, context=2)
    op_trans(draft, draft.blocks, "sequence", "context")
    op_trans(draft, draft.blocks, "batch", Axis("micro", 2, "turns"))
    op_order(draft, "1f1b")


BY_HAND = {"products": products, "recycled": recycled}


@dataclass(frozen=True)
class Case:
    """A plan of the library, or a function, for a model on so many devices; ``copies`` of it are data-parallel."""

    plan: str | PlanFunction
    devices: int
    model: str = "gpt2"
    copies: int = 1
    micro_batches: int = 4
    numbers: Mapping[str, int] = field(default_factory=dict)


CASES = {
    "data": Case("data-parallel", 2, copies=2), "zero 2": Case("zero-2", 2, copies=2),
    "zero 3": Case("zero-3", 2, copies=2), "megatron": Case("megatron", 4, copies=2, numbers={"tp": 2}),
    "1f1b": Case("1f1b", 4), "sequence": Case("sequence-parallel", 2),
    "sequence dp": Case("sequence-parallel", 4, copies=2, numbers={"tp": 2}),
    "sequence products": Case("sequence-parallel", 2, "products"), "context": Case("context-parallel", 2),
    "context dp": Case("context-parallel", 4, copies=2, numbers={"cp": 2}),
    "context pp": Case(tokens_of_both_ends, 4, micro_batches=2),
    "context mixture": Case("context-parallel", 2, "mixture"), "expert": Case("expert-parallel", 2, "mixture"),
    "expert dp": Case("expert-parallel", 4, "mixture", copies=2, numbers={"ep": 2}),
    "co-shard": Case("co-shard", 2, numbers={"pp": 2}), "co-shard tp": Case("co-shard", 4, numbers={"pp": 2, "tp": 2}),
    "co-shard products": Case(hidden_in_turns, 2, "products", copies=2, micro_batches=2),
    "interleaved": Case("interleaved", 2), "interleaved tp": Case("interleaved", 4, numbers={"tp": 2}),
    "zero-bubble": Case("zero-bubble", 2), "zero-bubble dp": Case("zero-bubble", 4, copies=2, numbers={"pp": 2}),
    "zero-bubble tp": Case("zero-bubble", 4, numbers={"pp": 2, "tp": 2}), "interlaced": Case("interlaced", 2),
    "interlaced dp": Case("interlaced", 4, copies=2, numbers={"pp": 2}), "3f1b": Case("3f1b", 2, "recycled"),
    "3f1b dp": Case("3f1b", 4, "recycled", copies=2, numbers={"pp": 2}),
    "interleaved dp": Case("interleaved", 4, copies=2, numbers={"pp": 2}),
    "context mixture dp": Case("context-parallel", 4, "mixture", copies=2, numbers={"cp": 2}),
    "3f1b alone": Case("3f1b", 1, "recycled"), "interlaced 4": Case("interlaced", 4),
}  # fmt: skip


@cache
def proven(name: str) -> tuple[Graph, Program]:
    """The model of a case and its program: lowering has proven it."""
    case = CASES[name]
    graph = BY_HAND[case.model]() if case.model in BY_HAND else capture(case.model).graph
    samples = 2 if case.model in BY_HAND else KINDS[case.model].samples
    problem = Problem(
        graph, parse_cluster("cpu", case.devices), case.copies * case.micro_batches * samples, precision="fp64",
        target="partita",
    )  # fmt: skip
    function = library()[case.plan] if isinstance(case.plan, str) else case.plan
    numbers = {**case.numbers, "micro_batches": case.micro_batches} if isinstance(case.plan, str) else {}
    return graph, lower(graph, drafted(function, name, problem, numbers))
