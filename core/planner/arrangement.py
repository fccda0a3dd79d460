"""How a plan's stages are said in one line: what all share once, what differs by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.errors import listed
from partita.plan import Order, Stage


def arrangement(stages: Sequence[Stage], order: Order) -> str:
    """``pp=4, tp=2, dp=4, ZeRO 1, micro-batch of 2, no recomputation, 1f1b``; unlike stages after a semicolon."""
    each = [_parts(stage) for stage in stages]
    shared = [text for name, text in each[0].items() if all(parts[name] == text for parts in each)]
    own = [", ".join(text for text in parts.values() if text and text not in shared) for parts in each]
    line = ", ".join([f"pp={len(stages)}", *(text for text in shared if text), order.words])
    return line + "".join(f"; {numbered(where)}: {text}" for text, where in _runs(own) if text)


def numbered(stages: Sequence[int]) -> str:
    """``stage 3``, ``stages 0 and 2``."""
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {listed(stages)}"


def _parts(stage: Stage) -> Mapping[str, str]:
    samples = stage.samples // stage.dp
    zeros = sorted({strategy.zero for strategy in stage.strategies})
    divided = sum(strategy.cut_along("tensor") == {"batch"} for strategy in stage.strategies)
    return {
        "tp": f"tp={stage.tp}",
        "dp": f"dp={stage.dp}",
        "zero": "ZeRO " + " and ".join(map(str, zeros)),
        "micro": f"micro-batch of {samples}",
        "recompute": _recomputed(stage),
        "axes": ", ".join(f"{axis.name}={axis.size}" for axis in stage.inner[:-1]),
        "tokens": "tokens over tp" if any("tensor" in s.cut_axes("sequence") for s in stage.strategies) else "",
        "turns": ", ".join(_in_turns(stage)),
        "form": f"samples over tp in {divided} of {len(stage.blocks)} blocks" if divided else "",
    }


def _in_turns(stage: Stage) -> list[str]:
    cut = {axis for strategy in stage.strategies for c in strategy.cuts for axis in c.axes}
    return [f"{axis.name}={axis.size}" for axis in stage.other_axes if axis.kind == "turns" and axis.name in cut]


def _recomputed(stage: Stage) -> str:
    found = []
    for how in ("full", "selective"):
        count = sum(strategy.recompute == how for strategy in stage.strategies)
        if count == len(stage.blocks):
            return f"{how} recomputation"
        if count:
            found.append(f"{how} recomputation of {count} of {len(stage.blocks)} blocks")
    return " and ".join(found) or "no recomputation"


def _runs(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Each text with the numbers that have it, in order."""
    found: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        found.setdefault(text, []).append(number)
    return list(found.items())
