"""A small model with a tower of many small kernels beside one of few large ones, without a framework."""

from __future__ import annotations

from functools import cache

from partita.graph import Block, Graph, Op, Tensor, check

SAMPLES, NARROW, WIDE, TOKENS = 4, 256, 2048, 128


@cache
def unequal(kernels: int) -> Graph:
    """Blocks: ``small`` with so many linear layers of one token, four of two layers of many tokens, a head that reads
    both towers."""
    tensors = [
        Tensor("x", (SAMPLES, 1, NARROW), role="input", gradient=False),
        Tensor("y", (SAMPLES, TOKENS, WIDE), role="input", gradient=False),
    ]
    ops: list[Op] = []
    blocks: dict[str, list[str]] = {}

    def linear(block: str, read: str, tokens: int, fed: int, width: int) -> str:
        weight, made = f"w{len(ops)}", f"v{len(ops)}"
        tensors.append(Tensor(weight, (width, fed), role="parameter"))
        tensors.append(Tensor(made, (SAMPLES, tokens, width)))
        ops.append(Op(made, "linear", (read, weight), (made,), block))
        blocks.setdefault(block, []).append(weight)
        return made

    small, large = "x", "y"
    for _ in range(kernels):
        small = linear("small", small, 1, NARROW, NARROW)
    for layer in range(4):
        inner = linear(f"large.{layer}", large, TOKENS, WIDE, 4 * WIDE)
        large = linear(f"large.{layer}", inner, TOKENS, 4 * WIDE, WIDE)
    ends = linear("head", small, 1, NARROW, 1024), linear("head", large, TOKENS, WIDE, 1024)
    tensors.append(Tensor("joined", (SAMPLES, 1 + TOKENS, 1024)))
    ops.append(Op("joined", "cat", ends, ("joined",), "head", attributes={"dim": 1}))
    last = linear("head", "joined", 1 + TOKENS, 1024, 1024)
    found = tuple(Block(name, tuple(weights)) for name, weights in blocks.items())
    return check(Graph(f"unequal {kernels}", SAMPLES, None, tuple(tensors), tuple(ops), found, ("x", "y"), (last,)))
