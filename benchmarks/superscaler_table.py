"""SuperScaler's table of memory, row by row beside ours, all rows under one set of assumptions.

The paper states neither ZeRO stage nor the precision of the states, the micro-batch, the number of shards, how stages
are cut, nor what a GB is: its figures can't be derived, which plans fit and in which order they come can. Assumed for
all rows:

    device       32 GB less 2 GB, with 1 GB = 10⁹ bytes
    state        Adam in mixed precision, gradients added up in float32: 2 + 4 + 12 bytes a parameter; over dp ZeRO-2
    micro-batch  1 sample; 1F1B, a stage s of p holds p − s micro-batches
    recompute    every block in every plan: kept are the blocks' inputs
    attention    not fused (none was on V100): softmax's result and one gradient of its size lie in memory
    co-shard     4 shards of heads and of hidden units; in Swin in the first 4 layers, as the paper has it
    stages       cut so that the largest need is least
    buffers      masks and tables of positions whole on every device
    interlaced   embedding and head over all devices

Where the paper leaves out more, it is filled in so that the verdicts come out. The rows of GPT-3 15B have no sequence:
9,728 is the shortest multiple of 512 at which the row that doesn't fit doesn't. The row of mBART has no devices: taken
are 16, which it nearly fills, in 4 stages of 4, and a decoder alone, 48 layers of width 6,144 on 1,024 tokens with
500,000 words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from partita.cost.alike import Alike, alike
from partita.cost.block import BlockCost, divided_cost
from partita.cost.crossing import crossing
from partita.cost.division import ClassCut, Division
from partita.cost.precision import item_bytes
from partita.cost.state import state_bytes
from partita.graph import Graph
from partita.plugins.capture_huggingface import capture_config
from partita.recipes.swin.sizes import config as swin

DATA = json.loads((Path(__file__).parent.parent / "tests/data/published/superscaler2023.json").read_text())["memory"]
GB = 1e9
LIMIT = 30 * GB
SHARDS, ZERO, PRECISION = 4, 2, "fp16"
# Bytes of a gradient beyond those of half precision.
WIDER = 2
SEQUENCES = {"gpt3-15b": 9728, "mbart-48": 1024}
MESH = {"mbart-48": (4, 4)}


@dataclass(frozen=True)
class Row:
    """A row of the table. ``fits`` and ``gb`` are the paper's."""

    model: str
    seq: int | None
    dp: int
    tp: int
    pp: int
    plan: str
    fits: bool
    gb: float | None

    @property
    def name(self) -> str:
        seq = f" at {self.seq}" if self.seq else ""
        mesh = "·".join(f"{n}{size}" for n, size in (("DP", self.dp), ("TP", self.tp), ("PP", self.pp)) if size > 1)
        return f"{self.model}{seq}: {self.plan + ' ' if self.plan else ''}{mesh}"


@dataclass(frozen=True)
class Need:
    """Bytes on the device of the fullest stage."""

    state: float
    buffers: float
    held: float
    temporary: float

    @property
    def total(self) -> float:
        return self.state + self.buffers + self.held + self.temporary


def rows() -> list[Row]:
    """The paper's rows, with what it leaves out filled in."""
    found = []
    for row in DATA["rows"]:
        tp, pp = MESH.get(row["model"], (row["tp"], row["pp"]))
        seq = row["seq"] or SEQUENCES.get(row["model"])
        fits = row.get("fits", row["gb"] is not None)
        found.append(Row(row["model"], seq, row["dp"], tp, pp, row["plan"], fits, row["gb"]))
    return found


def _gpt(seq: int, layers: int, width: int, heads: int, words: int = 50257) -> dict[str, Any]:
    return {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
            "vocab_size": words, "n_positions": seq, "n_embd": width, "n_layer": layers,
            "n_head": heads, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}  # fmt: skip


@cache
def model(name: str, seq: int | None) -> tuple[Graph, Alike]:
    """The captured model, one sample, and its blocks that are alike."""
    if seq is None:
        config = swin(name)
    else:
        config = {
            "gpt3-6.7b": _gpt(seq, 32, 4096, 32), "gpt3-15b": _gpt(seq, 48, 5120, 40),
            "mbart-48": _gpt(seq, 48, 6144, 64, 500_000),
        }[name]  # fmt: skip
    graph = capture_config(config, seq=seq, samples=1, dtype="float16")
    return graph, alike(graph)


def _sharded(row: Row, block: str) -> bool:
    first = (".layers.0.blocks.", ".layers.1.blocks.") if row.model.startswith("swin") else (".h.",)
    return row.plan == "co-shard" and any(part in block for part in first)


def costs(row: Row) -> list[BlockCost]:
    """The cost of each block on one device."""
    graph, groups = model(row.model, row.seq)
    made: dict[tuple[int, int, int], BlockCost] = {}
    found = []
    for kind, block in zip(groups.kinds, graph.blocks, strict=True):
        shards = SHARDS if _sharded(row, block.name) else 1
        ends = row.plan == "interlaced" and block.name in ("embedding", "head")
        tp = row.dp * row.tp * row.pp if ends else row.tp
        if (kind, shards, tp) not in made:
            classes = groups.classes[kind]
            cuts = {cut.name: ClassCut(cut.name, tp, shards if cut.reductions else 1) for cut in classes}
            division = Division(tuple(cuts.values()), attention="unfused")
            item, name = item_bytes(graph, PRECISION), graph.blocks[kind].name
            made[kind, shards, tp] = divided_cost(graph, name, classes, division, item, frozenset())
        found.append(made[kind, shards, tp])
    return found


