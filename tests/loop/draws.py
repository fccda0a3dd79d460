"""Dropout, modes and buffers of a loop: what ranks that were seeded each otherwise compute."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn


class Small(nn.Module):
    """Two linear layers with dropout between, and a buffer that each rank draws for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(2)])
        self.register_buffer("offset", torch.randn(8))

    def example_inputs(self, samples: int) -> dict[str, Tensor]:
        return {"x": torch.zeros(samples, 8)}

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return (x + self.offset).pow(2).mean()


def engine_of(seed: int, fix: dict[str, Any], accumulation: int = 1) -> Any:
    torch.manual_seed(seed)
    config = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": accumulation, "partita": {"fix": fix},
    }  # fmt: skip
    model = Small()
    return deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), config=config)[0]


def losses(fix: dict[str, Any]) -> dict[str, Any]:
    """Losses of one batch by ranks that were seeded each otherwise: learnt again and again, looked at between, with a
    submodule in evaluation."""
    engine = engine_of(100 + dist.get_rank(), fix, accumulation=4)
    x = torch.arange(32.0).view(4, 8) / 32
    found: dict[str, Any] = {"calls": []}
    for _ in range(4):
        loss = engine(x)
        # As accelerate does it: the engine steps at the end of the accumulation alone.
        engine.backward(loss, scale_wrt_gas=False)
        found["calls"].append(float(loss))
    for layer in engine.module.layers:
        layer[1].eval()
    found["submodules in evaluation"] = [float(engine(x)) for _ in range(2)]
    engine.eval()
    with torch.no_grad():
        found["evaluation"] = float(engine(x))
    return found


def again(look: bool) -> list[float]:
    """Losses of two calls with dropout, with and without a look between them."""
    engine = engine_of(0, {"pp": 2})
    x = torch.ones(4, 8)
    first = float(engine(x))
    if look:
        with torch.no_grad():
            engine(x)
    return [first, float(engine(x))]


def gradient_of_an_input() -> str:
    engine = engine_of(0, {"dp": 2})
    try:
        engine(torch.ones(4, 8, requires_grad=True))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"
