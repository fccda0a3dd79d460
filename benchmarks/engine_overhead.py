"""The step of a two-stage pipeline through Partita against DeepSpeed's own PipelineEngine, in one run.

Both train the same GPT in the same two processes: Partita from the plain model and a plan, DeepSpeed from layers that
are split by hand at the plan's boundaries, out of the same HuggingFace modules. Weights, samples, micro-batches and
Adam are the same, so the losses must be too: it exits with 1 where they aren't. Steps are taken in turns, each between
two barriers, and who goes first changes: other work on the machine makes both longer. The ratio is Partita's throughput
÷ DeepSpeed's, of the medians; beside it the median of that of each pair of steps, which other work disturbs less.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cpu_plans import busy_seconds
from machine import machine

from partita.cluster import parse_cluster
from partita.files import write_text
from partita.launch import quiet_environment, run_ranks
from partita.plan import Plan, load_plan, save_plan
from partita.planner import parse_fix, plan
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config

if TYPE_CHECKING:
    from torch import Tensor, nn

STEPS, WARM_UP, SEED, LEARNING_RATE = 30, 4, 0, 1e-4
# In fp32 two right programs drift apart by rounding, which Adam divides by itself.
TOLERANCE = 1e-5
HELD = ("pp=2", "zero=0", "recompute=none", "schedule=1f1b")


@dataclass(frozen=True)
class Case:
    """gpt3-tiny, or it made wider; ``samples`` of ``seq`` tokens a step."""

    width: int
    heads: int
    samples: int
    micro_batches: int
    seq: int = 128

    @property
    def config(self) -> dict[str, Any]:
        return config("gpt3-tiny") | {"n_embd": self.width, "n_head": self.heads}


CASES = (Case(128, 4, 16, 4), Case(128, 4, 16, 8), Case(512, 8, 8, 4), Case(512, 8, 8, 8))


@dataclass(frozen=True)
class Row:
    """By engine: seconds of each step after the warm-up, losses of all steps. ``others`` is the part of the machine's
    cores that other work had meanwhile.
    """

    seconds: Mapping[str, list[float]]
    losses: Mapping[str, list[float]]
    others: float

    @property
    def ratio(self) -> float:
        return median(self.seconds["deepspeed"]) / median(self.seconds["partita"])

    @property
    def ratio_of_pairs(self) -> float:
        pairs = zip(self.seconds["deepspeed"], self.seconds["partita"], strict=True)
        return median(theirs / ours for theirs, ours in pairs)

    @property
    def difference(self) -> float:
        """The largest between the losses of one step; NaN if one of them is."""
        pairs = zip(self.losses["deepspeed"], self.losses["partita"], strict=True)
        return max((abs(theirs - ours) for theirs, ours in pairs), key=lambda number: (number != number, number))


def plan_of(case: Case) -> Plan:
    """The planner's two stages of ``micro_batches`` micro-batches, for processes on this machine."""
    graph = capture_config(case.config, samples=1, seq=case.seq, dtype="float32", name="gpt")
    held = parse_fix((*HELD, f"micro_batches={case.micro_batches}"))
    problem = Problem(graph, parse_cluster("cpu", 2), case.samples, precision="fp32", optimizer="adam", fix=held)
    return plan(problem)


def layers_by_hand(settings: Any) -> list[Any]:
    """GPT-2 as DeepSpeed's users write it: tied embedding, positions, blocks, norm, head (the embedding again)."""
    import torch
    from deepspeed.pipe import LayerSpec, TiedLayerSpec
    from torch import nn
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    class Positions(nn.Embedding):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden + super().forward(torch.arange(hidden.shape[1], device=hidden.device))

    def head(embedding: nn.Embedding, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, embedding.weight)

    table = (settings.vocab_size, settings.n_embd)
    return [
        TiedLayerSpec("wte", nn.Embedding, *table, tied_weight_attr="weight"),
        LayerSpec(Positions, settings.n_positions, settings.n_embd),
        *(LayerSpec(GPT2Block, settings, layer) for layer in range(settings.n_layer)),
        LayerSpec(nn.LayerNorm, settings.n_embd, eps=settings.layer_norm_epsilon),
        TiedLayerSpec("wte", nn.Embedding, *table, forward_fn=head, tied_weight_attr="weight"),
    ]


def model_name(name: str, layers: int) -> str:
    """The model's name of a parameter of the pipeline module, which numbers its layers."""
    if name.startswith("tied_modules"):
        return "transformer.wte.weight"
    number, _, leaf = name.partition(".")
    place = int(number)
    if place == 1:
        return f"transformer.wpe.{leaf}"
    return f"transformer.h.{place - 2}.{leaf}" if place < layers + 2 else f"transformer.ln_f.{leaf}"


