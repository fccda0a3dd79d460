"""Plans by hand of a small GPT: so many layers on each stage."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from partita.graph import Graph
from partita.plan import Plan, SharedParameter, Strategy
from partita.plugins.capture_huggingface import capture_config
from tests.runtime.programs import Layout, plan

TIED = SharedParameter("transformer.wte.weight", 0, (0, 1), 0)


@cache
def graph(layers: int, samples: int) -> Graph:
    settings = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 8, "n_layer": layers}
    return capture_config(settings, samples=samples, seq=8)


def made(layout: Layout, layers: int = 4, samples: int = 3, precision: str = "fp32") -> Plan:
    """A plan with ``samples`` samples in a micro-batch of each copy."""
    return plan(graph(layers, samples), layout, precision)


def split(counts: tuple[int, ...]) -> Plan:
    """Stages of so many transformer layers, two copies of each; the embedding on the first, the head on the last."""
    sizes = list(counts)
    sizes[0] += 1
    sizes[-1] += 1
    layout = Layout(pp=len(counts), dp=2, micro_batches=4, sizes=tuple(sizes))
    return made(layout, layers=sum(counts))


def recomputing(counts: tuple[int, ...], flags: tuple[str, ...]) -> Plan:
    """A split whose layers are computed again where a stage's flags have an R, and their attention where they have an
    S; embedding and head are not."""
    plan = split(counts)
    stages = list(plan.stages)
    for index, word in enumerate(flags):
        ends = ("-" if index == 0 else "", "-" if index == len(counts) - 1 else "")
        letters = f"{ends[0]}{word}{ends[1]}"
        strategies: list[Strategy] = [
            replace(strategy, recompute={"R": "full", "S": "selective", "-": "none"}[letter])
            for strategy, letter in zip(stages[index].strategies, letters, strict=True)
        ]
        stages[index] = replace(stages[index], strategies=tuple(strategies))
    return replace(plan, stages=tuple(stages))
