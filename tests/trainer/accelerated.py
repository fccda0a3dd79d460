"""A loop of accelerate's own on the ranks of a pool, and what is to be compared of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.ranks.script import own_process
from tests.trainer.families import gpt2, padded
from tests.trainer.training import Run, data


@dataclass(frozen=True)
class Loop:
    """``key`` is what stands under "partita", None without it; ``stage`` the ZeRO stage that is written down.
    ``configured``: optimizer and schedule are DeepSpeed's, from the JSON."""

    key: Mapping[str, Any] | None = None
    stage: int | None = 0
    configured: bool = False


@dataclass
class Seen:
    """``losses`` are those of each call as the script averages them over ranks, ``again`` those of the last step after
    load_state; ``state`` is get_state_dict's, on rank 0, and ``saved`` what from_pretrained reads."""

    losses: list[float]
    rates: list[float]
    again: list[float]
    gathered: np.ndarray
    state: dict[str, np.ndarray]
    saved: dict[str, np.ndarray]


def accelerated(loop: Loop, folder: str) -> Seen:
    """Called on every rank."""
    with own_process():
        return _accelerated(loop, Path(folder))


def _config(loop: Loop) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5, "zero_optimization": {} if loop.stage is None else {"stage": loop.stage},
    }  # fmt: skip
    if loop.configured:
        config["optimizer"] = {"type": "SGD", "params": {"lr": 0.05}}
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": "auto",
                                                              "warmup_num_steps": "auto"}}  # fmt: skip
    if loop.key is not None:
        config["partita"] = dict(loop.key)
    return config


def _accelerated(loop: Loop, folder: Path) -> Seen:
    from accelerate import Accelerator, DeepSpeedPlugin, PartialState
    from accelerate.utils import DummyOptim, DummyScheduler

    PartialState(cpu=True)
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=_config(loop)))
    torch.manual_seed(0)
    model = gpt2()
    loader = torch.utils.data.DataLoader(data(Run(ragged=True), 24, 0), batch_size=2, collate_fn=padded)
    if loop.configured:
        optimizer: Any = DummyOptim(model.parameters(), lr=0.05)
        schedule: Any = DummyScheduler(optimizer, warmup_num_steps=2)
    else:
        named = dict(model.named_parameters())
        groups = [[one for one in named.values() if (one.ndim > 1) == matrix] for matrix in (True, False)]
        optimizer = torch.optim.SGD(
            [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1], "weight_decay": 0.0}], lr=0.05
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
    engine, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses, rates = [], []

    def epoch(first: int) -> None:
        engine.train()
        for index, batch in enumerate(loader):
            if index < first:
                continue
            with accelerator.accumulate(engine):
                # A causal model's own loss averages over the labels of the call unless it is told how many there are.
                count = accelerator.reduce((batch["labels"][:, 1:] != -100).sum(), "sum")
                loss = engine(**batch, num_items_in_batch=count / 2).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(engine.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(float(accelerator.reduce(loss.detach().clone(), "mean")))
            rates.append(float(optimizer.param_groups[-1]["lr"]))

    epoch(0)
    accelerator.save_state(str(folder / "state"))
    engine.eval()
    gathered = []
    with torch.no_grad():
        for batch in loader:
            logits = accelerator.pad_across_processes(engine(**batch).logits, dim=1)
            gathered.append(accelerator.gather_for_metrics(logits).double().abs().sum(dim=(1, 2)).numpy())
    state = accelerator.get_state_dict(engine)
    # It takes out of the dict what it has written.
    accelerator.unwrap_model(engine).save_pretrained(
        folder / "model", state_dict=dict(state), is_main_process=accelerator.is_main_process
    )
    before = len(losses)
    epoch(4)
    first = losses[before:]
    accelerator.load_state(str(folder / "state"))
    del losses[before:]
    epoch(4)
    again = losses[before:]
    assert again == first
    del losses[before:], rates[before:]
    main = accelerator.is_main_process
    accelerator.wait_for_everyone()
    saved = type(model).from_pretrained(folder / "model").state_dict() if main else {}
    return Seen(
        losses, rates, again, np.concatenate(gathered),
        {name: value.float().numpy() for name, value in state.items()} if main else {},
        {name: value.float().numpy() for name, value in saved.items()},
    )  # fmt: skip
