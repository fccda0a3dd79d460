"""The HuggingFace Trainer and accelerate as a plugin: fits them to an engine that runs a plan.

Nothing is imported that the process hasn't imported itself: who trains without the Trainer doesn't wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partita.hooks import hookimpl


@hookimpl(trylast=True)
def partita_module(model: str, seq: int | None) -> tuple[Callable[[], Any], Callable[[int], Mapping[str, Any]]] | None:
    """A ``config.json``, or the folder of one."""
    path = Path(model) / "config.json" if Path(model).is_dir() else Path(model)
    if path.suffix != ".json":
        return None
    from partita.adapters.transformers.module import module_of_config

    return module_of_config(path, seq)


@hookimpl
def partita_engine_made(engine: Any, config: dict[str, Any]) -> None:
    if "transformers.trainer" in sys.modules:
        from partita.adapters.transformers.log import install

        install()
    if "accelerate" in sys.modules:
        from partita.adapters.transformers.stage import write_stage

        write_stage(engine.plan, config)
