"""Tiny models captured in float64, each once, and programs for them by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partita.adapters.torch.prepare import Lowered
from partita.adapters.transformers.module import module_of_config
from partita.adapters.verify.batch import Example, wide
from partita.adapters.verify.exact import Exact
from partita.adapters.verify.prove import Verdict, verify_program
from partita.plugins.capture_torch import Captured
from partita.spacetime.alike import aligned
from partita.spacetime.program import Program
from tests.ranks.captures import kept_capture
from tests.runtime.models import MODELS
from tests.runtime.programs import Layout, program

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
# Configurations, beside the modules of the runtime's tests.
CONFIGURED = {"vit": ("vit-tiny", None), "swin": ("swin-odd", None)}


@dataclass(frozen=True)
class Model:
    """How to build it, its arguments for some samples, and its graph in float64 at one micro-batch."""

    build: Callable[[], nn.Module]
    example: Example
    captured: Captured

    def verify(self, program: Program, **options: Any) -> Verdict:
        return verify_program(Lowered(self.captured, program), self.build, self.example, **options)


@cache
def model(name: str) -> Model:
    """A model of this page's table, or of the runtime's."""
    if name in CONFIGURED:
        config, seq = CONFIGURED[name]
        build, example = module_of_config(CONFIGS / f"{config}.json", seq)
        samples = 2
    else:
        build, samples, example = MODELS[name].build, MODELS[name].samples, example_of(name)
    with Exact():
        captured = kept_capture(build, wide(example)(samples), name=name, dtype=torch.float64)
    return Model(build, example, captured)


def example_of(name: str) -> Example:
    """The arguments of one of the runtime's models."""
    return lambda count: MODELS[name].batch(count, torch.Generator().manual_seed(0), False)


@cache
def captured_at(name: str, samples: int) -> Captured:
    """One of the runtime's models, in float64, at any number of samples: with the names that it has at two."""
    with Exact():
        found = kept_capture(MODELS[name].build, wide(example_of(name))(samples), name=name, dtype=torch.float64)
    return found if samples == 2 else replace(found, graph=aligned(found.graph, captured_at(name, 2).graph))


def with_captures(name: str, program: Program) -> Lowered:
    """A program of one of the runtime's models, with the model at the samples of each of its stages."""
    first, *others = (captured_at(name, samples) for samples in {share.samples: None for share in program.shares})
    return Lowered(first, program, tuple(others))


def verified(name: str, layout: Layout, **options: Any) -> Verdict:
    """The verdict on a model's program by hand."""
    found = model(name)
    return found.verify(program(found.captured.graph, layout), **options)
