"""Arguments to read a model with, before any batch is there: what its class and configuration say of its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partita.errors import ModelError

# Where a configuration bounds the tokens of a sample, by the names that families have for it.
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")
# Nobody trains on the longest samples that a model could take unless they say so.
LONGEST = 1024


def examples(model: nn.Module, samples: int, seq: int | None) -> Iterator[dict[str, Any]]:
    """Arguments for so many samples of ``seq`` tokens (None: the model's context, at most 1,024), likely ones first.

    ModelError for a model that says nothing of its inputs: a transformers model does, or one with ``example_inputs``,
    a function of the number of samples that returns arguments by name.
    """
    own = getattr(model, "example_inputs", None)
    if callable(own):
        found = own(samples)
        if not isinstance(found, Mapping):
            raise ModelError(f"{type(model).__name__}.example_inputs returned a {type(found).__name__}, not a dict")
        yield dict(found)
        return
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    arguments = inspect.signature(model.forward).parameters
    if config is None or name not in ("input_ids", "pixel_values") or name not in arguments:
        raise ModelError(
            f"nothing says what {type(model).__name__} is called with. Give deepspeed.initialize training_data, or the "
            "model a method example_inputs(samples) that returns its arguments by name"
        )
    if name == "input_ids":
        length = tokens(config) if seq is None else seq
        main = torch.zeros(samples, length, dtype=torch.long)
        labels = [main.clone(), torch.zeros(samples, dtype=torch.long)]
    else:
        size = config.image_size
        height, width = size if isinstance(size, Sequence) else (size, size)
        main = torch.zeros(samples, config.num_channels, height, width)
        labels = [torch.zeros(samples, dtype=torch.long), torch.zeros(samples, height, width, dtype=torch.long)]
    if "labels" in arguments:
        yield from ({name: main, "labels": label} for label in labels)
    yield {name: main}


def tokens(config: Any) -> int:
    """The tokens of a sample that a configuration allows, at most ``LONGEST``."""
    found = (getattr(config, key, None) for key in CONTEXT)
    return min([LONGEST, *(value for value in found if isinstance(value, int) and value > 0)])


def arguments_of(model: nn.Module, batch: Any) -> dict[str, Any]:
    """A collated batch of a data set as the model's arguments by name: as many of a sequence as the model must have."""
    parameters = inspect.signature(model.forward).parameters
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name in parameters}
    values = [batch] if isinstance(batch, Tensor) else list(batch)
    empty, rest = inspect.Parameter.empty, inspect.Parameter.VAR_KEYWORD
    needed = [name for name, one in parameters.items() if one.default is empty and one.kind != rest]
    return dict(zip(needed, values, strict=False))
