"""The HuggingFace Trainer and accelerate as a plugin: fits them to an engine that runs a plan.

Nothing is imported that the process hasn't imported itself: who trains without the Trainer doesn't wait for it.
"""

from __future__ import annotations

import sys
from typing import Any

from partita.hooks import hookimpl


@hookimpl
def partita_engine_made(engine: Any, config: dict[str, Any]) -> None:
    if "transformers.trainer" in sys.modules:
        from partita.adapters.transformers.log import install

        install()
    if "accelerate" in sys.modules:
        from partita.adapters.transformers.stage import write_stage

        write_stage(engine.plan, config)
