"""Train GPT-3 on a text with a plan: one process of many, started by torchrun.

    torchrun --nproc_per_node 4 -m partita.recipes.gpt3.train gpt3-tiny --plan plan.json

Read it as an example. The model is the plain one and the optimizer is torch's; ``lower_model`` and what ``trainer``
does for the plan's target are all that Partita needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partita.adapters.deepspeed.initialize import initialize
from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.prepare import Lowered, lower_model, prepare, realiser
from partita.errors import PartitaError
from partita.files import write_text
from partita.plan import Plan, load_plan
from partita.recipes.gpt3.model import example, factory
from partita.recipes.gpt3.samples import Samples
from partita.recipes.gpt3.text import load_text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train GPT-3 on a text with a plan.")
    parser.add_argument("model")
    parser.add_argument("--plan", required=True, help="what `partita plan MODEL -o FILE` wrote")
    parser.add_argument("--text", help="file to learn from (default: Python's own documentation)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", help="write the losses to this file as JSON")
    parser.add_argument("--checkpoint", help="save DeepSpeed's checkpoint to this folder at the end")
    return parser.parse_args()


class Trainer(NamedTuple):
    """One step on this copy's micro-batches, which returns the loss of the global batch; and DeepSpeed's checkpoint."""

    step: Callable[[Iterator[dict[str, Tensor]]], float]
    save: Callable[[str], object] | None


def trainer(plan: Plan, lowered: Lowered, options: argparse.Namespace, device: torch.device) -> Trainer:
    """What trains a plan of this target: DeepSpeed's engine, or torch's optimizer."""

    def adam(parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters.values(), lr=options.learning_rate)

    if plan.target == "deepspeed":
        engine = initialize(
            plan, lowered, optimizer=adam, config={"gradient_clipping": 0.0}, seed=options.seed, device=device
        )
        return Trainer(engine.train_batch, engine.save_checkpoint)
    prepared = prepare(lowered, seed=options.seed, device=device, realise=realiser(lowered, plan.target))
    plain = TorchEngine(prepared.stage, prepared.groups, adam(prepared.stage.trained))
    return Trainer(lambda batches: prepared.runtime.step(batches, plain), None)


def train(options: argparse.Namespace) -> None:
    plan = load_plan(options.plan)
    if plan.seq is None:
        raise PartitaError(f"{options.plan}: the plan has no sequence length; it isn't one of a GPT-3")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (len(os.sched_getaffinity(0))) // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    text = load_text(options.text, plan.seq)

    lowered = lower_model(plan, factory(options.model), example(plan.seq))
    trained = trainer(plan, lowered, options, device)

    samples = Samples(text, plan.seq, options.seed)
    place, stage = lowered.program.places[dist.get_rank()], plan.stages[0]
    predicted, losses = plan.predicted.step_seconds, []
    for step in range(options.steps):
        start = time.perf_counter()
        batches = samples.micro_batches(
            step, copy=place.data, copies=stage.dp, samples=stage.samples // stage.dp, count=stage.micro_batches
        )
        losses.append(trained.step(batches))
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            print(
                f"step {step + 1:4d}  loss {losses[-1]:.6f}  {plan.global_batch * plan.seq / seconds:8.0f} tokens/s  "
                f"step {seconds:.3f} s (predicted {predicted:.3f} s)",
                flush=True,
            )
    if options.checkpoint and trained.save:
        trained.save(options.checkpoint)
    if options.losses and dist.get_rank() == 0:
        write_text(options.losses, json.dumps(losses))
    # Leaving while a peer still sends would make it report a lost connection.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        train(arguments())
    except PartitaError as error:
        print(f"rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_status)
