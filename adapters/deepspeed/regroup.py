"""The user's optimizer and parameter groups, turned from the model's parameters to this rank's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from partita.adapters.torch.stage import StageModule
from partita.errors import InputError

Names = Mapping[int, str]


def names_of(model: nn.Module, canonical: Mapping[str, str]) -> dict[int, str]:
    """The canonical name of every parameter of a model, by identity."""
    return {id(parameter): canonical[name] for name, parameter in model.named_parameters(remove_duplicate=False)}


def regroup_optimizer(optimizer: torch.optim.Optimizer, names: Names, stage: StageModule) -> None:
    """Let the optimizer update this rank's parameters, in the groups of those that they are parts of.

    The object stays, so that schedules which hold it go on. InputError where it has a state, which would be lost, or
    parameters that aren't the model's.
    """
    if optimizer.state:
        raise InputError(
            f"the {type(optimizer).__name__} has been used before deepspeed.initialize: its state can't be divided; "
            "give a fresh one, and load a checkpoint after"
        )
    for index, group in enumerate(optimizer.param_groups):
        group["params"] = _local(group["params"], names, stage, f"group {index} of the {type(optimizer).__name__}")
        group["params"] = group["params"] or [_placeholder(stage, index)]


def regroup_parameters(given: Any, names: Names, stage: StageModule) -> list[Any]:
    """``model_parameters`` as DeepSpeed takes them, a list of parameters or of groups, for this rank."""
    if given is None:
        return list(stage.trained.values())
    items = list(given.parameters()) if isinstance(given, nn.Module) else list(given)
    if not items or not isinstance(items[0], Mapping):
        return _local(items, names, stage, "model_parameters")
    groups = []
    for index, group in enumerate(items):
        params = group["params"]
        local = _local([params] if isinstance(params, Tensor) else params, names, stage, f"group {index}")
        groups.append({**group, "params": local or [_placeholder(stage, index)]})
    return groups


def _local(parameters: Iterable[Tensor], names: Names, stage: StageModule, where: str) -> list[nn.Parameter]:
    trained, found = stage.trained, []
    for parameter in parameters:
        name = names.get(id(parameter))
        if name is None:
            raise InputError(f"{where}: a parameter of shape {list(parameter.shape)} is not one of the model's")
        if name in trained and not any(trained[name] is other for other in found):
            found.append(trained[name])
    return found


def _placeholder(stage: StageModule, group: int) -> nn.Parameter:
    """A parameter for a group of which this rank has nothing: one zero, which nothing reads and no gradient reaches.

    DeepSpeed would remove the empty group, on this rank alone; schedules count groups, and a schedule's state is saved
    by one rank and read by all. ZeRO has no place for parameters without elements, and so this has one.
    """
    name = f"group_{group}_is_elsewhere"
    if name not in stage._parameters:
        stage.register_parameter(name, nn.Parameter(torch.zeros(1, device=stage.context.device)))
    found = stage._parameters[name]
    assert found is not None
    return found