def by_hand(chosen: Plan, settings: Any, dense: Callable[[str], Tensor]) -> Any:
    """DeepSpeed's PipelineEngine with the plan's boundaries and micro-batches and the model's weights ``dense``."""
    import deepspeed
    import torch
    from deepspeed.pipe import PipelineModule
    from transformers.loss.loss_utils import ForCausalLMLoss

    from partita.plugins.export.deepspeed_config import deepspeed_config

    # The embedding's block is two layers here, and so is the head's.
    first = len(chosen.stages[0].blocks) + 1

    class Split(PipelineModule):
        def _partition_layers(self, method: str = "uniform") -> None:
            self.parts = [0, first, settings.n_layer + 4]
            self._set_bounds(*self.parts[self.stage_id :][:2])

    module = Split(
        layers_by_hand(settings),
        num_stages=2,
        loss_fn=lambda logits, labels: ForCausalLMLoss(logits, labels, settings.vocab_size),
    )
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(dense(model_name(name, settings.n_layer)))
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=deepspeed_config(chosen, {"gradient_clipping": 0.0})
    )
    return engine


def rank(folder: Path) -> None:
    """One of the two processes: both engines, their steps in turns; rank 0 writes what they took."""
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    from partita.adapters.deepspeed.initialize import initialize
    from partita.adapters.torch.prepare import lower_model
    from partita.adapters.torch.weights import Initialised
    from partita.recipes.gpt3.model import example
    from partita.recipes.gpt3.samples import Samples
    from partita.recipes.gpt3.text import load_text

    logging.set_verbosity_error()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    dist.init_process_group("gloo")
    chosen = load_plan(folder / "plan.json")
    case = Case(**json.loads((folder / "case.json").read_text()))
    settings = GPT2Config(
        **case.config, use_cache=False, bos_token_id=None, eos_token_id=None, attn_implementation="sdpa"
    )
    lowered = lower_model(chosen, lambda: GPT2LMHeadModel(settings), example(case.seq))

    def adam(parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters.values(), lr=LEARNING_RATE)

    # DeepSpeed prints while it starts: that would stand between the rows of the table.
    with redirect_stdout(sys.stderr):
        engines = {
            "partita": initialize(
                chosen,
                lowered,
                optimizer=adam,
                config={"gradient_clipping": 0.0},
                seed=SEED,
                device=torch.device("cpu"),
            ),
            "deepspeed": by_hand(chosen, settings, Initialised(lowered.captured.skeleton, SEED).dense),
        }
    samples = Samples(load_text(None, case.seq), case.seq, SEED)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    losses: dict[str, list[float]] = {name: [] for name in engines}
    for step in range(WARM_UP + STEPS):
        micro = samples.batch(step, case.samples)["input_ids"].split(case.samples // case.micro_batches)
        for name in sorted(engines, reverse=bool(step % 2)):
            named = name == "partita"
            batches = iter([{"input_ids": part, "labels": part.clone()} if named else (part, part) for part in micro])
            dist.barrier()
            start = time.perf_counter()
            losses[name].append(float(engines[name].train_batch(batches)))
            dist.barrier()
            seconds[name].append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        after = {name: taken[WARM_UP:] for name, taken in seconds.items()}
        write_text(folder / "row.json", json.dumps({"seconds": after, "losses": losses}))
    dist.barrier()
    dist.destroy_process_group()


def measure(case: Case) -> Row:
    """Plan the case, start the two processes, and read what they measured."""
    with tempfile.TemporaryDirectory(prefix="partita-") as name:
        folder = Path(name)
        save_plan(plan_of(case), folder / "plan.json")
        write_text(folder / "case.json", json.dumps(asdict(case)))
        start, (busy, ours) = time.perf_counter(), busy_seconds()
        if status := run_ranks([sys.executable, __file__, name], 2, quiet_environment()):
            sys.exit(status)
        wall, (busy_after, ours_after) = time.perf_counter() - start, busy_seconds()
        others = ((busy_after - busy) - (ours_after - ours)) / (wall * (os.cpu_count() or 1))
        return Row(**json.loads((folder / "row.json").read_text()), others=max(0.0, others))


def main() -> int:
    print(
        f"{machine()}\nGPT of 4 layers, 2 processes, fp32, {', '.join(HELD)}; medians of {STEPS} steps of each engine\n"
    )
    print(
        f"{'width':>5}  {'tokens':>6}  {'micro-batches':>13}  {'Partita':>22}  {'DeepSpeed':>22}"
        f"  {'ratio':>5}  {'pairs':>5}  {'loss ±':>6}  {'others':>6}"
    )
    equal = True
    for case in CASES:
        row = measure(case)
        tokens = case.samples * case.seq
        engines = "  ".join(
            f"{took * 1e3:6.0f} ms {tokens / took:6,.0f} tokens/s"
            for took in (median(row.seconds[name]) for name in ("partita", "deepspeed"))
        )
        print(
            f"{case.width:5}  {tokens:6,}  {case.micro_batches:13}  {engines}"
            f"  {row.ratio:5.2f}  {row.ratio_of_pairs:5.2f}  {row.difference:6.0e}  {row.others:6.0%}",
            flush=True,
        )
        equal = equal and row.difference <= TOLERANCE
    print(f"\nlosses equal within {TOLERANCE:.0e} at every step: {str(equal).lower()}")
    return 0 if equal else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(Path(sys.argv[1]))
    else:
        sys.exit(main())
