"""Train a recipe with a plan: one process of many, started by torchrun.

    torchrun --nproc_per_node 4 -m partita.recipes.train gpt3-tiny --plan plan.json

Read it as an example. The model is the plain one and the optimizer is torch's; ``lower_model`` and what ``trainer``
does for the plan's target are all that Partita needs. ``begin`` is what is the same on every rank: ``partita run`` does
it once and forks the ranks, torchrun in each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partita.adapters.megatron import layers
from partita.adapters.torch.checkpoint import save_checkpoint
from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import DTYPES, Lowered, lower_model, prepare, realiser
from partita.adapters.torch.resume import load_checkpoint
from partita.files import write_text
from partita.forked import as_rank
from partita.plan import Plan, load_plan
from partita.recipes.arguments import parse
from partita.recipes.check import check_model
from partita.recipes.recipe import TrainedRecipe, Workload
from partita.spacetime.program import Share


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--plan", required=True, help="what `partita plan MODEL -o FILE` wrote")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", help="write the losses to this file as JSON")
    parser.add_argument("--checkpoint", help="save a checkpoint to this folder at the end")
    parser.add_argument("--resume", help="go on from a checkpoint that this plan's engine loads")
    return parser


class Trainer(NamedTuple):
    """One step on this copy's micro-batches, which returns the loss of the global batch; saving a checkpoint, and
    loading one, which returns the number of steps that were trained."""

    step: Callable[[Iterator[dict[str, Tensor]]], float]
    save: Callable[[str], object]
    load: Callable[[str], int]


def trainer(plan: Plan, lowered: Lowered, given: argparse.Namespace, device: torch.device) -> Trainer:
    """What trains a plan of this target: DeepSpeed's engine, or torch's optimizer."""

    def adam(parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters.values(), lr=given.learning_rate)

    if plan.target == "deepspeed":
        # Here, because importing DeepSpeed takes seconds and only its own plans need it.
        from partita.adapters.deepspeed.initialize import initialize

        engine = initialize(
            plan, lowered, optimizer=adam, config={"gradient_clipping": 0.0}, seed=given.seed, device=device
        )

        def load_deepspeed(folder: str) -> int:
            engine.load_checkpoint(folder)
            return int(engine.global_steps)

        return Trainer(engine.train_batch, engine.save_checkpoint, load_deepspeed)
    prepared = prepare(lowered, seed=given.seed, device=device, realise=realiser(lowered, plan.target))
    plain = TorchEngine(prepared.stages, prepared.groups, optimizers(prepared.stages, adam))
    runtime = prepared.runtime

    def load(folder: str) -> int:
        load_checkpoint(runtime, plain, folder)
        return runtime.steps

    return Trainer(
        lambda batches: runtime.step(batches, plain), lambda folder: save_checkpoint(runtime, plain, folder), load
    )


def micro_batches(batch: Mapping[str, Tensor], share: Share, copy: int) -> Iterator[dict[str, Tensor]]:
    """What a data-parallel copy of a stage trains on: its micro-batches, in order of its turns."""
    for turn in range(share.turns):
        start, stop = share.interval(copy, turn)
        yield {name: tensor[start:stop] for name, tensor in batch.items()}


def begin(words: Sequence[str]) -> Callable[[], None]:
    """Read the command line, the plan and the data, capture the model and lower the plan; what a rank does then."""
    recipe, files, given = parse(options(), "Train a recipe with a plan.", words)
    plan = load_plan(given.plan)
    check_model(given.model, plan, given.plan)
    recipe.check(plan, given.plan, files)
    work = recipe.workload(given.model, seq=plan.seq, dtype=DTYPES[plan.precision], seed=given.seed, files=files)
    lowered = lower_model(plan, work.model, work.example)
    if plan.target == "deepspeed":
        import partita.adapters.deepspeed.initialize  # noqa: F401
    if realiser(lowered, plan.target) is layers.realise:
        layers.require(max(lowered.program.widths))
    return partial(train, recipe, plan, work, lowered, given)


def train(recipe: TrainedRecipe, plan: Plan, work: Workload, lowered: Lowered, given: argparse.Namespace) -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (len(os.sched_getaffinity(0))) // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    trained = trainer(plan, lowered, given, device)

    share, copy = lowered.program.share(dist.get_rank()), lowered.program.places[dist.get_rank()][0].data
    predicted, losses = plan.predicted.step_seconds, []
    first = trained.load(given.resume) if given.resume else 0
    for step in range(first, first + given.steps):
        start = time.perf_counter()
        batch = work.batch(step, plan.global_batch)
        losses.append(trained.step(micro_batches(batch, share, copy)))
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            counted = plan.global_batch * (plan.seq or 1) / seconds
            print(
                f"step {step + 1:4d}  loss {losses[-1]:.6f}  {counted:8.0f} {recipe.counted}/s  "
                f"step {seconds:.3f} s (predicted {predicted:.3f} s)",
                flush=True,
            )
    if given.checkpoint:
        trained.save(given.checkpoint)
    if given.losses and dist.get_rank() == 0:
        write_text(given.losses, json.dumps(losses))
    # Leaving while a peer still sends would make it report a lost connection.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    as_rank(lambda: begin(sys.argv[1:])())
