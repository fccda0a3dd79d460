"""What models do for generating text alone, switched off while they are captured for training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Inside, no module of a transformers model collects its keys and values.

    They are on by default (``config.use_cache``), no training step reads them, and the object that holds them is no
    output that an export knows.
    """
    configs = [getattr(module, "config", None) for module in model.modules()]
    caching = [config for config in configs if getattr(config, "use_cache", None) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True
