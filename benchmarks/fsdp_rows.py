"""Published FSDP runs, row by row beside the planner's prediction: MPT (MosaicML) and Llama 3.1 (torchtitan).

    python benchmarks/fsdp_rows.py          # both tables
    python benchmarks/fsdp_rows.py --rows   # and every row

FULL_SHARD is ZeRO-3, SHARD_GRAD_OP is ZeRO-2; checkpointing is full recomputation. Both libraries move weights while
they compute; the cost model adds the two up.

MPT is GPT-2's structure with other sizes: the parameters that a row states agree to the last one. Predicted with the
preset's figures, which have seen none of the rows, and with two figures fitted on a fifth of the rows of a kind of
device: what of the peak a large product reaches, and attention. (Seven or thirteen rows don't tell more apart: a
product of 8 GFLOP reaches half as much as a large one, and the memory 0.8 of its bandwidth.) A table look-up takes the
nearest row that the fit saw: its seconds, or, which is harder to beat, its FLOP/s.

Of torchtitan's rows those in float8 and those with asynchronous tensor parallelism can't be stated: no preset has a
float8 peak, and products that overlap with their own collectives have no place in the formula. Selective checkpointing
there saves every other product, and lies between no recomputation and full. The rows are predicted with the preset's
figures and with those that were fitted on MPT's H100 rows.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from scipy.optimize import minimize

from partita.cluster import Cluster, parse_cluster
from partita.cost.alike import alike
from partita.cost.flops import block_flops
from partita.planner.joint.formula import step_seconds
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way, cut
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem

DATA = Path(__file__).parent.parent / "tests/data/published"
# Layers, width and heads of MPT's sizes; its vocabulary is padded.
MPT = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
MPT_WORDS = 50368
LLAMA = {
    "llama3.1-8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "llama3.1-70b": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    },
}  # fmt: skip
NODE = 8
# GFLOP of a product at which the curve of its efficiency has a step.
SIZES = tuple(2.0**power for power in range(13, -5, -1))
NAMES = ("product", "attention")


@dataclass(frozen=True)
class Row:
    """A measured run. ``again``: what the row says of checkpointing; ``copies``: data-parallel ones of tp devices."""

    model: str
    device: str
    copies: int
    tp: int
    seq: int
    micro: int
    micro_batches: int
    zero: int
    again: str
    seconds: float
    parameters: int | None
    words: str

    @property
    def devices(self) -> int:
        return self.copies * self.tp

    @property
    def samples(self) -> int:
        return self.copies * self.micro * self.micro_batches


@dataclass(frozen=True)
class Figures:
    """Parts of the peaks; half of ``product`` is what a product of ``half_gflop`` reaches."""

    product: float = 0.7
    attention: float = 0.4
    half_gflop: float = 8.0
    memory: float = 0.8


def mpt_rows() -> tuple[list[Row], list[str]]:
    """MPT's rows, and those that can't be stated, with the reason."""
    rows, left = [], []
    for row in _read("mosaic-mpt/throughput_even.csv"):
        name = f"MPT {row['model']} {row['gpus']}x{row['gpu']} row {row['row']}"
        if row["precision"] == "amp_fp8":
            left.append(f"{name}: float8, of which no preset has a peak")
            continue
        seq, devices, micro = int(row["sequence_length"]), int(row["gpus"]), int(row["microbatch_size"])
        batch = int(row["global_batch"])
        rows.append(
            Row(
                row["model"], row["gpu"].replace("_", "-"), devices, 1, seq, micro, batch // (devices * micro),
                3 if row["sharding"] == "FULL_SHARD" else 2,
                "full" if row["activation_checkpointing"] == "True" else "none",
                batch * seq / float(row["tokens_per_s"]), int(row["params"]), name,
            )
        )  # fmt: skip
    return rows, left


def titan_rows() -> tuple[list[Row], list[str]]:
    """torchtitan's rows, and those that can't be stated, with the reason."""
    rows, left = [], []
    for number, row in enumerate(_read("torchtitan/throughput.csv")):
        tp, seq, devices = int(row["tp"]), int(row["sequence_length"] or 8192), int(row["gpus"])
        compiled = ", compiled" if row["compile"] == "yes" else ""
        name = f"{row['model']} {devices}x{row['gpu']} tp={tp} seq {seq}{compiled}, row {number}"
        if row["float8"] != "no":
            left.append(f"{name}: float8, of which no preset has a peak")
        elif row["async_tp"] == "yes":
            left.append(f"{name}: products that overlap with their own collectives")
        else:
            micro = int(row["local_batch"])
            seconds = micro * seq / (float(row["tokens_per_s_per_gpu"]) * tp)
            rows.append(
                Row(row["model"], f"{row['gpu']}-80gb", devices // tp, tp, seq, micro, 1, 3, row["checkpointing"],
                    seconds, None, name)
            )  # fmt: skip
    return rows, left


def _read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def model(name: str, seq: int) -> Pricing:
    """The model's costs, which don't depend on the cluster's figures, with a cluster that doesn't matter."""
    config: dict[str, Any]
    if name in MPT:
        layers, width, heads = MPT[name]
        config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh", "vocab_size": MPT_WORDS,
                  "n_positions": seq, "n_embd": width, "n_layer": layers, "n_head": heads, "attn_pdrop": 0,
                  "embd_pdrop": 0, "resid_pdrop": 0}  # fmt: skip
    else:
        config = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
                  "max_position_embeddings": seq, **LLAMA[name]}  # fmt: skip
    graph = capture_config(config, seq=seq, samples=1, dtype="bfloat16")
    return Pricing(Problem(graph, parse_cluster("1xh100-80gb"), 1, "bf16", "adam", "partita"), alike(graph))


def cluster_of(row: Row, figures: Figures | None) -> Cluster:
    """The row's machine, by the preset's figures or by those given."""
    devices = row.devices
    found = parse_cluster(f"{devices}x{row.device}" if devices <= NODE else f"{devices // NODE}x{NODE}x{row.device}")
    if figures is None:
        return found
    curve = tuple((size, figures.product * size / (size + figures.half_gflop)) for size in SIZES)
    device = replace(
        found.kind.device, matmul_efficiency=(*curve, (0.0, curve[-1][1])), attention_efficiency=figures.attention,
        memory_efficiency=figures.memory,
    )  # fmt: skip
    return found.with_kinds(lambda kind: replace(kind, device=device))


def predicted(row: Row, figures: Figures | None, again: bool | None = None) -> float:
    """Seconds of the row's step by the planner's numbers."""
    known = model(row.model, row.seq)
    back = row.again == "full" if again is None else again
    uniform = Uniform(1, row.tp, row.copies, row.zero, "full" if back else "none", row.micro, row.micro_batches)
    asked = replace(known.problem, cluster=cluster_of(row, figures), global_batch=row.samples)
    way = Way(known.on(asked), uniform)
    return step_seconds(way.table, cut((0, way.table.blocks)))


def errors(rows: Sequence[Row], figures: Figures | None) -> np.ndarray:
    """Of each row, predicted over measured, less 1."""
    return np.array([predicted(row, figures) / row.seconds - 1 for row in rows])


def fitted(rows: Sequence[Row], start: Figures) -> Figures:
    """The figures with which the rows' mean error is least; parts of a peak stay under 1."""

    def figures(point: Sequence[float]) -> Figures:
        values = {name: min(1.0, getattr(start, name) * exp(x)) for name, x in zip(NAMES, point, strict=True)}
        return replace(start, **values)

    point = np.zeros(len(NAMES))
    for _ in range(2):
        options = {"initial_simplex": np.vstack([point, point + 0.3 * np.eye(len(NAMES))]), "maxfev": 60}
        point = minimize(
            lambda x: np.abs(errors(rows, figures(x))).mean(), point, method="Nelder-Mead", options=options
        ).x
    return figures(point)


