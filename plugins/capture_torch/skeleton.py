"""A model whose parameters have shapes and no storage: what a rank builds instead of the whole model.

Parameters go to the meta device the moment they are registered, so that never more than one of them is allocated.
Buffers (rotary frequencies, position ids) keep their values: they are small and no initialisation rule can recover
them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from partita.errors import ModelError


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside, every parameter that a module registers is replaced by one on the meta device.

    One that is registered in several places (tied weights) is replaced by the same one in all of them.
    """
    register = nn.Module.register_parameter
    replaced = WeakTensorKeyDictionary()  # weak: a parameter's storage is freed when its model lets go of it

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and param.device.type != "meta":
            if param not in replaced:
                replaced[param] = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            self._parameters[name] = replaced[param]

    load = nn.Module.load_state_dict

    def refuse(self: nn.Module, *args: object, **kwargs: object) -> None:
        raise ModelError(
            f"the model's function loads weights into {type(self).__name__}, and they would be lost: parameters have "
            "no storage while a model is captured. Give the weights apart (weights=StateDict(...))"
        )

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    nn.Module.load_state_dict = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        nn.Module.load_state_dict = load  # type: ignore[method-assign]


@dataclass(frozen=True)
class Skeleton:
    """``model`` lies wholly on the meta device; ``buffers`` are the real values of its buffers by name."""

    model: nn.Module
    buffers: dict[str, torch.Tensor]

    @cached_property
    def saved_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that the model's own state_dict has: not those that are made anew (positions, masks)."""
        names = self.model.state_dict().keys()
        return {name: buffer for name, buffer in self.buffers.items() if name in names}

    @cached_property
    def canonical(self) -> dict[str, str]:
        """Every parameter name to the one that stands for it: of tied parameters the first."""
        first: dict[int, str] = {}
        return {
            name: first.setdefault(id(parameter), name)
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
        }


def skeleton_of(model: nn.Module, dtype: torch.dtype | None = None) -> Skeleton:
    """The skeleton of a model that exists: a copy without its parameters' storage, which the model keeps.

    Parameters that DeepSpeed's ZeRO-3 has divided get their whole shape. ModelError for a module that can't be copied.
    """
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)
        empty = torch.empty(shape, dtype=parameter.dtype, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(f"{type(model).__name__} can't be copied: {type(error).__name__}: {error}") from error
    return _finish(copied, dtype)


def build_skeleton(factory: Callable[[], nn.Module], dtype: torch.dtype | None = None) -> Skeleton:
    """Build a model without its parameters' storage, in training mode; floating parameters get ``dtype``.

    ModelError, with the exception's own words, when the factory raises.
    """
    try:
        with parameters_on_meta():
            model = factory()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"the model's function raised {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model's function returned a {type(model).__name__}, not an nn.Module")
    held = [name for name, parameter in model.named_parameters() if parameter.device.type != "meta"]
    if held:
        raise ModelError(
            f'the model\'s function returned a model that was built before ("{held[0]}" has storage already); '
            "build it inside the function, and give its weights apart"
        )
    return _finish(model, dtype)


def _finish(model: nn.Module, dtype: torch.dtype | None) -> Skeleton:
    """The skeleton of a model whose parameters lie on meta already."""
    buffers = dict(model.named_buffers())
    if any(buffer.device.type == "meta" for buffer in buffers.values()):
        lost = [name for name, buffer in buffers.items() if buffer.device.type == "meta"]
        raise ModelError(f"buffers without values: {', '.join(lost)}; build the model outside torch.device('meta')")
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to("meta")
        for parameter in module._parameters.values():
            # In place, so that tied parameters stay one object.
            if parameter is not None and dtype is not None and parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
    model.train()
    return Skeleton(model, buffers)
