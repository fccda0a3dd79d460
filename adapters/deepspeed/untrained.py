"""A stage of which nothing is trained, in an engine that needs an optimizer on every rank.

Overflows, norms and clipping are asked of all stages together, by DeepSpeed's optimizers. So such a stage has one over
a number that nothing reads: its gradient is zero, and no state dict of the stage has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from partita.adapters.torch.stage import StageModule

NAME = "untrained"


def stand_in(stage: StageModule) -> dict[str, nn.Parameter]:
    """The parameter, by a name that is no model's, after it has become the stage's."""
    like = next(stage.parameters(), torch.zeros(0))
    parameter = nn.Parameter(torch.zeros(1, dtype=like.dtype, device=stage.context.device))
    # Every stage's own: of a norm over stages it is counted where it is, as a zero.
    parameter.ds_pipe_replicated = False  # type: ignore[attr-defined]
    stage.register_parameter(NAME, parameter)
    stage.register_state_dict_post_hook(_left_out)
    stage.register_load_state_dict_post_hook(_not_missed)
    return {NAME: parameter}


def stood_in(stage: StageModule) -> nn.Parameter | None:
    """A stage's own stand-in; None where something is trained."""
    return stage._parameters.get(NAME)


def _left_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    state.pop(prefix + NAME, None)


def _not_missed(module: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [key for key in keys.missing_keys if key.rpartition(".")[2] != NAME]
