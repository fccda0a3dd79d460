"""The five models of UniAP on its clusters: plan, search beside the published minutes, and what joint planning gains.

UniAP (arXiv 2307.16375, section 4 and its tables) planned and ran them on real clusters; here the steps are simulated,
on devices of which only data sheets are known, so samples/s beside the published ones tell how far off those are and no
more. What counts is a ratio of two simulated steps of one run: the chosen plan against the best plan of fewer choices.

* uniform: one shape (dp, tp, ZeRO) for all stages and one recomputation for all blocks, the stages' cuts free.
* inter-layer only: one device a stage, dp = tp = 1. Intra-layer only: one stage, all options of each block.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from machine import machine

from partita.cli.model import load_model
from partita.cluster import Cluster, parse_cluster
from partita.cost.alike import alike
from partita.cost.precision import compute_dtype
from partita.errors import PlanError
from partita.planner.joint.engine import Engine
from partita.planner.joint.plan import Solved, solve
from partita.planner.joint.price import Pricing
from partita.planner.joint.space import Family
from partita.planner.joint.uniform import uniform_families
from partita.problem import Problem
from partita.ranking import ranked
from partita.simulate.predict import predicted

GIB = 2**30
# Sizes of the paper's table of models; heads, patch and window are those of the published models they scale up.
MODELS = {
    "BERT-Huge": {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 1280, "num_hidden_layers": 32,
        "num_attention_heads": 20, "intermediate_size": 5120, "vocab_size": 30522, "max_position_embeddings": 512,
    },
    "T5-Large": {
        "model_type": "t5", "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16,
        "vocab_size": 32128, "n_positions": 512, "decoder_start_token_id": 0,
    },
    "ViT-Huge": {
        "model_type": "vit", "hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16,
        "intermediate_size": 5120, "image_size": 224, "patch_size": 16, "num_labels": 1000,
    },
    "Swin-Huge": {
        "model_type": "swin", "embed_dim": 320, "depths": [2, 2, 42, 2], "num_heads": [10, 20, 40, 80],
        "window_size": 7, "image_size": 224, "patch_size": 4, "num_labels": 1000,
    },
    "Llama-7B": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
    },
}  # fmt: skip
TOKENS = {"BERT-Huge": 512, "T5-Large": 512, "Llama-7B": 2048}


@dataclass(frozen=True)
class Row:
    """One run of the paper: samples/s and minutes of search as published (0.0: not known here)."""

    model: str
    cluster: str
    batch: int
    precision: str
    samples_per_second: float
    minutes: float


ROWS = (
    Row("BERT-Huge", "A", 32, "fp32", 33.46, 0.37),
    Row("T5-Large", "A", 16, "fp32", 23.29, 0.89),
    Row("ViT-Huge", "A", 128, "fp32", 109.51, 0.57),
    Row("Swin-Huge", "A", 128, "fp32", 67.96, 2.16),
    Row("BERT-Huge", "B", 16, "fp32", 10.77, 0.0),
    Row("T5-Large", "B", 8, "fp32", 9.01, 0.0),
    Row("ViT-Huge", "B", 64, "fp32", 45.58, 0.0),
    Row("Swin-Huge", "B", 32, "fp32", 19.08, 0.0),
    Row("Llama-7B", "C", 8, "bf16", 4.63, 0.0),
)
ASSUMED = """Clusters, as far as the paper states them; what is assumed is marked with *.
  A  1 node of 8 V100 32 GB, NVLink. Preset v100-32gb.
  B  2 nodes of 4 TITAN Xp 12 GB, 10 Gbit/s between nodes, shared by a node's devices. 12.15 TFLOP/s fp32, 548 GB/s
     (data sheet); PCIe 3 inside a node, 16 GB/s*; all efficiencies as for the V100*.
  C  1 node of 8 A100 40 GB on PCIe 4, 32 GB/s*. Preset a100-40gb otherwise.
