"""Train on one device: the model itself, a plain torch module, on the whole global batch.

Nothing of Partita runs here but the draws of the batches. What a program computes is compared with this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partita.adapters.verify.exact import Exact
from partita.errors import InputError
from partita.plugins.capture_torch import Captured

LEARNING_RATE = 1e-3
# Layers that begin at zero hide what happens before them: they are moved a little.
SPREAD = 0.02


@dataclass(frozen=True)
class Training:
    """Loss and gradients of each step, and the parameters after the last, by their names in the model."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]
    parameters: dict[str, Tensor]


def build(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model in float64, in training mode, with the weights that verification starts from."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        with Exact():
            model = factory()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.double()
                    if not parameter.any():
                        parameter += SPREAD * torch.randn_like(parameter)
    finally:
        torch.set_rng_state(state)
    return model.train()


def adam(parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of both sides."""
    return torch.optim.Adam(parameters.values(), lr=LEARNING_RATE)


def train(model: nn.Module, captured: Captured, batches: Sequence[Mapping[str, Any]]) -> Training:
    """A step of Adam on each global batch. InputError where a loss is no number."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer, losses, gradients = adam(trained), [], []
    for batch in batches:
        with Exact():
            loss = loss_of(model(**batch), captured)
        if not torch.isfinite(loss):
            raise InputError(
                f'the loss of "{captured.graph.name}" on one device is {loss.item()} on drawn inputs: nothing can be '
                "compared with it"
            )
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: gradient_of(parameter) for name, parameter in trained.items()})
        optimizer.step()
        optimizer.zero_grad()
    return Training(losses, gradients, {name: parameter.detach().clone() for name, parameter in trained.items()})


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """A copy of a parameter's gradient: zero where nothing has come."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()


def loss_of(output: Any, captured: Captured) -> Tensor:
    """The loss among what the model returns."""
    loss = captured.graph.loss
    assert loss is not None
    place = next(index for index, leaf in enumerate(captured.returned) if leaf.name == loss.tensor)
    found: Tensor = pytree.tree_leaves(output)[place]
    return found
