"""The ZeRO stage in the configuration that accelerate reads while it trains."""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState

from partita.plan import Plan


def write_stage(plan: Plan, config: dict[str, Any]) -> None:
    """Write the plan's ZeRO stage into accelerate's own configuration, where the user left it to the plan.

    accelerate asks it how a model is saved, and fails where there is none. A configuration that isn't accelerate's is
    the user's, and stays as it is.
    """
    state = AcceleratorState._shared_state
    plugin = AcceleratorState().deepspeed_plugin if state else None
    if plugin is not None and plugin.deepspeed_config is config:
        zero = max(strategy.zero for stage in plan.stages for strategy in stage.strategies)
        config["zero_optimization"].setdefault("stage", zero)
