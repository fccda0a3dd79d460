"""Megatron's layers as a plugin: plans for DeepSpeed and Megatron cut their layers by these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    from partita.adapters.torch.stage import Realise


@hookimpl(trylast=True)
def partita_realise(target: str) -> Realise | None:
    if target not in ("deepspeed", "megatron"):
        return None
    from partita.adapters.megatron.layers import realise

    return realise
