"""A profile's blocks predicted from the rest of the profile: leave-one-out errors of time and of kept bytes.

    python benchmarks/profile_blocks.py                 # tests/data/profiles/h200.json, measured on one H200
    python benchmarks/profile_blocks.py FILE

(a) interpolation: each block from its own measurements at other micro-batches, where there are any, otherwise at other
tp (in the part 1/tp of the work that a device has). (b) the cost model with rates of the profile's single kernels: of
the blocks it has seen nothing but the start, half of what over all of them doesn't grow with the micro-batch. Both
predict a block measured alone, with its start. The measured Swin and Evoformer blocks kept their scores in memory, so
they are priced that way.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from machine import machine

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cluster.model import Device
from partita.cost.block import BlockCost, divided_cost
from partita.cost.division import ClassCut, Division
from partita.cost.precision import item_bytes, peak_flops
from partita.graph import Graph
from partita.graph.cuts import CutClass, block_cuts
from partita.plugins.capture_huggingface import capture_config
from partita.profile.measured import interpolate
from partita.profile.profiled import profiled
from partita.profile.read import read_profile
from partita.profile.rows import BlockRow

FILE = Path(__file__).parent.parent / "tests/data/profiles/h200.json"


@dataclass(frozen=True)
class Three:
    """Forward and backward seconds, kept bytes."""

    forward: float
    backward: float
    kept: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def measured(row: BlockRow) -> Three:
    return Three(row.fwd_ms * 1e-3, row.bwd_ms * 1e-3, row.activation_bytes)


def identity(row: BlockRow, *but: str) -> tuple[object, ...]:
    """What tells a row's block from others, all but some fields."""
    names = ("block", "hidden", "heads", "seq", "tp", "micro_batch", "resolution", "window", "cm", "cz", "msa", "res")
    return tuple(getattr(row, name) for name in names if name not in but)


def left_out(rows: Sequence[BlockRow], row: BlockRow) -> Three | None:
    """(a): the row from others of its block; None where there are none."""
    for field, place in (("micro_batch", float), ("tp", lambda tp: 1 / tp)):
        key = identity(row, field)
        others = [other for other in rows if other is not row and identity(other, field) == key]
        if len(others) >= 2:
            points = sorted((place(getattr(other, field)), measured(other)) for other in others)
            at = place(getattr(row, field))
            return Three(
                *(interpolate([(x, getattr(y, name)) for x, y in points], at) for name in Three.__dataclass_fields__)
            )
    return None


class Model:
    """(b): the cost model on a device of which only the single kernels were measured."""

    def __init__(self, path: Path, device: Device):
        cluster = profiled(parse_cluster("1xh200"), path, "bf16")
        assert cluster.device.measured is not None
        self.profile = cluster.device.measured
        self.device = replace(device, measured=replace(self.profile, blocks=()))
        self.peak = peak_flops(device, "bf16")
        self.graphs: dict[tuple[object, ...], tuple[Graph, str, list[CutClass]]] = {}

    def graph(self, row: BlockRow) -> tuple[Graph, str, list[CutClass]]:
        key = identity(row, "tp", "micro_batch")
        if key not in self.graphs:
            graph, block = GRAPHS[row.block](row)
            self.graphs[key] = graph, block, list(block_cuts(graph, block))
        return self.graphs[key]

    def cost(self, row: BlockRow) -> BlockCost:
        graph, block, classes = self.graph(row)
        names = dict.fromkeys(cut.name for cut in classes) if row.tp > 1 else {}
        attention = "fused" if row.block == "gpt" else "unfused"
        division = Division(tuple(ClassCut(name, row.tp) for name in names), attention=attention)
        return divided_cost(graph, block, classes, division, item_bytes(graph, "bf16"))

    def predict(self, row: BlockRow) -> Three:
        cost, ratio = self.cost(row), float(row.micro_batch)
        forward, backward = cost.passes(self.device, self.peak, ratio)
        return Three(
            forward + self.profile.start_forward_seconds, backward + self.profile.start_backward_seconds,
            cost.saved_bytes * ratio,
        )  # fmt: skip


def gpt(row: BlockRow) -> tuple[Graph, str]:
    config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
              "n_positions": row.seq, "n_embd": row.hidden, "n_layer": 2, "n_head": row.heads,
              "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}  # fmt: skip
    return capture_config(config, seq=row.seq, dtype="bfloat16"), "transformer.h.1"


def swin(row: BlockRow) -> tuple[Graph, str]:
    assert row.resolution
    config = {"model_type": "swin", "image_size": 4 * row.resolution, "embed_dim": row.hidden, "depths": [1],
              "num_heads": [row.heads], "window_size": row.window}  # fmt: skip
    return capture_config(config, dtype="bfloat16"), "swin.encoder.layers.0.blocks.0"


def evoformer(row: BlockRow) -> tuple[Graph, str]:
    inputs = "" if (row.msa, row.res) == (128, 256) else f"-{row.msa}x{row.res}"
    graph = load_model(f"alphafold2-48-{row.cm}-{row.cz}{inputs}", None, "bfloat16")
    # Of the last pass, which is the one with a gradient; the first is alone in what it does with its input.
    return graph, graph.blocks[-3].name


GRAPHS = {"gpt": gpt, "swin": swin, "evoformer": evoformer}


def line(name: str, rows: Sequence[BlockRow], found: Sequence[Three | None]) -> str:
    """Mean absolute errors of a group of rows."""
    pairs = [(three, measured(row)) for row, three in zip(rows, found, strict=True) if three is not None]
    if not pairs:
        return f"{name:42} {0:4}"
    errors = [
        mean(abs(getattr(ours, part) / getattr(theirs, part) - 1) for ours, theirs in pairs)
        for part in ("forward", "backward", "total", "kept")
    ]
    return f"{name:42} {len(pairs):4}" + "".join(f"  {error:8.1%}" for error in errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    path = parser.parse_args().file
    print(f"{machine()}\nthe profile {path.name}; mean absolute errors\n")
    rows = [row for row in read_profile(path).blocks if row.block in GRAPHS]
    model = Model(path, parse_cluster("1xh200").device)
    ways = {
        "(a) interpolation": [left_out(rows, row) for row in rows],
        "(b) single kernels": [model.predict(row) for row in rows],
    }
    print(f"{'':42} {'rows':>4}  {'forward':>8}  {'backward':>8}  {'both':>8}  {'kept':>8}")
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups["all"].append(index)
        groups[row.block].append(index)
        if row.block == "gpt":
            groups["gpt, 2 ms and more"].append(index) if measured(row).total >= 2e-3 else None
            inside = "between" if row.micro_batch == 2 else "beyond"
            groups[f"gpt, {inside} the others"].append(index)
    for name, found in ways.items():
        for group, at in groups.items():
            print(line(f"{name}, {group}", [rows[i] for i in at], [found[i] for i in at]))
        print()


if __name__ == "__main__":
    main()
