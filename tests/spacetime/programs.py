"""Programs to prove and to break: real models under several layouts, and a block of products by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from partita.graph import Block, Graph, Op, Tensor, check
from partita.plan import BATCH_CUT, Cut
from partita.plugins.capture_huggingface import capture_config
from partita.spacetime.lower import lower
from partita.spacetime.program import LocalOp, Piece, Program, Task
from tests.runtime.programs import Layout, plan

# A mutant takes a model and its program and gives them broken, with words that the refusal must say (``a|b``: one of
# them); None where the program has nothing to break in that way.
Broken = tuple[Graph, Program, tuple[str, ...]] | None
Mutant = Callable[[Graph, Program], Broken]

CONFIGS = Path(__file__).parent.parent / "data" / "configs"


def configured(name: str, **changes: object) -> Graph:
    """The graph of a small configuration."""
    settings = json.loads((CONFIGS / f"{name}.json").read_text()) | changes
    return capture_config(settings, samples=2, seq=None if "image_size" in settings else 8, name=name)


def products() -> Graph:
    """Two blocks of x @ a, relu, @ b, tanh: what a cut makes partial is summed by an op of its own.

    Then 7 logits, which are returned: where they are cut they are padded, and put together again.
    """
    tensors, ops, blocks = [Tensor("x0", (2, 4, 6), role="input", gradient=False)], [], []
    for i in range(2):
        tensors += [Tensor(f"a{i}", (6, 8), role="parameter"), Tensor(f"b{i}", (8, 6), role="parameter")]
        tensors += [Tensor(f"h{i}", (2, 4, 8)), Tensor(f"r{i}", (2, 4, 8)), Tensor(f"s{i}", (2, 4, 6))]
        tensors.append(Tensor(f"x{i + 1}", (2, 4, 6)))
        ops += [
            Op(f"up{i}", "matmul", (f"x{i}", f"a{i}"), (f"h{i}",), f"block{i}"),
            Op(f"relu{i}", "relu", (f"h{i}",), (f"r{i}",), f"block{i}"),
            Op(f"down{i}", "matmul", (f"r{i}", f"b{i}"), (f"s{i}",), f"block{i}"),
            Op(f"tanh{i}", "tanh", (f"s{i}",), (f"x{i + 1}",), f"block{i}"),
        ]
        blocks.append(Block(f"block{i}", (f"a{i}", f"b{i}")))
    tensors += [Tensor("words", (7, 6), role="parameter"), Tensor("logits", (2, 4, 7))]
    ops.append(Op("head", "linear", ("x2", "words"), ("logits",), "head"))
    blocks.append(Block("head", ("words",)))
    return check(Graph("products", 2, None, tuple(tensors), tuple(ops), tuple(blocks), ("x0",), ("logits",)))


def exported() -> Graph:
    """An executable graph: its ops have operators, arguments and a loss with ignored targets."""
    from tests.runtime.training import capture

    return capture("gpt2", None).graph


GRAPHS: dict[str, Callable[[], Graph]] = {
    "gpt2": lambda: configured("gpt2-tiny", tie_word_embeddings=True, resid_pdrop=0.1, vocab_size=129),
    "llama": lambda: configured("llama-tiny", tie_word_embeddings=True),
    "t5": lambda: configured("t5-gated-tiny", tie_word_embeddings=True),
    "vit": lambda: configured("vit-tiny"),
    "swin": lambda: configured("swin-odd"),
    "products": products,
    "exported": exported,
}


@cache
def graph(name: str) -> Graph:
    return GRAPHS[name]()


@cache
def lowered(name: str, pp: int = 2, dp: int = 1, tp: int = 1, c: int = 3, schedule: str = "1f1b") -> Program:
    """The program of a graph above; proven, because lowering proves."""
    found = plan(graph(name), Layout(pp, dp, tp, c, schedule))  # type: ignore[arg-type]
    if name == "products" and tp > 1:
        last = found.stages[-1]
        words = replace(last.strategies[-1], cuts=(BATCH_CUT, Cut("vocabulary", ("tensor",))))
        found = replace(
            found, stages=(*found.stages[:-1], replace(last, strategies=(*last.strategies[:-1], words)))
        )  # fmt: skip
    return lower(graph(name), found)


def with_pieces(found: Program, change: Callable[[Piece], Piece]) -> Program:
    return replace(found, pieces=tuple(map(change, found.pieces)))


def with_ops(found: Program, change: Callable[[LocalOp], list[LocalOp]]) -> Program:
    """Every op replaced by those that ``change`` gives for it."""

    def changed(piece: Piece) -> Piece:
        segments = (replace(s, ops=tuple(o for op in s.ops for o in change(op))) for s in piece.segments)
        return replace(piece, segments=tuple(segments))

    return with_pieces(found, changed)


def ops_of(found: Program) -> list[LocalOp]:
    return [op for piece in found.pieces for segment in piece.segments for op in segment.ops]


def with_tasks(found: Program, change: Callable[[int, Task], list[Task]]) -> Program:
    """Every task of every device replaced by those that ``change`` gives for it."""
    queues = {d: tuple(t for task in queue for t in change(d, task)) for d, queue in found.queues.items()}
    return replace(found, queues=queues)


def with_queue(found: Program, device: int, change: Callable[[list[Task]], list[Task]]) -> Program:
    return replace(found, queues={**found.queues, device: tuple(change(list(found.queues[device])))})
