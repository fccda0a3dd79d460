"""The blocks of a plan as frameworks of language models count them: an embedding, like layers, a head."""

from __future__ import annotations

from dataclasses import dataclass

from partita.plan import Plan, Strategy


@dataclass(frozen=True)
class Layers:
    """``counts``: transformer layers of each stage. The embedding is on the first, the head on the last."""

    counts: tuple[int, ...]
    strategies: tuple[tuple[Strategy, ...], ...]

    @property
    def total(self) -> int:
        return sum(self.counts)


def layers(plan: Plan) -> tuple[Layers | None, list[str]]:
    """The layers of each stage; None, with the reason, for a model that is not one stack between embedding and head."""
    blocks = [block for stage in plan.stages for block in stage.blocks]
    ends = (blocks[0], blocks[-1])
    if ends != ("embedding", "head"):
        return None, [f'Its first block is "{ends[0]}" and its last "{ends[1]}", not an embedding and a head.']
    stack = blocks[1:-1]
    if not stack:
        return None, ["It has no layers between embedding and head."]
    prefix = stack[0].rpartition(".")[0]
    for index, block in enumerate(stack):
        if block != f"{prefix}.{index}":
            return None, [
                f'Its layers are not one stack of like layers: block "{block}" comes where "{prefix}.{index}" would.'
            ]
    kept = tuple(
        tuple(s for block, s in zip(stage.blocks, stage.strategies, strict=True) if block not in ends)
        for stage in plan.stages
    )
    return Layers(tuple(len(found) for found in kept), kept), []