Precision*: fp32 on A and B, bf16 on C. Adam. Global batches* 32, 16, 128, 128 on A, 16, 8, 64, 32 on B, 8 on C.
"""


def cluster(name: str) -> Cluster:
    """Cluster A, B or C."""
    if name == "A":
        return parse_cluster("1x8xv100-32gb", None)
    if name == "C":
        found = parse_cluster("1x8xa100-40gb", None)
        kind = found.kinds[0]
        return replace(found, kinds=(replace(kind, intra_node=replace(kind.intra_node, bytes_per_second=32e9)),))
    kind = parse_cluster("2x4xv100-32gb", None).kinds[0]
    titan = replace(
        kind.device, name="titan-xp", memory_bytes=12 * GIB, peak_flops={"float32": 12.15e12},
        memory_bytes_per_second=547.7e9,
    )  # fmt: skip
    inside, between = replace(kind.intra_node, bytes_per_second=16e9), replace(kind.inter_node, bytes_per_second=1.25e9)
    return Cluster.of("2x4xtitan-xp", (4, 4), titan, inside, between, node_bytes_per_second=1.25e9)


def problem(row: Row, folder: Path) -> Problem:
    """What a row asks; all that Partita's own runtime can run is offered."""
    config = folder / f"{row.model}.json"
    config.write_text(json.dumps(MODELS[row.model]))
    there = cluster(row.cluster)
    # As many samples as devices: pieces of these can stand on all of them.
    graph = load_model(str(config), TOKENS.get(row.model), compute_dtype(row.precision), there.devices)
    return Problem(graph, there, row.batch, precision=row.precision, target="partita")


def least(stated: Problem, families: Sequence[Family], pricing: Pricing) -> float | None:
    """Simulated step seconds of the best plan of these families; None where none fits."""
    engine = Engine(pricing, families=families)
    searched = engine.search()
    if searched.best is None:
        return None
    plan = Solved(engine, searched, searched.best).plan(searched.best)
    return predicted(stated.graph, plan, stated.cluster).predicted.step_seconds


def fewer_choices(stated: Problem) -> dict[str, float | None]:
    """Simulated step seconds of the best plans of each smaller space."""
    pricing = Pricing(stated, alike(stated.graph))
    alone, devices = uniform_families(pricing), stated.cluster.devices
    spaces = {
        "uniform": alone,
        "inter": [family for family in alone if family.stages == devices],
        "intra": [family for family in pricing.families if family.stages == 1],
    }
    return {name: least(stated, families, pricing) if families else None for name, families in spaces.items()}


def words(plan) -> str:
    """The stages of a plan in one line: equal ones counted; blocks, dp·tp, ZeRO, blocks computed again."""
    found: list[list] = []
    for stage in plan.stages:
        again = sum(strategy.recompute != "none" for strategy in stage.strategies)
        zero = stage.strategies[0].zero
        each = f"{len(stage.strategies)}b {stage.dp}·{stage.tp}" + f" Z{zero}" * bool(zero) + f" r{again}" * bool(again)
        if found and found[-1][1] == each:
            found[-1][0] += 1
        else:
            found.append([1, each])
    schedule = f"{plan.stages[0].micro_batches} micro-batches"
    return " | ".join((f"{count}× " if count > 1 else "") + each for count, each in found) + f", {schedule}"


def main() -> None:
    """One row a run, each with its plan below."""
    print(f"{machine()}\n\n{ASSUMED}")
    print(
        "samples/s simulated here beside those published (other hardware); gain: simulated step of the best plan of a"
    )
    print("smaller space over the chosen plan's; – : nothing of it fits. Seconds are of this process (CPU) and wall.\n")
    print(
        f"{'model':9}  on  {'batch':>5}  {'search':>14}  {'with ranking':>14}  {'published':>9}  {'samples/s':>9}  "
        f"{'published':>9}  {'uniform':>8}  {'inter':>7}  {'intra':>7}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            stated = problem(row, Path(folder))
            try:
                wall, own = time.perf_counter(), time.process_time()
                found = solve(stated)
                searched = time.process_time() - own, time.perf_counter() - wall
                plan = ranked(found)
                whole = time.process_time() - own, time.perf_counter() - wall
                smaller = fewer_choices(stated)
            except PlanError as error:
                print(f"{row.model:9}  {row.cluster}   {row.batch:5}  {str(error).splitlines()[0]}", flush=True)
                continue
            step = plan.predicted.step_seconds
            gains = [f"{'–' if s is None else f'{s / step:.3f}×':>8}" for s in smaller.values()]
            minutes = f"{row.minutes * 60:7.0f} s" if row.minutes else f"{'':9}"
            print(
                f"{row.model:9}  {row.cluster}   {row.batch:5}  {searched[0]:5.2f} / {searched[1]:4.2f} s  "
                f"{whole[0]:5.2f} / {whole[1]:4.2f} s  {minutes}  {row.batch / step:9.2f}  "
                f"{row.samples_per_second:9.2f}  {gains[0]}  {gains[1][1:]}  {gains[2][1:]}\n           {words(plan)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
