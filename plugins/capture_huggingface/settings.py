"""What is read of a ``config.json``: base models for token and image families, with the sizes that make sense.

A family's settings name only the keys that shape its graph; every other key is HuggingFace's business and is passed
over. The exception is a key that looks like a misspelling of one that is needed and absent: transformers would take
the default in silence, and the plan would be for another model.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from partita.errors import ModelError, listed
from partita.files import describe


def _listed(value: Any) -> Any:
    """Tuples, which a configuration object gives where its file has lists, as lists."""
    return list(value) if isinstance(value, tuple) else value


def _pair(value: Any) -> Any:
    """One size for both sides as a pair."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value, value]
    if not isinstance(value, list | tuple):
        raise ValueError("one size or a pair [height, width] is needed")
    return list(value)


# 2**31 - 1 is the largest index that common kernels take; the number of layers bounds the work of capturing.
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
Probability = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[list[Size], BeforeValidator(_pair), Field(min_length=2, max_length=2)]
Tuples = BeforeValidator(_listed)
Activation = Literal[
    "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"
]  # fmt: skip

# Names that different families give the same thing; each is a likely slip for any other.
SAME = (
    {"hidden_size", "n_embd", "n_embed", "d_model", "embed_dim", "hidden_dim", "dim"},
    {"num_hidden_layers", "n_layer", "n_layers", "num_layers"},
    {"num_attention_heads", "n_head", "n_heads", "num_heads"},
    {"num_key_value_heads", "n_kv_head", "n_kv_heads", "num_kv_heads"},
    {"intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"},
    {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"},
    {"vocab_size", "n_vocab", "padded_vocab_size"},
    {"hidden_act", "activation_function"},
)
# How alike an unknown key and a needed one must be to be taken for a slip. At 0.85 "n_layers" is one for "n_layer" and
# no key of a family's own default configuration is one for another.
ALIKE = 0.85


class Settings(BaseModel):
    """Base of all families' settings. ``also`` maps further names that transformers accepts to the family's own."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)
    also: ClassVar[Mapping[str, str]] = {}

    architectures: list[str] | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Settings from a parsed ``config.json``; ModelError quotes each wrong key with what stands there."""
        renamed = cls._renamed(config)
        for key, field in cls._slips(renamed):
            raise ModelError(
                f'"{key}" is unknown and "{field}" is missing: did you mean "{field}"? '
                f"Without it {field} would be {cls.model_fields[field].default!r}"
            )
        try:
            return cls.model_validate(renamed)
        except ValidationError as error:
            written = [f'"{key}" stands for {field}' for key, field in cls.also.items() if key in config]
            raise ModelError("; ".join([describe(error), *written])) from None

    @classmethod
    def _renamed(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(config)
        for key, field in cls.also.items():
            if key in values:
                given = values.pop(key)
                if field in config and config[field] != given:
                    raise ModelError(f'"{key}" ({given!r}) and "{field}" ({config[field]!r}) are one value; keep one')
                values[field] = given
        return values

    @classmethod
    def _slips(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        absent = [field for field in cls.model_fields if field not in values]
        for key in values:
            if key in cls.model_fields:
                continue
            same = {name for names in SAME if key in names for name in names}
            names = {name: field for name, field in cls.also.items() if field in absent}
            names |= {field: field for field in absent}
            close = [name for name in names if name in same] or difflib.get_close_matches(key, names, 1, ALIKE)
            if close:
                yield key, names[close[0]]


class TokenSettings(Settings):
    """Settings of a model that reads tokens. ``learned``: the key that bounds the sequence of learned positions."""

    learned: ClassVar[str | None] = None

    @property
    def longest(self) -> int:
        """Tokens that the model was made for."""
        raise NotImplementedError

    def sequence(self, seq: int | None) -> int:
        """The sequence length to capture; ModelError when the learned positions don't reach that far."""
        if seq is None:
            return min(self.longest, 1024)
        if self.learned and seq > self.longest:
            raise ModelError(
                f"seq={seq} is more than the {self.longest} learned positions ({self.learned}={self.longest}); "
                f"any seq from 1 to {self.longest} works"
            )
        return seq


class ImageSettings(Settings):
    """Settings of an image classifier. The number of classes is that of ``id2label``, then ``num_labels``, then 2."""

    image_size: Pair = Field(default=[224, 224])
    num_channels: Size = 3
    id2label: dict[Any, Any] | None = None
    num_labels: int | None = None
    problem_type: str | None = None

    @property
    def classes(self) -> int:
        """Classes of the head; ModelError where the loss would not be cross entropy over at least two."""
        found = self.num_labels if self.id2label is None else len(self.id2label)
        found = 2 if found is None else found
        if not 2 <= found < 2**31:
            raise ModelError(f"num_labels={found}: only classification into 2 or more classes is captured")
        if self.problem_type not in (None, "single_label_classification"):
            raise ModelError(
                f'problem_type="{self.problem_type}" is not captured; "single_label_classification" is (the default)'
            )
        return found

    def sequence(self, seq: int | None) -> None:
        """Images have no sequence length: ModelError when one is asked for."""
        if seq is not None:
            raise ModelError(f"seq={seq}: an image model has no sequence; leave seq out, image_size decides")


def divide(whole: str, size: int, part: str, count: int) -> int:
    """``size // count`` when it comes out even; otherwise a ModelError with the counts and sizes that would."""
    if size % count == 0:
        return size // count
    counts = listed(d for d in range(1, min(size, 1024) + 1) if size % d == 0)
    sizes = " or ".join(str(s) for s in (size // count * count, (size // count + 1) * count) if s)
    raise ModelError(
        f"{part}={count} does not divide {whole}={size} (remainder {size % count}); "
        f"{part} {counts} would, or {whole} {sizes}"
    )