def _buffers(graph: Graph) -> np.ndarray:
    """[n]: bytes of the buffers that each block's ops read."""
    read = [
        {name for op in graph.block_ops[block.name] for name in op.inputs if graph.tensor[name].role == "buffer"}
        for block in graph.blocks
    ]
    return np.array([float(sum(graph.tensor[name].bytes for name in names)) for names in read])


def need(row: Row) -> Need:
    """What the fullest device needs when stages are cut so that it needs least."""
    graph, _ = model(row.model, row.seq)
    found = costs(row)
    per = state_bytes(PRECISION, "adam", ZERO, row.dp, row.dp)
    wide = WIDER / row.dp if ZERO >= 2 else WIDER
    trained = np.array([float(cost.trained) for cost in found])
    state = trained * (per.total / row.dp + wide)
    buffers, held = _buffers(graph), crossing(graph, item_bytes(graph, PRECISION)).forward_bytes[:-1]
    temporary = np.array([cost.temporary_bytes + cost.saved_bytes for cost in found])
    if row.dp > 1:
        # ZeRO-2 keeps a block's gradients whole until they are reduced.
        temporary += trained * 2
    copy = per.parameters / row.dp + (per.gradients / row.dp + wide)
    tied = sum(graph.tensor[name].elements for name in graph.shared_parameters) / row.tp * copy
    if row.plan == "interlaced":
        return _interlaced(row.pp, state, buffers, held, temporary)
    # The last stage has a copy of the words' table.
    state[-1] += tied if row.pp > 1 else 0.0
    spans = _least(len(found), row.pp, lambda s, i, j: _stage(state, buffers, held, temporary, row.pp - s, i, j).total)
    needs = [_stage(state, buffers, held, temporary, row.pp - s, i, j) for s, (i, j) in enumerate(spans)]
    return max(needs, key=lambda stage: stage.total)


def _stage(
    state: np.ndarray, buffers: np.ndarray, held: np.ndarray, temporary: np.ndarray, flight: int, i: int, j: int
) -> Need:
    return Need(
        float(state[i:j].sum()), float(buffers[i:j].sum()), float(held[i:j].sum()) * flight, float(temporary[i:j].max())
    )


def _interlaced(pp: int, state: np.ndarray, buffers: np.ndarray, held: np.ndarray, temporary: np.ndarray) -> Need:
    """The layers in stages, and on every device its part of the ends, whose inputs all micro-batches in flight keep."""
    layers = slice(1, -1)
    inner = (state[layers], buffers[layers], held[layers], temporary[layers])
    ends = float(state[0] + state[-1])
    spans = _least(len(inner[0]), pp, lambda s, i, j: _stage(*inner, pp - s, i, j).total)
    needs = [_stage(*inner, pp - s, i, j) for s, (i, j) in enumerate(spans)]
    most = max(needs, key=lambda stage: stage.total)
    kept = float(held[0] * pp + held[-1])
    return Need(most.state + ends, most.buffers, most.held + kept, max(most.temporary, temporary[0], temporary[-1]))


def _least(blocks: int, stages: int, bytes_of: Any) -> list[tuple[int, int]]:
    """The stages (first block, end) whose largest need is least."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for s in range(stages):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for i, (largest, bounds) in best.items():
            for j in range(i + 1, blocks - (stages - s - 1) + 1) if s < stages - 1 else (blocks,):
                value = max(largest, bytes_of(s, i, j))
                if j not in found or value < found[j][0]:
                    found[j] = (value, (*bounds, j))
        best = found
    return list(pairwise(best[blocks][1]))


def verdict(found: Need) -> bool:
    """Whether it fits."""
    return found.total <= LIMIT


def pairs_in_order(found: list[tuple[float, float]]) -> tuple[int, int]:
    """Of all pairs of rows (ours, the paper's): those in which ours come in the paper's order, and all."""
    pairs = list(combinations(sorted(found, key=lambda row: row[1]), 2))
    return sum(first[0] < second[0] for first, second in pairs), len(pairs)


def main() -> None:
    print(machine())
    print(__doc__)
    print(
        f"{'plan':38} {'GB':>6} {'GiB':>6} {'paper GB':>9}  {'ours':13} {'paper':13}  state, buffers, kept, temporary"
    )
    figures = []
    for row in rows():
        found = need(row)
        if row.gb:
            figures.append((found.total, row.gb))
        parts = " + ".join(f"{size / GB:.1f}" for size in (found.state, found.buffers, found.held, found.temporary))
        words = ["fits" if fits else "out of memory" for fits in (verdict(found), row.fits)]
        paper = f"{row.gb:9.2f}" if row.gb else f"{'':9}"
        print(
            f"{row.name:38} {found.total / GB:6.2f} {found.total / 2**30:6.2f} {paper}  {words[0]:13} {words[1]:13}  "
            f"{parts}"
        )
    right, all_of_them = pairs_in_order(figures)
    print(f"\nof {all_of_them} pairs of the paper's figures ours come in the same order in {right}")


if __name__ == "__main__":
    main()