@cache
def flops(row: Row) -> float:
    """Of the row's step, three for each of the forward pass's."""
    graph = model(row.model, row.seq).problem.graph
    return 3.0 * row.samples * sum(block_flops(graph, block.name) for block in graph.blocks)


def looked_up(known: Sequence[Row], rows: Sequence[Row], rate: bool) -> np.ndarray:
    """Of each row, the error of the nearest known row's seconds; ``rate``: of its FLOP/s a device."""

    def place(row: Row) -> np.ndarray:
        layers, width, _ = MPT[row.model]
        return np.log([row.devices, row.micro, row.micro_batches, width, layers, row.seq])

    found = []
    places = np.array([place(row) for row in known])
    for row in rows:
        near = known[int(((places - place(row)) ** 2).sum(axis=1).argmin())]
        seconds = near.seconds * (flops(row) / row.devices) / (flops(near) / near.devices) if rate else near.seconds
        found.append(seconds / row.seconds - 1)
    return np.array(found)


def line(name: str, found: np.ndarray) -> str:
    sizes = np.abs(found)
    return f"  {name:44} mean {sizes.mean():7.2%}, median {np.median(sizes):7.2%}, worst {sizes.max():8.2%}"


def show_mpt(every: bool) -> Figures:
    """Each kind of device; the figures of the last one."""
    rows, left = mpt_rows()
    for row in rows:
        graph = model(row.model, row.seq).problem.graph
        stated = sum(graph.tensor[name].elements for block in graph.blocks for name in block.parameters)
        assert stated == row.parameters, (row.words, stated, row.parameters)
    for kind in ("a100", "h100"):
        some = [row for row in rows if row.device.startswith(kind)]
        order = random.Random(7).sample(range(len(some)), len(some))
        seen, rest = ([some[i] for i in part] for part in (order[: len(some) // 5], order[len(some) // 5 :]))
        figures = fitted(seen, Figures())
        print(f"\nMPT on {kind}: {len(rest)} rows; the fit saw {len(seen)} others")
        print("  " + ", ".join(f"{key} {value:.4g}" for key, value in vars(figures).items()))
        print(line("the preset's figures", errors(rest, None)))
        print(line("fitted on a fifth", errors(rest, figures)))
        print(line("nearest row's seconds", looked_up(seen, rest, rate=False)))
        print(line("nearest row's FLOP/s", looked_up(seen, rest, rate=True)))
        if every:
            for row in rest:
                ours, by_preset = predicted(row, figures), predicted(row, None)
                print(f"  {row.words:36} {row.seq:6} tokens  measured {row.seconds:8.3f} s, fitted {ours:8.3f} s "
                      f"{ours / row.seconds - 1:+7.1%}, preset {by_preset / row.seconds - 1:+7.1%}")  # fmt: skip
    print(f"\n{len(left)} rows aren't stated:\n  " + "\n  ".join(left))
    return figures


def show_titan(figures: Figures) -> None:
    rows, left = titan_rows()
    print("\ntorchtitan; of selective checkpointing no recomputation and full, between which it lies")
    for row in rows:
        texts = []
        for name, given in (("preset", None), ("MPT's H100", figures)):
            ways = [row.again == "full"] if row.again == "full" else [False, True]
            found = [predicted(row, given, again) for again in ways]
            texts.append(f"{name} " + " to ".join(f"{s:.3f} s ({s / row.seconds - 1:+.1%})" for s in found))
        print(f"  {row.words:54} measured {row.seconds:7.3f} s; " + "; ".join(texts))
    print(f"\n{len(left)} rows aren't stated:\n  " + "\n  ".join(left))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="every row of MPT")
    given = parser.parse_args()
    print(machine())
    show_titan(show_mpt(given.rows))


if __name__ == "__main__":
    main()
