"""``deepspeed.initialize``, which looks for the key ``"partita"`` and changes nothing where there is none.

DeepSpeed is imported inside functions: its import, being watched, calls ``install``, which has to be there by then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from partita.noticing import KEY

MARK = "_partita_original"


def install() -> None:
    """Wrap ``deepspeed.initialize``, once."""
    import deepspeed

    original = deepspeed.initialize
    if hasattr(original, MARK):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            # A call that can't be: DeepSpeed's own refusal names its own function.
            return original(*args, **kwargs)
        config = _config(given)
        if config is None or KEY not in config:
            return original(*args, **kwargs)
        # Only now: it imports what a plan needs, which nobody without the key should wait for.
        from partita.adapters.deepspeed.front import initialize_with_plan

        return initialize_with_plan(config, given)

    setattr(initialize, MARK, original)
    deepspeed.initialize = initialize


def _config(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The configuration where DeepSpeed looks for it, or None: what is missing or unreadable is DeepSpeed's to say."""
    import deepspeed

    config = given.get("config") or given.get("config_params") or getattr(given.get("args"), "deepspeed_config", None)
    if isinstance(config, Mapping):
        return config  # type: ignore[return-value]
    try:
        loaded = deepspeed.load_ds_config(config)
    except Exception:
        return None
    return loaded if isinstance(loaded, dict) else None
