"""Which MODEL each capture that ships takes. The captures themselves are imported when one is taken."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from partita.graph import Graph

CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class HuggingFace:
    """A ``config.json``, a folder with one, or any other JSON file that isn't a saved graph."""

    @staticmethod
    @hookimpl(trylast=True)
    def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
        path = Path(model)
        if not path.exists() and not model.endswith((".json", os.sep)):
            return None
        from partita.files import read_json
        from partita.plugins.capture_huggingface import capture_config

        if not path.is_dir():
            value = read_json(path)
            if isinstance(value, dict) and {"ops", "blocks"} <= value.keys():
                return None
        return capture_config(path, samples=samples, seq=seq, dtype=dtype)


class TorchModule:
    """``package.module:function``, where the function returns a model (or what builds one) and its example inputs."""

    @staticmethod
    @hookimpl(trylast=True)
    def partita_capture(model: str, seq: int | None, dtype: str) -> Graph | None:
        if Path(model).exists() or not CALLABLE.fullmatch(model):
            return None
        from partita.errors import ModelError

        try:
            import torch  # noqa: F401
        except ImportError:
            raise ModelError(
                f'"{model}" is a function that builds a torch module, and torch is not installed'
            ) from None
        from partita.plugins.capture_torch.function import capture_function

        return capture_function(model, seq, dtype)

    @staticmethod
    @hookimpl(trylast=True)
    def partita_module(model: str) -> tuple[Callable[[], Any], Callable[[int], Mapping[str, Any]]] | None:
        if Path(model).exists() or not CALLABLE.fullmatch(model):
            return None
        from partita.plugins.capture_torch.function import module_of_function

        return module_of_function(model)
