"""Reads the ``config.json`` of a HuggingFace model into a graph, without torch, transformers or any weights.

Seven families are known: one file each, holding the part of the configuration that shapes the graph and the ops that
the model's forward pass with labels runs. ``builder`` and ``layers`` are what they are written with. Names and shapes
of parameters are those of the model class in transformers 5.24.
"""

from partita.plugins.capture_huggingface.capture import FAMILIES, capture_config

__all__ = ["FAMILIES", "capture_config"]
