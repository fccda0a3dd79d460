"""A verdict as JSON values and as text."""

from __future__ import annotations

import math
from typing import Any

from partita.adapters.verify.compare import TOLERANCE
from partita.adapters.verify.prove import Verdict
from partita.cli import show
from partita.plan import Plan


def document(verdict: Verdict) -> dict[str, Any]:
    """What ``--json`` prints. A difference that is no number is null."""
    errors, first = verdict.errors, verdict.difference
    return {
        "equal": verdict.equal,
        "max_abs_error": {
            "loss": _number(errors.loss), "gradients": _number(errors.largest("gradient")),
            "parameters": _number(errors.largest("parameter")),
        },
        "steps": verdict.steps,
        "layers": {"model": verdict.model_layers, "plan": verdict.plan_layers},
        "devices": verdict.devices,
        "losses": verdict.losses,
        "bytes": [
            {"device": device, "sent": sent, "collectives": verdict.shared[device]}
            for device, sent in sorted(verdict.sent.items())
        ],
        "missing": list(errors.missing),
        "first_difference": None
        if first is None
        else {
            "what": first.what, "op": first.op, "parameter": first.parameter, "device": first.device,
            "step": first.step + 1, "micro_batch": first.micro_batch, "place": first.place,
            "error": _number(first.error), "factor": first.ratio,
        },
    }  # fmt: skip


def text(verdict: Verdict, plan: Plan) -> str:
    """What is printed for people."""
    errors = verdict.errors
    table = show.grid("", "largest difference")
    for name, value in (
        ("loss", errors.loss), ("gradients", errors.largest("gradient")), ("parameters", errors.largest("parameter")),
    ):  # fmt: skip
        table.add_row(name, f"{value:.2e}")
    moved = show.grid("bytes of a step", "sent", "to collectives")
    for device, sent in sorted(verdict.sent.items()):
        moved.add_row(f"device {device}", *(f"{n // verdict.steps:,}" for n in (sent, verdict.shared[device])))
    return show.render([
        f"{plan.model}: {'equal' if verdict.equal else 'NOT equal'}. {verdict.steps} steps of Adam on "
        f"{verdict.devices} virtual devices and on one device, float64, {plan.global_batch} samples a step "
        f"(allowed: {TOLERANCE:g})",
        "", table, "", f"layers: {verdict.model_layers} in the model, {verdict.plan_layers} on the devices", "", moved,
        *(f"\nfirst difference: {verdict.difference}" for _ in [0] if verdict.difference is not None),
        *(f"\non no device: {', '.join(errors.missing)}" for _ in [0] if errors.missing),
    ])  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
