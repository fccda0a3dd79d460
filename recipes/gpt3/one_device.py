"""The same training on one device, by plain torch: what a plan's losses are compared with.

Nothing here uses a plan, a stage or the runtime; only the initial weights (by the model's own rules, keyed by the seed)
and the order of the samples are the same.
"""

from __future__ import annotations

import argparse
import json

import torch

from partita.adapters.torch.weights import Initialised
from partita.files import write_text
from partita.plugins.capture_torch import build_skeleton
from partita.recipes.gpt3.model import factory
from partita.recipes.gpt3.samples import Samples
from partita.recipes.gpt3.text import load_text


def losses_on_one_device(
    model: str, *, text: str | None, steps: int, global_batch: int, seq: int, learning_rate: float, seed: int
) -> list[float]:
    """The loss of each step, in fp32 with Adam."""
    build = factory(model)
    weights = Initialised(build_skeleton(build), seed)
    dense = build()
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            parameter.copy_(weights.dense(name))
    dense.train()
    optimizer = torch.optim.Adam(dense.parameters(), lr=learning_rate)
    samples = Samples(load_text(text, seq), seq, seed)
    losses = []
    for step in range(steps):
        batch = samples.batch(step, global_batch)
        loss = dense(input_ids=batch, labels=batch.clone()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train GPT-3 on one device.")
    parser.add_argument("model")
    parser.add_argument("--text")
    parser.add_argument("--losses", required=True)
    for name, kind in (("steps", int), ("global-batch", int), ("seq", int), ("learning-rate", float), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    given = vars(parser.parse_args())
    write_text(given.pop("losses"), json.dumps(losses_on_one_device(given.pop("model"), **given)))
