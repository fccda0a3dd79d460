"""Seconds of the joint search by layers, devices and strategies, and of the two command lines that must feel instant.

A search is what happens after the model's graph exists, to the proven optimum; the ranking by simulation that follows
it in ``partita plan`` is part of the whole processes. Each search is the second of its process: the first loads
compiled code, and is timed apart. Seconds of the process (CPU) and of the wall: other work slows the second down.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from machine import machine

from partita.cli.options import problem
from partita.cost.alike import alike
from partita.planner.joint.engine import Engine, Searched
from partita.planner.joint.price import Pricing
from partita.planner.joint.space import Family
from partita.problem import Problem

# What is asked of the search: (what, model, cluster, global batch, seconds).
ROWS = (
    ("32 layers", "gpt3-6.7b", "1x8xa100-80gb", 512, 0.5),
    ("32 layers", "gpt3-6.7b", "2x8xa100-80gb", 512, 0.5),
    ("32 layers", "gpt3-6.7b", "4x8xa100-80gb", 512, 0.5),
    ("48 unequal", "swin", "8x8xa100-80gb", 1024, 2.0),
    ("98 layers", "gpt3-175b", "128x8xa100-80gb", 1024, 5.0),
)
SWIN = {
    "model_type": "swin", "embed_dim": 320, "depths": [2, 2, 42, 2], "num_heads": [10, 20, 40, 80],
    "window_size": 7, "image_size": 224, "patch_size": 4, "num_labels": 1000,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
LAYERS = (8, 16, 32, 64, 128)
NODES = (1, 2, 4, 8, 16, 32, 64, 128)
STRATEGIES = ("recomputation", "+ ZeRO", "+ tp", "+ unlike stages", "+ mixed forms")
PROCESSES = (
    ("--help",),
    ("plan", "gpt3-6.7b", "--cluster", "4x8xa100-80gb", "--global-batch", "512", "--json"),
    ("plan", "gpt3-6.7b", "--cluster", "4x8xa100-80gb", "--global-batch", "512", "--target", "partita", "--json"),
)


def stated(model: str, cluster: str, batch: int, target: str = "partita") -> Problem:
    """A problem of the tables."""
    return problem(model, cluster, None, batch, None, "bf16", "adam", None, target, ())


def searched(asked: Problem, strategies: str = STRATEGIES[-1]) -> tuple[Searched, float, float]:
    """The outcome of a search, its seconds of the process and of the wall."""
    for _ in range(2):
        wall, own = time.perf_counter(), time.process_time()
        pricing = Pricing(asked, alike(asked.graph))
        families = None if strategies == STRATEGIES[-1] else limited(pricing.families, STRATEGIES.index(strategies))
        found = Engine(pricing, families=families).search()
        took = time.process_time() - own, time.perf_counter() - wall
    return found, *took


def limited(families: Sequence[Family], level: int) -> list[Family]:
    """The families with the strategies of a level and those before it; none mixes forms."""
    found = []
    for family in families:
        shapes = tuple(
            shape for shape in family.shapes
            if not shape.mixed and (level >= 1 or shape.zero == 0) and (level >= 2 or shape.tp == 1)
        )  # fmt: skip
        held = family.tied is None or (family.tied[1] == "tensor" and family.tied[0] in {s.tp for s in shapes})
        if shapes and held and (family.stages is not None or level >= 3):
            options = tuple(option for option in family.options if option.form == "tensor")
            found.append(replace(family, shapes=shapes, options=options))
    return found


def line(what: str, found: Searched, own: float, wall: float, rest: str = "") -> None:
    """A row of any table."""
    step = "nothing fits" if found.best is None else f"{found.best.seconds:.4f} s a step"
    proof = "proven" if found.optimal else "not proven"
    print(
        f"{what:38}  {own:5.2f} s  {wall:5.2f} s  {found.considered:6,} considered, {found.pruned:4,} by a bound; "
        f"{step}, {proof}{rest}",
        flush=True,
    )


def asked_rows(folder: Path) -> None:
    """What the search must do in its time."""
    print(f"{'search':38}  {'process':>7}  {'wall':>7}")
    for target in ("deepspeed", "partita"):
        for what, model, cluster, batch, aim in ROWS:
            name = str(folder / "swin.json") if model == "swin" else model
            found, own, wall = searched(stated(name, cluster, batch, target))
            devices = cluster.rsplit("x", 1)[0]
            line(f"{what} on {devices}, {target}", found, own, wall, f"; aim {aim} s")


def curves(folder: Path) -> None:
    """How the seconds grow."""
    print("\nby layers: width 4096, 4x8 devices, batch 256, partita")
    for layers in LAYERS:
        config = folder / f"llama-{layers}.json"
        config.write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
        line(f"{layers} layers", *searched(stated(str(config), "4x8xa100-80gb", 256)))
    print("\nby devices: 32 layers, width 4096, batch 1024, partita")
    for nodes in NODES:
        line(f"{8 * nodes} devices", *searched(stated("gpt3-6.7b", f"{nodes}x8xa100-80gb", 1024)))
    print("\nby strategies: 32 layers, width 4096, 4x8 devices of 40 GB, batch 256, partita")
    for strategies in STRATEGIES:
        line(strategies, *searched(stated("gpt3-6.7b", "4x8xa100-40gb", 256), strategies))


def process(arguments: Sequence[str], cache: str | None = None) -> tuple[float, float]:
    """Seconds of a whole process, its own and the wall's; compiled code in another folder than the usual one."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    command = [sys.executable, "-m", "partita.cli.main", *arguments]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return own, time.perf_counter() - wall


def processes() -> None:
    """Whole processes, with the compiled code on disk and without."""
    print("\nwhole processes, the least of five: process, wall")
    for arguments in PROCESSES:
        took = [process(arguments) for _ in range(5)]
        print(f"  {min(own for own, _ in took):5.2f} s  {min(wall for _, wall in took):5.2f} s  {_said(arguments)}")
    with tempfile.TemporaryDirectory() as cache:
        own, wall = process(PROCESSES[1], cache)
    print(f"  {own:5.2f} s  {wall:5.2f} s  {_said(PROCESSES[1])}, first use ever: compiles the search")


def _said(arguments: Sequence[str]) -> str:
    return f"partita {' '.join(arguments)}"


def main() -> None:
    """All tables."""
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "swin.json").write_text(json.dumps(SWIN))
        asked_rows(folder)
        curves(folder)
    processes()


if __name__ == "__main__":
    main()
