"""Llama-2-7B on one node of 8 GPUs by Galvatron's own measurements: plan, predicted step and search time by memory.

Galvatron's search on the same files took 105, 67 and 57 seconds at 36, 24 and 16 GB of memory on two cores. Its
profiles hold no FLOP/s and no peak: the preset gives what they leave out (the update, latencies, messages).
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from machine import machine
from uniap_models import words

from partita.cli import options
from partita.planner.joint.plan import solve
from partita.ranking import ranked

FOLDER = Path(__file__).parent.parent / "tests/data/published/galvatron"
MODEL = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
THEIRS = {36: 105.0, 24: 67.0, 16: 57.0}
BATCHES = (16, 64)


def main() -> None:
    """One row a batch and memory limit, its plan at the end."""
    print(f"{machine()}\n\nsearch: proven optimum under the formula; with ranking: and the best of them simulated")
    print("seconds of this process (CPU) / wall; of a stage: blocks, dp·tp, ZeRO, r: blocks computed again\n")
    print(
        f"{'batch':>5}  {'GiB':>4}  {'formula':>8}  {'simulated':>9}  {'search':>13}  {'with ranking':>13}  "
        f"{'Galvatron':>9}  plan"
    )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "llama2-7b.json")
        config.write_text(json.dumps(MODEL))
        for batch in BATCHES:
            for gib, theirs in THEIRS.items():
                problem = options.problem(
                    str(config), "1x8xa100-80gb", None, batch, 2048, "bf16", "adam", gib * options.GIB, "partita", (),
                    str(FOLDER),
                )  # fmt: skip
                wall, own = time.perf_counter(), time.process_time()
                found = solve(problem)
                searched = time.process_time() - own, time.perf_counter() - wall
                plan = ranked(found)
                whole = time.process_time() - own, time.perf_counter() - wall
                print(
                    f"{batch:5}  {gib:4}  {found.best.seconds:6.3f} s  {plan.predicted.step_seconds:7.3f} s  "
                    f"{searched[0]:4.2f} / {searched[1]:4.2f} s  {whole[0]:4.2f} / {whole[1]:4.2f} s  "
                    f"{theirs:7.0f} s  {words(plan)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
