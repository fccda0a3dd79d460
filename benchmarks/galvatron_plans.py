"""Llama-2-7B on one node of 8 GPUs by Galvatron's own measurements: plan, predicted step and search time by memory.

Galvatron's search on the same files took 105, 67 and 57 seconds at 36, 24 and 16 GB of memory on two cores. Its
profiles hold no FLOP/s and no peak: the preset gives what they leave out (the update, latencies, messages).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from machine import machine

from partita.cli import options
from partita.cli.plan import search

FOLDER = Path(__file__).parent.parent / "tests/data/published/galvatron"
MODEL = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
THEIRS = {36: 105.0, 24: 67.0, 16: 57.0}
BATCHES = (16, 64)


def main() -> None:
    print(f"{machine()}\n")
    print(
        f"{'batch':>5}  {'GiB':>4}  {'dp·tp·pp':8}  {'micro':>7}  {'ZeRO':>4}  {'again':6}  {'step':>8}  "
        f"{'search':>8}  {'Galvatron':>9}"
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
                plan, seconds = search(problem)
                stage = plan.stages[0]
                print(
                    f"{batch:5}  {gib:4}  {f'{stage.dp}·{stage.tp}·{len(plan.stages)}':8}  "
                    f"{f'{stage.micro_batches}×{stage.samples // stage.dp}':>7}  {stage.strategies[0].zero:4}  "
                    f"{stage.strategies[0].recompute:6}  {plan.predicted.step_seconds:6.3f} s  {seconds:6.2f} s  "
                    f"{theirs:7.0f} s"
                )


if __name__ == "__main__":
    main()
