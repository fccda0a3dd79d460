"""The same training on one device, by plain torch: what a plan's losses are compared with.

Nothing here uses a plan, a stage or the runtime; only the initial weights (by the model's own rules, keyed by the seed)
and the order of the samples are the same.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from partita.adapters.torch.weights import Initialised
from partita.files import write_text
from partita.plugins.capture_torch import build_skeleton
from partita.recipes.arguments import parse
from partita.recipes.recipe import Workload


def losses_on_one_device(
    work: Workload, *, steps: int, global_batch: int, learning_rate: float, seed: int
) -> list[float]:
    """The loss of each step, in fp32 with Adam."""
    weights = Initialised(build_skeleton(work.model), seed)
    dense = work.model()
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            parameter.copy_(weights.dense(name))
    dense.train()
    optimizer = torch.optim.Adam(dense.parameters(), lr=learning_rate)
    losses = []
    for step in range(steps):
        loss = dense(**work.batch(step, global_batch)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--losses", required=True)
    parser.add_argument("--seq", type=int)
    for name, kind in (("steps", int), ("global-batch", int), ("learning-rate", float), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    recipe, files, given = parse(parser, "Train a recipe on one device.", sys.argv[1:])
    work = recipe.workload(given.model, seq=given.seq, dtype=torch.float32, seed=given.seed, files=files)
    losses = losses_on_one_device(
        work, steps=given.steps, global_batch=given.global_batch, learning_rate=given.learning_rate, seed=given.seed
    )
    write_text(given.losses, json.dumps(losses))
