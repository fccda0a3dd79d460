"""Memory and time of Megatron's large GPTs as measured in 2022, row by row beside the cost model's.

The rows are those that Calculon (Isaev et al., 2023) is validated with: activations and state of figure 1, activations
in percent of figure 7, seconds of an iteration of table 5 of Korthikanti et al., 2022. One set of assumptions for all
rows:

    attention    not fused: scores, softmax, dropout and the weighted sum are kernels of their own and leave their
                 results in memory (there was no flash attention); dropout of 0.1 everywhere
    device       A100 80 GB as in the preset, but large products reach 0.79 of the peak and smaller ones as much less:
                 what the best of 96 products reached on a measured H200. (Calculon's 0.95, which the preset has, is
                 meant for a sum of the times of arithmetic and memory; here the longer of the two is taken.)
    in flight    the first stage of an interleaved 1F1B: L·(1 + (p − 1)/(p·v)) layers' activations, L without chunks
    step         (c + (p − 1)/v) turns of a stage's layers, c of the head with them, the transfers that fill the
                 pipeline, the update; a transfer between nodes is divided over the tensor-parallel devices
    state        16 bytes a parameter and 2 more, because Megatron adds up gradients in float32

The published state counts the layers' matrices alone (12·h² a layer), activations the layers alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from machine import machine

from partita.cluster import Cluster, parse_cluster
from partita.cost import point_to_point_seconds, state_bytes
from partita.cost.block import BlockCost, divided_cost
from partita.cost.crossing import crossing
from partita.cost.division import ClassCut, Division
from partita.cost.precision import item_bytes, peak_flops
from partita.graph.cuts import block_cuts
from partita.plugins.capture_huggingface import capture_config

DATA = json.loads((Path(__file__).parent.parent / "tests/data/published/korthikanti2022.json").read_text())
TP, SEQ = DATA["tp"], DATA["seq"]
LAYER = "transformer.h.1"
PRECISION = "fp16"
GIB = 2**30
EFFICIENCY = 0.79


@cache
def cluster() -> Cluster:
    """Nodes of 8 A100s with the stated efficiencies."""
    found = parse_cluster("2x8xa100-80gb")
    curve = tuple((start, fraction * EFFICIENCY / 0.95) for start, fraction in found.device.matmul_efficiency)
    return found.with_kinds(lambda kind: replace(kind, device=replace(kind.device, matmul_efficiency=curve)))


@dataclass(frozen=True)
class Model:
    """A row's model with its execution: pp stages in v chunks each, micro-batches of ``micro`` samples."""

    name: str
    hidden: int
    heads: int
    layers: int
    pp: int
    chunks: int
    micro: int
    batch: int

    @property
    def layers_held(self) -> float:
        """Layers whose activations the first stage holds."""
        return self.layers * (1 + (self.pp - 1) / (self.pp * self.chunks)) if self.chunks > 1 else self.layers


def models() -> list[Model]:
    """The four models."""
    return [
        Model(name, m["hidden"], m["heads"], m["layers"], m["pp"], m["chunks"], m["micro_batch"], m["global_batch"])
        for name, m in DATA["models"].items()
    ]


@cache
def _graph(model: Model) -> Any:
    config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
              "vocab_size": DATA["vocabulary"], "n_positions": SEQ, "n_embd": model.hidden,
              "n_layer": 2, "n_head": model.heads}  # fmt: skip
    return capture_config(config, seq=SEQ, samples=model.micro, dtype="float16")


def cost(model: Model, block: str, mode: str) -> BlockCost:
    """A block of the model, cut over 8 devices, in one of the paper's modes."""
    graph = _graph(model)
    cuts = block_cuts(graph, block)
    division = Division(
        tuple(ClassCut(name, TP) for name in {cut.name: None for cut in cuts}),
        sequence=TP if "seq" in mode else 1, selective="sel" in mode, attention="unfused",
    )  # fmt: skip
    return divided_cost(graph, block, cuts, division, item_bytes(graph, PRECISION))


def layer_bytes(model: Model, mode: str) -> float:
    """What one layer keeps of one micro-batch; with full recomputation its input, whole on each device."""
    graph = _graph(model)
    if mode == "full":
        return float(crossing(graph, item_bytes(graph, PRECISION)).forward_bytes[1])
    return cost(model, LAYER, mode).saved_bytes


