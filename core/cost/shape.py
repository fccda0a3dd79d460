"""What a block is, in the words of a profile: its kind, its sizes and a digest of its ops."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

from partita.cost.alike import structure
from partita.cost.division import Division
from partita.cost.flops import is_causal
from partita.cost.kinds import ATTENTION
from partita.graph.model import Block, Graph
from partita.profile.measured import BlockShape


def block_shape(graph: Graph, block: Block, division: Division, parameters: int) -> BlockShape | None:
    """The shape of a block whose classes are all cut alike over one tensor axis; None: no profile has such a block."""
    pieces = {(cut.pieces, cut.shards, cut.joins) for cut in division.classes}
    plain = division.sequence == division.context == division.samples == 1 and not division.selective
    if not plain or division.attention != "fused" or len(pieces) > 1:
        return None
    tp, shards, joins = next(iter(pieces), (1, 1, False))
    if shards > 1 or joins:
        return None
    ops = graph.block_ops[block.name]
    attention = [op for op in ops if op.kind in ATTENTION]
    hidden = heads = seq = 0
    if attention:
        query = graph.tensor[attention[0].inputs[0]].shape
        heads = attention[0].attributes["heads"] if attention[0].kind == "attention" else query[1]
        out = graph.tensor[ops[-1].outputs[0]].shape
        hidden, seq = (out[-1], out[-2]) if len(out) >= 2 else (0, 0)
    counts = Counter(op.kind for op in ops)
    plain_gpt = counts["layer_norm"] == 2 and counts["gelu"] == 1 and not counts["mul"] and not counts["dropout"]
    kind = "gpt" if plain_gpt and [is_causal(op) for op in attention] == [True] else block.name
    digest = sha256(repr(structure(graph, block)[0]).encode()).hexdigest()[:16]
    return BlockShape(kind, digest, hidden, heads, seq, tp, parameters)
