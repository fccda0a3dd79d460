"""A captured graph run op by op with plain torch, as nothing but the graph says; and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from partita.graph import Graph, Op
from partita.plugins.capture_torch.convert import decode

CPU = torch.device("cpu")


def randomised(model: nn.Module) -> nn.Module:
    """The model in float64, every trained parameter moved from where it starts: none is 0 or 1 any more."""
    model.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def run(graph: Graph, weights: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
    """The loss. An op that the graph gives no gradient is run without: so a flag that is wrong loses a gradient."""
    values = {**weights, **batch}
    for op in graph.ops:
        with torch.set_grad_enabled(any(graph.tensor[name].gradient for name in op.outputs)):
            values.update(zip(op.outputs, _results(op, [values[name] for name in op.inputs]), strict=True))
    assert graph.loss is not None
    return values[graph.loss.tensor]


def _results(op: Op, tensors: list[Tensor]) -> list[Tensor]:
    target: Any = torch.ops
    for part in op.attributes["target"].split("."):
        target = getattr(target, part)
    args = [decode(value, tensors, CPU) for value in op.attributes["args"]]
    result = target(*args, **{key: decode(value, tensors, CPU) for key, value in op.attributes["kwargs"].items()})
    items = op.attributes.get("items")
    return [result] if items is None else [result[index] for index in items]


def difference(graph: Graph, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """How far the graph's loss and gradients are from the module's, relative to the norm of each."""
    loss = model(**batch).loss
    parameters = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    wanted = dict(zip(trained, torch.autograd.grad(loss, trained.values()), strict=True))
    assert {name for name, gradient in wanted.items() if not gradient.abs().max() > 0} == set()
    found = run(graph, parameters, batch)
    gradients = dict(zip(trained, torch.autograd.grad(found, trained.values()), strict=True))
    errors = {name: float((gradients[name] - wanted[name]).norm() / wanted[name].norm()) for name in trained}
    return errors | {"the loss": float((found - loss).detach().abs() / loss.detach().abs())}
