"""Measured steps of GPTs on A100s, row by row beside the planner's prediction, with efficiencies fitted on a fifth.

    python benchmarks/vtrain_rows.py                  # the rows in tests/data/published/vtrain
    python benchmarks/vtrain_rows.py --also rows.csv  # and other rows of the same form, which the fit doesn't see

The rows are vTrain's (Bang et al., MICRO 2024): Megatron-LM on one node of eight A100s and on up to 64 nodes. Of each
file a fifth of the rows, drawn with a fixed seed, is what the fit sees; errors are those of the rest. Fitted are
figures of the cluster that a preset states: how much of the peak a large product reaches and from which size on, of
attention, of the memory's bandwidth and of the links, the seconds between two ops and a message's latency inside a
node. A fit of one node is the start for those of many, where only the links and the fractions are fitted again.

The rows don't say whether activations were computed again. On one node they were not: the models are small, and with
it the fastest rows would need more than the peak. On many nodes they were, of every layer: with it large products
reach what they reach on one node, without it two thirds of that.

A table look-up is the other way to predict: the nearest row, by the logarithms of all sizes, among those that the fit
sees. Regret: of all measured ways to train one model on as many devices with one batch, the time of the one that is
predicted to be fastest, over the time of the fastest.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from pathlib import Path

import numpy as np
from machine import machine
from scipy.optimize import minimize

from partita.cluster import Cluster, Kind, parse_cluster
from partita.cost.alike import alike
from partita.planner.joint.formula import step_seconds
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way, cut
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem

DATA = Path(__file__).parent.parent / "tests/data/published/vtrain"
VOCABULARY = 51200
# Devices of a node.
NODE = 8
# Of the products' sizes (GFLOP) at which the curve of their efficiency has its steps.
SIZES = tuple(2.0**power for power in range(11, -7, -1))


@dataclass(frozen=True)
class Row:
    """A measured run: ``devices``, the batch, the model's sizes, tp, dp, pp, and milliseconds of an iteration."""

    devices: int
    batch: int
    micro: int
    hidden: int
    heads: int
    layers: int
    seq: int
    tp: int
    dp: int
    pp: int
    milliseconds: float

    @property
    def key(self) -> tuple[int, ...]:
        """What is trained, on how many devices: runs of one key are choices of one user."""
        return self.devices, self.batch, self.hidden, self.layers, self.seq


COLUMNS = (
    "# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length",
    "tensor parallelism", "data parallelism", "pipeline parallelism",
)  # fmt: skip


def read(path: Path) -> list[Row]:
    """The rows of a file."""
    with path.open(newline="") as file:
        return [
            Row(*(int(row[name]) for name in COLUMNS), float(row["iteration time (ms)"]))
            for row in csv.DictReader(file)
        ]


@cache
def model(hidden: int, heads: int, layers: int, seq: int) -> Pricing:
    """The model's costs, which don't depend on the cluster's figures, with a cluster that doesn't matter."""
    config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
              "vocab_size": VOCABULARY, "n_positions": seq, "n_embd": hidden, "n_layer": layers,
              "n_head": heads}  # fmt: skip
    graph = capture_config(config, seq=seq, samples=1, dtype="float16")
    return Pricing(Problem(graph, Figures().cluster(1), 1, "fp16", "adam", "megatron"), alike(graph))


@dataclass(frozen=True)
class Figures:
    """What is fitted. ``product`` of the peak is what a product without end would reach, half of it one of ``half``
    GFLOP; ``near`` and ``far`` are fractions of the links inside a node and between nodes."""

    product: float = 0.7
    half_gflop: float = 4.0
    attention: float = 0.3
    memory: float = 0.6
    op_microseconds: float = 70.0
    near: float = 0.5
    far: float = 0.5
    near_microseconds: float = 30.0
    far_microseconds: float = 20.0

    def cluster(self, devices: int) -> Cluster:
        """As many A100s, eight to a node, that reach this."""
        found = parse_cluster(f"{devices}xa100-80gb" if devices <= NODE else f"{devices // NODE}x{NODE}xa100-80gb")
        curve = tuple((size, self.product * size / (size + self.half_gflop)) for size in SIZES)
        device = replace(
            found.device, matmul_efficiency=(*curve, (0.0, curve[-1][1])), attention_efficiency=self.attention,
            memory_efficiency=self.memory, op_seconds=self.op_microseconds * 1e-6,
        )  # fmt: skip
        near = replace(found.kind.intra_node, efficiency=self.near, latency_seconds=self.near_microseconds * 1e-6)
        far = replace(found.kind.inter_node, efficiency=self.far, latency_seconds=self.far_microseconds * 1e-6)
        return found.with_kinds(lambda _: Kind(device, near, far))


