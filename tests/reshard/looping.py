"""A loop that knows nothing of plans, saved under one plan and resumed under another: two groups, a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from partita.plan import save_plan
from tests.failures.saving import steps
from tests.failures.train import SAMPLES, WIDTH, Model

PLANS: Mapping[str, dict[str, Any]] = {
    "pp2 dp2": {"partita": {"fix": {"pp": 2, "tp": 1}}, "zero_optimization": {"stage": 1}},
    "tp2 dp2": {"partita": {"fix": {"pp": 1, "tp": 2}}},
    "zero3": {"partita": {"pipeline": "off", "tensor_parallel": "off"}, "zero_optimization": {"stage": 3}},
}


class Shifted(Model):
    """With a buffer in a layer and one that isn't saved; transformers keeps positions and masks so."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1].register_buffer("shift", torch.arange(WIDTH) / 128)
        self.register_buffer("scale", torch.full((WIDTH,), 2.0), persistent=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(words) * self.scale
        for layer in self.layers:
            x = layer(x) + self.layers[1].shift
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def start(plan: str, seed: int, kind: type[Model] = Model) -> tuple[Any, Any]:
    import deepspeed

    import partita.adapters.deepspeed  # noqa: F401  the key is noticed
    from tests.runtime.engines import forget_earlier_engines

    forget_earlier_engines()
    torch.manual_seed(seed)
    model = kind()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            # Its mask depends on where a device's samples stand in the batch.
            module.p = 0.0
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.endswith("weight")], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if n.endswith("bias")], "weight_decay": 0.0, "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    config = {"train_micro_batch_size_per_gpu": SAMPLES, "zero_allow_untested_optimizer": True, **PLANS[plan]}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    return engine, schedule


def saved(plan: str, folder: str) -> list[float]:
    """Two steps, a checkpoint, two more: their losses."""
    engine, _ = start(plan, 0)
    steps(engine, range(2))
    engine.save_checkpoint(folder, client_state={"mine": 7})
    return steps(engine, range(2, 4))


def saved_with_buffers(plan: str, folder: str) -> dict[str, Tensor]:
    """Save a checkpoint of a model with buffers; its dense state, as the loop itself has it on rank 0."""
    engine, _ = start(plan, 0, Shifted)
    steps(engine, range(2))
    engine.save_checkpoint(folder)
    return engine.state()


def plan_of(plan: str, path: str) -> int:
    """Write the plan that the ranks come to; how many devices a copy has."""
    engine, _ = start(plan, 0)
    if engine.global_rank == 0:
        save_plan(engine.plan, path)
    return len(engine.plan.devices) // engine.plan.stages[0].dp


def resumed(plan: str, folder: str) -> tuple[list[float], list[float], int, int]:
    """The losses of the same two steps; before them: learning rates, what the client had saved, the schedule's step."""
    engine, schedule = start(plan, 1)
    _, client = engine.load_checkpoint(folder)
    rates = [float(group["lr"]) for group in engine.optimizer.param_groups]
    epoch = schedule.last_epoch
    return steps(engine, range(2, 4)), rates, client["mine"], epoch
