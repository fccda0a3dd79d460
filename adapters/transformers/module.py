"""From a HuggingFace configuration to the module that transformers makes of it, with weights, and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from partita.errors import ModelError
from partita.files import read_json


def module_of_config(path: Path, seq: int | None) -> tuple[Callable[[], Any], Callable[[int], dict[str, Any]]]:
    """What builds the model, and its arguments for a number of samples of ``seq`` tokens (None: as the model says).

    The class is the one that is captured: the configuration's own, or its family's first. ModelError where transformers
    can't make it.
    """
    import transformers

    from partita.plugins.capture_huggingface.capture import FAMILIES
    from partita.plugins.capture_torch import build_skeleton
    from partita.plugins.capture_torch.example import examples

    values = read_json(path)
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind not in FAMILIES:
        raise ModelError(f"{path}: model_type {kind!r} is none of {', '.join(FAMILIES)}")
    # An older name may stand in the file: the family's own class is the one that transformers has.
    named = (values.get("architectures") or FAMILIES[kind].classes)[0]
    made = getattr(transformers, named, None) or getattr(transformers, FAMILIES[kind].classes[0])
    try:
        settings = made.config_class.from_dict({key: value for key, value in values.items() if key != "dtype"})
    except Exception as error:
        raise ModelError(f"{path}: transformers can't read it: {type(error).__name__}: {error}") from error
    settings.use_cache = False

    def build() -> Any:
        return made(settings)

    model = build_skeleton(build).model
    return build, lambda samples: next(examples(model, samples, seq))