def predicted(rows: Sequence[Row], figures: Figures) -> np.ndarray:
    """Milliseconds of each row's iteration by the planner's formula, layers dealt out evenly as Megatron does."""
    priced: dict[tuple[int, ...], Pricing] = {}
    found = []
    for row in rows:
        key = (row.devices, row.batch, row.hidden, row.heads, row.layers, row.seq)
        if key not in priced:
            known = model(row.hidden, row.heads, row.layers, row.seq)
            asked = replace(known.problem, cluster=figures.cluster(row.devices), global_batch=row.batch)
            priced[key] = known.on(asked)
        again, count = "full" if row.devices > NODE else "none", row.batch // row.dp // row.micro
        way = Way(priced[key], Uniform(row.pp, row.tp, row.dp, 0, again, row.micro, count))
        share = row.layers // row.pp
        bounds = (0, *(1 + share * stage for stage in range(1, row.pp)), row.layers + 2)
        found.append(1e3 * step_seconds(way.table, cut(bounds)))
    return np.array(found)


def errors(rows: Sequence[Row], figures: Figures) -> np.ndarray:
    """Of each row, predicted over measured, less 1."""
    return predicted(rows, figures) / np.array([row.milliseconds for row in rows]) - 1


def fitted(rows: Sequence[Row], start: Figures, names: Sequence[str]) -> Figures:
    """The figures with which the rows' mean error is least; only those named are changed, fractions stay under 1."""

    def figures(point: Sequence[float]) -> Figures:
        values = {name: getattr(start, name) * exp(x) for name, x in zip(names, point, strict=True)}
        return replace(
            start, **{name: min(value, 1.0) if name in FRACTIONS else value for name, value in values.items()}
        )

    point = np.zeros(len(names))
    for _ in range(3):
        simplex = np.vstack([point, point + 0.3 * np.eye(len(names))])
        options = {"initial_simplex": simplex, "maxfev": 60 * len(names), "xatol": 1e-3, "fatol": 1e-5}
        point = minimize(
            lambda x: np.abs(errors(rows, figures(x))).mean(), point, method="Nelder-Mead", options=options
        ).x
    return figures(point)


FRACTIONS = ("product", "attention", "memory", "near", "far")
ONE_NODE = ("product", "half_gflop", "attention", "memory", "op_microseconds", "near", "near_microseconds")
# Eleven rows can't tell a message's latency between nodes from all else: it stays the preset's.
MANY_NODES = ("product", "attention", "memory", "near", "far")


def looked_up(known: Sequence[Row], rows: Sequence[Row]) -> np.ndarray:
    """Of each row, the nearest known row's time over its own, less 1."""

    def place(row: Row) -> np.ndarray:
        return np.log([row.devices, row.batch, row.micro, row.hidden, row.layers, row.seq, row.tp, row.dp, row.pp])

    places = np.array([place(row) for row in known])
    nearest = [known[int(((places - place(row)) ** 2).sum(axis=1).argmin())] for row in rows]
    return np.array([near.milliseconds / row.milliseconds - 1 for near, row in zip(nearest, rows, strict=True)])


def regret(rows: Sequence[Row], choose: Callable[[Sequence[Row]], np.ndarray]) -> list[float]:
    """Of each model and number of devices with several measured ways: the chosen one's time over the best, less 1."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    found = []
    for group in groups.values():
        if len(group) > 1:
            picked = group[int(np.argmin(choose(group)))]
            found.append(picked.milliseconds / min(row.milliseconds for row in group) - 1)
    return found


def show(title: str, seen: Sequence[Row], rows: Sequence[Row], figures: Figures) -> None:
    """Errors, those of a look-up beside them, and regrets."""
    found, other = np.abs(errors(rows, figures)), np.abs(looked_up(seen, rows))
    regrets = regret(rows, lambda group: predicted(group, figures))
    print(f"\n{title}: {len(rows)} rows; the fit saw {len(seen)} others")
    print(f"  mean error {found.mean():.2%}, median {np.median(found):.2%}, worst {found.max():.2%}")
    print(f"  nearest row instead: mean error {other.mean():.2%}, worst {other.max():.2%}")
    if regrets:
        print(
            f"  regret of the predicted best in {len(regrets)} choices: mean {np.mean(regrets):.2%}, "
            f"worst {max(regrets):.2%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--also", type=Path, action="append", default=[], help="rows that are predicted too")
    given = parser.parse_args()
    print(machine())
    start = Figures()
    known: dict[bool, tuple[list[Row], Figures]] = {}
    for name, many, names in (("single_even", False, ONE_NODE), ("multi_even", True, MANY_NODES)):
        rows = read(DATA / f"{name}.csv")
        order = random.Random(7).sample(range(len(rows)), len(rows))
        count = len(rows) // 5
        seen, rest = ([rows[index] for index in part] for part in (order[:count], order[count:]))
        start = fitted(seen, start, names)
        known[many] = (seen, start)
        print(f"\n{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in vars(start).items()))
        show(name, seen, rest, start)
    for path in given.also:
        rows = read(path)
        for many in (False, True):
            if some := [row for row in rows if (row.devices > NODE) == many]:
                show(f"{path.name}, {'several nodes' if many else 'one node'}", known[many][0], some, known[many][1])


if __name__ == "__main__":
    main()
