"""A plan as command line arguments of Megatron-LM's training scripts.

Only what the plan decides: the sizes of the model are the user's. Megatron counts transformer layers alone; its
embedding is on the first stage and its head on the last, wherever the layers are cut. A split is written in the first
of three ways that can say it: not at all (equal stages), the layers of the first and the last stage, the whole layout.
"""

from __future__ import annotations

from partita.errors import listed
from partita.plan import Plan
from partita.plugins.export.exported import Exported, Inexpressible
from partita.plugins.export.layers import Layers, layers
from partita.plugins.export.uniform import Uniform, uniform

NAME = "Megatron-LM"


def export(plan: Plan) -> Exported:
    """``megatron.args``."""
    numbers, reasons = uniform(plan, NAME)
    found, unlike = layers(plan)
    reasons += unlike
    if numbers.zero > 1:
        reasons.append(
            f"Megatron's distributed optimizer divides what ZeRO-1 does, not ZeRO-{numbers.zero}; plan with "
            "--fix zero=1."
        )
    if plan.seq is None:
        reasons.append("Its samples have no tokens, and Megatron's training scripts want a --seq-length.")
    again: list[str] = []
    if found is not None:
        again, impossible = _recompute(found)
        reasons += impossible + _uncut(numbers, found)
    if reasons or found is None:
        raise Inexpressible(NAME, reasons)
    arguments = [
        "--tensor-model-parallel-size", str(numbers.tp),
        "--pipeline-model-parallel-size", str(numbers.pp),
        "--num-layers", str(found.total),
        *split(found.counts),
        "--micro-batch-size", str(numbers.micro_batch),
        "--global-batch-size", str(plan.global_batch),
        "--seq-length", str(plan.seq),
        "--optimizer", plan.optimizer,
        *([f"--{plan.precision}"] if plan.precision in ("bf16", "fp16") else []),
        *(["--use-distributed-optimizer"] if numbers.zero == 1 else []),
        *again,
        *([] if plan.shared_parameters else ["--untie-embeddings-and-output-weights"]),
    ]  # fmt: skip
    return Exported(NAME, {"megatron.args": arguments}, len(plan.devices), tuple(_notes(plan, again)))


def split(counts: tuple[int, ...]) -> list[str]:
    """The options that give stage s ``counts[s]`` layers."""
    if len(set(counts)) == 1:
        return []
    first, middle, last = counts[0], set(counts[1:-1]), counts[-1]
    if len(middle) < 2 and min(counts) > 0:
        return ["--decoder-first-pipeline-num-layers", str(first), "--decoder-last-pipeline-num-layers", str(last)]
    # Written out, t for each layer: "t*7" would have to be protected from the shell.
    stages = ["t" * count for count in counts]
    return ["--pipeline-model-parallel-layout", f"E{'|'.join(stages)}L"]


def _recompute(found: Layers) -> tuple[list[str], list[str]]:
    """The options, or the reason why there are none."""
    kinds = [strategy.recompute for stage in found.strategies for strategy in stage]
    if inside := kinds.count("selective"):
        if inside == found.total:
            return ["--recompute-granularity", "selective"], []
        return [], [
            f"It computes the inside of attention again in {inside} of {found.total} layers; Megatron does so in all "
            "(--recompute-granularity selective) or in none."
        ]
    again = [[strategy.recompute == "full" for strategy in stage] for stage in found.strategies]
    every = [flag for stage in again for flag in stage]
    if not any(every):
        return [], []
    options = ["--recompute-granularity", "full", "--recompute-method"]
    if all(every):
        return [*options, "uniform", "--recompute-num-layers", "1"], []
    counts = [sum(stage) for stage in again]
    if len(set(counts)) == 1 and all(stage == sorted(stage, reverse=True) for stage in again):
        return [*options, "block", "--recompute-num-layers", str(counts[0])], []
    return [], [
        f"Its stages recompute {listed(counts)} of {listed(found.counts)} layers; Megatron recomputes all, none, or "
        "the first of each stage, as many on every one."
    ]


def _uncut(numbers: Uniform, found: Layers) -> list[str]:
    whole = sum(not s.cut_along("tensor") for stage in found.strategies for s in stage) if numbers.tp > 1 else 0
    return [f"It leaves {whole} layers whole with tp={numbers.tp}; Megatron cuts every layer."] if whole else []


def _notes(plan: Plan, again: list[str]) -> list[str]:
    found = [
        "The sizes of the model (--hidden-size, --num-attention-heads, --max-position-embeddings and so on), data and "
        "learning rate are yours to add."
    ]
    ends = {plan.stages[0].strategies[0].recompute, plan.stages[-1].strategies[-1].recompute}
    if again and "full" in ends:
        found.append("The plan recomputes embedding and head too; Megatron keeps their activations.")
    return found
