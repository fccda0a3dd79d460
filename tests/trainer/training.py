"""A run of the Trainer on the ranks of a pool, and what is to be compared of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.ranks.script import own_process
from tests.trainer.families import FAMILIES, SEQ, Sample, padded, samples

AUTO = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto",
    "gradient_clipping": "auto",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """``key`` is what stands under "partita" (None: plain DeepSpeed), ``config`` the rest of the JSON beside batch
    sizes, ``arguments`` are TrainingArguments beside those that all runs have."""

    family: str = "gpt2"
    key: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=lambda: {"zero_optimization": {"stage": 0}})
    arguments: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 2
    # Texts of several lengths, padded to the longest of a batch.
    ragged: bool = False
    frozen: tuple[str, ...] = ()
    evaluated: int = 10
    resume: str | None = None
    # Read by from_pretrained when TrainingArguments are there already: with ZeRO-3 it divides what it reads.
    pretrained: bool = False
    # Names of callbacks in CALLBACKS.
    callbacks: tuple[str, ...] = ()
    # After training, as predict_with_generate would.
    generates: bool = False


@dataclass
class Outcome:
    """``logs`` as the Trainer keeps them; ``weights`` (rank 0) are those of the saved model as from_pretrained reads
    it."""

    logs: list[dict[str, float]]
    metrics: dict[str, float]
    predictions: list[np.ndarray]
    labels: list[np.ndarray]
    weights: dict[str, np.ndarray]
    steps: int = 0

    @property
    def losses(self) -> list[float]:
        return [one["loss"] for one in self.logs if "loss" in one]

    @property
    def evaluations(self) -> list[float]:
        return [one["eval_loss"] for one in self.logs if "eval_loss" in one]

    @property
    def norms(self) -> list[float]:
        return [float(one["grad_norm"]) for one in self.logs if "grad_norm" in one]


def data(run: Run, count: int, seed: int) -> list[Sample]:
    found = samples(run.family, count, seed)
    if not run.ragged:
        return found
    generator = torch.Generator().manual_seed(seed + 100)
    # Of three lengths: the model is read anew for every length to which a batch is padded.
    cuts = torch.tensor([4, 7, SEQ])[torch.randint(3, (count,), generator=generator)].tolist()
    return [{name: value[:cut] for name, value in one.items()} for one, cut in zip(found, cuts, strict=True)]


def model_of(run: Run) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[run.family].build()
    for name, parameter in model.named_parameters():
        # Norms begin as ones and biases as zeros: wrong ones would not show.
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        parameter.requires_grad_(not name.startswith(run.frozen) if run.frozen else True)
    return model


def predicted(given: Any) -> dict[str, float]:
    """A metric from whole predictions: it changes where they are in another order."""
    first = given.predictions[0] if isinstance(given.predictions, tuple) else given.predictions
    weights = np.arange(1, len(first) + 1).reshape(-1, *[1] * (first.ndim - 1))
    return {"sum": float((np.abs(first.astype(np.float64)) * weights).mean())}


def train(run: Run, folder: str) -> Outcome:
    """Train, evaluate, predict, save and load again. Called on every rank."""
    with own_process():
        return _train(run, Path(folder))


def evaluate(run: Run) -> float:
    """The loss of a Trainer that never trains. Called on every rank."""
    import deepspeed
    from transformers import Trainer, TrainingArguments

    with own_process():
        # On CPUs accelerate leaves this to deepspeed.initialize, which ZeRO-3 would need before.
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        arguments = TrainingArguments(
            per_device_train_batch_size=run.batch, per_device_eval_batch_size=3, report_to=[], deepspeed=_config(run),
            use_cpu=True, disable_tqdm=True, log_level="error",
        )  # fmt: skip
        trainer = Trainer(model=model_of(run), args=arguments, eval_dataset=data(run, run.evaluated, 1))
        return float(trainer.evaluate()["eval_loss"])


def _config(run: Run) -> dict[str, Any]:
    return {**AUTO, **run.config, **({} if run.key is None else {"partita": dict(run.key)})}


def _train(run: Run, folder: Path) -> Outcome:
    import deepspeed
    from transformers import Trainer, TrainingArguments
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    settings: dict[str, Any] = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": run.batch, "per_device_eval_batch_size": 3,
        "logging_steps": 1, "report_to": [], "deepspeed": _config(run), "use_cpu": True, "disable_tqdm": True,
        "learning_rate": 1e-2, "weight_decay": 0.1, "max_steps": 4, "save_strategy": "no", "seed": 1,
        "log_level": "error", **run.arguments,
    }  # fmt: skip
    model = model_of(run)
    if run.pretrained:
        # transformers writes from the first rank alone.
        model.save_pretrained(folder / "start")
        # On CPUs accelerate leaves this to deepspeed.initialize, which is too late for a model that is divided.
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        deepspeed.comm.barrier()
    arguments = TrainingArguments(**settings)
    if run.pretrained:
        model = type(model).from_pretrained(folder / "start")
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data(run, 48, 0),
        eval_dataset=data(run, run.evaluated, 1), compute_metrics=predicted,
        data_collator=padded if run.ragged else None,
        callbacks=[CALLBACKS[name]() for name in run.callbacks],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=run.resume and str(folder / "out" / run.resume))
    steps = trainer.state.global_step
    if run.generates:
        trainer.model.generate(torch.zeros(1, 3, dtype=torch.long))
    metrics = trainer.evaluate()
    found = trainer.predict(data(run, run.evaluated - 1, 2))
    trainer.save_model(str(folder / "final"))
    trainer.accelerator.wait_for_everyone()
    # Otherwise a model is built divided over the ranks where the configuration has ZeRO-3.
    unset_hf_deepspeed_config()
    weights = {}
    if int(os.environ["RANK"]) == 0:
        again = type(trainer.model).from_pretrained(folder / "final")
        weights = {name: value.float().numpy() for name, value in again.state_dict().items()}
    return Outcome(
        trainer.state.log_history, metrics, _arrays(found.predictions), _arrays(found.label_ids), weights, steps=steps
    )


def _arrays(found: Any) -> list[np.ndarray]:
    return list(found) if isinstance(found, tuple) else [] if found is None else [found]


def _stopping() -> Any:
    from transformers import EarlyStoppingCallback

    return EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=10.0)


CALLBACKS = {"early stopping": _stopping}
