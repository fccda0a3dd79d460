"""The model: HuggingFace's GPT-2 code with GPT-3's sizes. Nothing in it knows of stages or devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from partita.recipes.gpt3.sizes import config


def factory(name: str) -> Callable[[], nn.Module]:
    """What builds the model of that name."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    # The byte vocabulary lacks GPT-2's begin and end tokens, which only matter when text is generated.
    logging.set_verbosity_error()
    settings = GPT2Config(**config(name), use_cache=False, bos_token_id=None, eos_token_id=None)
    return lambda: GPT2LMHeadModel(settings)


def example(seq: int) -> Callable[[int], dict[str, Tensor]]:
    """Inputs of the shape that training uses, for any number of samples."""
    return lambda samples: {name: torch.zeros(samples, seq, dtype=torch.long) for name in ("input_ids", "labels")}
