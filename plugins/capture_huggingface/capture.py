"""From a configuration to a graph: finds the family, reads its settings, runs its build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.errors import InputError, ModelError, nearest
from partita.files import read_json
from partita.graph import Graph
from partita.plugins.capture_huggingface import bert, gpt2, gpt_neox, llama, swin, t5, vit
from partita.plugins.capture_huggingface.builder import Builder
from partita.plugins.capture_huggingface.settings import ImageSettings, TokenSettings

DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Family:
    """Models of one ``model_type``: their settings, the classes of transformers that are captured, and the walk.

    The first class is the one captured where the configuration names none.
    """

    settings: type[TokenSettings] | type[ImageSettings]
    classes: tuple[str, ...]
    build: Callable[[Any, Builder], Graph]


FAMILIES: dict[str, Family] = {
    "bert": Family(bert.BertSettings, ("BertForMaskedLM", "BertModel"), bert.build),
    "gpt2": Family(gpt2.Gpt2Settings, ("GPT2LMHeadModel",), gpt2.build),
    "gpt_neox": Family(gpt_neox.GptNeoxSettings, ("GPTNeoXForCausalLM",), gpt_neox.build),
    "llama": Family(llama.LlamaSettings, ("LlamaForCausalLM",), llama.build),
    "swin": Family(swin.SwinSettings, ("SwinForImageClassification",), swin.build),
    # The older name still stands in the files of the first T5 checkpoints.
    "t5": Family(t5.T5Settings, ("T5ForConditionalGeneration", "T5WithLMHeadModel"), t5.build),
    "vit": Family(vit.VitSettings, ("ViTForImageClassification",), vit.build),
}


def capture_config(
    config: Mapping[str, Any] | str | Path,
    *,
    samples: int = 1,
    seq: int | None = None,
    dtype: str = "float32",
    name: str | None = None,
) -> Graph:
    """The graph of the model that a HuggingFace configuration describes, with its loss.

    ``config`` is a ``config.json``, a folder that holds one, or its parsed content. Inputs are ``input_ids`` and
    ``labels`` ``[samples, seq]`` (int64), or ``pixel_values [samples, channels, height, width]`` and ``labels
    [samples]``. ``seq`` is at most 1024 unless asked for. ``dtype`` is that of parameters and values.

    Raises InputError for a file that can't be read and for arguments out of range, ModelError for an unknown kind of
    model and for values that no model can have; either quotes the key, the value and what would work.
    """
    values, place, called = _read(config)
    for argument, value in (("samples", samples), ("seq", seq)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31):
            raise InputError(f"{argument}={value!r}: a whole number from 1 to {2**31 - 1} is needed")
    if dtype not in DTYPES:
        raise InputError(f'dtype "{dtype}" is unknown.{nearest(str(dtype), DTYPES)}')
    try:
        family, kind = _family(values)
        settings = family.settings.read(values)
        _require_class(settings.architectures, family)
        builder = Builder(name or called or kind, samples, settings.sequence(seq), dtype)
        return family.build(settings, builder)
    except ModelError as error:
        raise ModelError(f"{place}: {error}") from None


def _read(config: Mapping[str, Any] | str | Path) -> tuple[Mapping[str, Any], str, str | None]:
    """The configuration, where it stands (for messages), and what the model is called by its file or folder."""
    if isinstance(config, Mapping):
        return config, "configuration", None
    path = Path(config)
    if path.is_dir():
        path = path / "config.json"
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: a JSON object is needed, as HuggingFace's config.json holds one")
    called = path.resolve().parent.name if path.name == "config.json" else path.stem
    return values, str(path), called


def _family(values: Mapping[str, Any]) -> tuple[Family, str]:
    if "model_type" not in values:
        raise ModelError(f'"model_type" is missing, which says what kind of model it is: {", ".join(FAMILIES)}')
    kind = values["model_type"]
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        near = nearest(kind, FAMILIES) if isinstance(kind, str) else ""
        known = "" if "Known:" in near else f" Known: {', '.join(FAMILIES)}."
        raise ModelError(f"model_type {kind!r} can't be read from a configuration.{near}{known}")
    return family, kind


def _require_class(classes: list[str] | None, family: Family) -> None:
    """ModelError when the configuration is for another class (another head) than those that are captured."""
    if classes and (len(classes) > 1 or classes[0] not in family.classes):
        raise ModelError(
            f"architectures {classes} is not captured. What is: {' or '.join(family.classes)}; "
            f'without "architectures" it is {family.classes[0]}'
        )
