"""Every plan of the library × tiny models × 2, 4 and 6 virtual devices, each verified beside one device.

    python benchmarks/verify_table.py --devices 2 4 6 > table.md

A cell is the largest difference, over losses, gradients and parameters after three steps of Adam in float64; a dash
where the plan does not apply, with the reason below the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from partita.adapters.verify.planned import module_of, verify_plan
from partita.cli.options import problem
from partita.draft import drafted
from partita.drafted import library
from partita.errors import PartitaError
from partita.problem import Problem

CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "configs"
# What is called by which name, and its tokens a sample.
MODELS = {
    "GPT-3": ("gpt3-tiny", 16),
    "Llama": (str(CONFIGS / "llama-tiny.json"), 16),
    "T5": (str(CONFIGS / "t5-gated-tiny.json"), 8),
    "ViT": ("", None),
    "Swin": ("swin-tiny", None),
    "Evoformer": ("alphafold2-tiny", None),
    "mixture of experts": ("mixture-tiny", 16),
}
# Four heads: two and four devices can share them.
VIT = {
    "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 24, "patch_size": 8, "num_channels": 3, "num_labels": 5,
}  # fmt: skip
SAMPLES = 24


@cache
def stated(model: str, devices: int) -> Problem:
    name, seq = MODELS[model]
    return problem(name, "cpu", devices, SAMPLES, seq, "fp64", "adam", None, "partita", ())


def cell(model: str, plan: str, devices: int, reasons: dict[str, list[str]]) -> str:
    name, seq = MODELS[model]
    try:
        found = drafted(library()[plan], plan, stated(model, devices), {})
        verdict = verify_plan(found, *module_of(name, seq), plan)
    except PartitaError as error:
        reasons.setdefault(str(error), []).append(f"{plan} of {model} on {devices}")
        return "–"
    errors = verdict.errors
    worst = max(errors.loss, errors.largest("gradient"), errors.largest("parameter"))
    if not verdict.equal:
        reasons.setdefault(f"not equal: {verdict.difference}", []).append(f"{plan} of {model} on {devices}")
    return f"{worst:.0e}" if verdict.equal else f"**{worst:.0e}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--plans", nargs="+", default=list(library()), choices=list(library()))
    given = parser.parse_args()
    # Tiny tensors: more threads cost more than they give.
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "vit.json"
        file.write_text(json.dumps(VIT))
        MODELS["ViT"] = (str(file), None)
        sys.exit(table(given))


def table(given: argparse.Namespace) -> bool:
    """Print it; whether something is not equal."""
    reasons: dict[str, list[str]] = {}
    print("| plan | devices | " + " | ".join(given.models) + " |")
    print("|---|---|" + "---|" * len(given.models))
    for plan in given.plans:
        for devices in given.devices:
            cells = [cell(model, plan, devices, reasons) for model in given.models]
            print(f"| {plan} | {devices} | " + " | ".join(cells) + " |", flush=True)
    print()
    for reason, where in reasons.items():
        print(f"- {', '.join(where)}: {reason}")
    return any(reason.startswith("not equal") for reason in reasons)


if __name__ == "__main__":
    main()
