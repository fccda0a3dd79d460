"""Layouts along other axes than ``tensor``: of flows, of experts, of turns. Shared by proofs and by runs."""

from __future__ import annotations

from partita.plan import Axis, Cut
from tests.runtime.programs import Layout

CLASSES = tuple(Cut(name, ("tensor",)) for name in ("heads", "hidden", "vocabulary"))
CONTEXT, EXPERT, TURNS = Axis("context", 2, "space"), Axis("expert", 2, "space"), Axis("shard", 2, "turns")
TOKENS, SAMPLES = Cut("sequence", ("context",)), Cut("batch", ("expert",))


def in_turns(*before: str) -> tuple[Cut, ...]:
    """Attention and the layers after it in turns, inside what the axes before cut."""
    return tuple(Cut(name, (*before, "shard")) for name in ("heads", "hidden"))


LAYOUTS = {
    "sequence": Layout(tp=2, cuts=(*CLASSES, Cut("sequence", ("tensor",)))),
    "context": Layout(cuts=(TOKENS,), other_axes=(CONTEXT,)),
    "context and tensor": Layout(tp=2, cuts=(*CLASSES, TOKENS), other_axes=(CONTEXT,)),
    "context and sequence": Layout(
        tp=2, cuts=(*CLASSES, Cut("sequence", ("context", "tensor"))), other_axes=(CONTEXT,)
    ),
    "samples": Layout(cuts=(SAMPLES,), other_axes=(EXPERT,)),
    "samples and context": Layout(cuts=(SAMPLES, TOKENS), other_axes=(EXPERT, CONTEXT)),
    "experts": Layout(cuts=(SAMPLES, Cut("experts", ("expert",))), other_axes=(EXPERT,)),
    "experts and tensor": Layout(tp=2, cuts=(Cut("experts", ("tensor",)), Cut("heads", ("tensor",)))),
    "co-shard": Layout(cuts=in_turns(), other_axes=(TURNS,)),
    "co-shard by 4": Layout(cuts=in_turns(), other_axes=(Axis("shard", 4, "turns"),)),
    "co-shard inside tensor": Layout(
        tp=2, cuts=(*in_turns("tensor"), Cut("vocabulary", ("tensor",))), other_axes=(TURNS,)
    ),
    "co-shard and sequence": Layout(
        tp=2, cuts=(*in_turns("tensor"), Cut("vocabulary", ("tensor",)), Cut("sequence", ("tensor",))),
        other_axes=(TURNS,),
    ),
    "co-shard and context": Layout(cuts=(*in_turns(), TOKENS), other_axes=(CONTEXT, TURNS)),
    "co-shard, recomputed": Layout(cuts=in_turns(), other_axes=(TURNS,), recompute="full"),
    "context in stages": Layout(pp=2, cuts=(TOKENS,), other_axes=(CONTEXT,)),
    "sequence in stages": Layout(pp=2, tp=2, cuts=(*CLASSES, Cut("sequence", ("tensor",)))),
    "context in copies": Layout(dp=2, cuts=(TOKENS,), other_axes=(CONTEXT,)),
}  # fmt: skip