def activation_gib(model: Model, mode: str) -> float:
    """Of all layers on a device of the first stage."""
    return layer_bytes(model, mode) * model.layers_held / GIB


def state_gib(model: Model) -> float:
    """Parameters, float32 gradients and optimizer of a stage's layers."""
    trained = cost(model, LAYER, "none").trained * model.layers / model.pp
    return (state_bytes(PRECISION, "adam", 0, 1).total + 2) * trained / GIB


def turn_seconds(model: Model, block: str, mode: str) -> float:
    """Forward and backward of a block for one micro-batch."""
    found, device = cost(model, block, mode), cluster().device
    peak, link = peak_flops(device, PRECISION), cluster().kind.intra_node
    group = {"tensor": (TP, link)}
    forward = found.compute_seconds(device, peak, 1.0)
    down = found.reduction_seconds(TP, link, 1.0) + found.exchange_seconds("forward", group, 1.0)
    up = found.entry_seconds(TP, link, 1.0) + found.exchange_seconds("backward", group, 1.0)
    again = forward + down if mode == "full" else found.repeated_seconds(device, peak, 1.0)
    return 3 * forward + down + up + again


def iteration_seconds(model: Model, mode: str) -> float:
    """A step, by the interleaved pipeline's formula."""
    micro_batches = model.batch // model.micro
    stage = turn_seconds(model, LAYER, mode) * model.layers / model.pp
    head = turn_seconds(model, "head", mode)
    if model.pp == 1:
        head += turn_seconds(model, "embedding", mode)
    hop = 2 * point_to_point_seconds(model.micro * SEQ * model.hidden * 2 / TP, cluster().kind.inter_node)
    device, per = cluster().device, state_bytes(PRECISION, "adam", 0, 1)
    trained = cost(model, LAYER, mode).trained * model.layers / model.pp
    moved = trained * (2 * per.optimizer + 2 * per.parameters + per.gradients)
    update = moved / (device.memory_bytes_per_second * device.memory_efficiency)
    hops = (model.pp * model.chunks - 1) * hop
    return (micro_batches + (model.pp - 1) / model.chunks) * stage + micro_batches * head + hops + update


def memory_rows() -> list[tuple[str, str, float, float]]:
    """(model, mode, our GiB, the paper's) of figure 1."""
    return [
        (model.name, mode, activation_gib(model, mode), found["activations"])
        for model in models()
        for mode, found in DATA["memory_gib"][model.name].items()
    ]


def percent_rows() -> list[tuple[str, str, float, float]]:
    """(model, mode, our percent of what no recomputation keeps, the paper's) of figure 7."""
    return [
        (model.name, mode, 100 * layer_bytes(model, mode) / layer_bytes(model, "none"), found)
        for model in models()
        for mode, found in DATA["activation_percent"][model.name].items()
    ]


def time_rows() -> list[tuple[str, str, float, float]]:
    """(model, mode, our seconds, the paper's) of table 5."""
    return [
        (model.name, mode, iteration_seconds(model, mode), found)
        for model in models()
        for mode, found in DATA["iteration_seconds"][model.name].items()
    ]


def show(title: str, rows: list[tuple[str, str, float, float]], unit: str) -> None:
    """A table with each row's error, and the mean and the largest of them."""
    print(f"\n{title}\n{'model':14} {'mode':8} {'ours':>10} {'published':>10}   error")
    errors = [ours / theirs - 1 for _, _, ours, theirs in rows]
    for (name, mode, ours, theirs), error in zip(rows, errors, strict=True):
        print(f"{name:14} {mode:8} {ours:10.2f} {theirs:10.2f} {error:+8.2%}")
    sizes = [abs(error) for error in errors]
    print(f"{unit}: mean of the errors' sizes {sum(sizes) / len(sizes):.2%}, largest {max(sizes):.2%}")


def main() -> None:
    print(machine())
    print(__doc__)
    show("Activations on a device of the first stage (figure 1)", memory_rows(), "GiB")
    show("Activations of a layer (figure 7)", percent_rows(), "percent of no recomputation")
    state = [(m.name, "", state_gib(m), DATA["memory_gib"][m.name]["none"]["params_and_optimizer"]) for m in models()]
    show("Parameters, gradients and optimizer (figure 1)", state, "GiB")
    show("Iteration (table 5)", time_rows(), "seconds")


if __name__ == "__main__":
    main()
