"""The graph of any of the sizes: three blocks a pass are exported, without weights, and the others are like these."""

from __future__ import annotations

from dataclasses import replace

import torch

from partita.graph import Graph
from partita.plugins.capture_torch import capture_module
from partita.recipes.alphafold2.depth import EXPORTED, deepened
from partita.recipes.alphafold2.model import AlphaFold2, example
from partita.recipes.alphafold2.sizes import SIZES


def capture(name: str, samples: int, dtype: str) -> Graph:
    """The graph of that size, with parameters and values of ``dtype``."""
    size = SIZES[name]
    short = replace(size, blocks=EXPORTED)
    captured = capture_module(lambda: AlphaFold2(short), example(name)(samples), name=name, dtype=getattr(torch, dtype))
    return deepened(captured.graph, size.blocks)
