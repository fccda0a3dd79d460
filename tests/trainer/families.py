"""Tiny models of the families that the Trainer is tried with, and data that each of them learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 97
SEQ = 12
IGNORED = -100
Sample = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """How a model is built, and how one sample is drawn."""

    build: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], Sample]


def _tokens(generator: torch.Generator, length: int = SEQ) -> Tensor:
    return torch.randint(3, VOCABULARY, (length,), generator=generator)


def _text(generator: torch.Generator) -> Sample:
    ids = _tokens(generator)
    return {"input_ids": ids, "labels": ids.clone()}


def _masked(generator: torch.Generator, asked: int | None = 3) -> Sample:
    """So many tokens are asked for (None: from one to five), and the last few are padding."""
    ids = _tokens(generator)
    attention = torch.ones(SEQ, dtype=torch.long)
    attention[int(torch.randint(SEQ - 4, SEQ + 1, (), generator=generator)) :] = 0
    count = int(torch.randint(1, 6, (), generator=generator)) if asked is None else asked
    places = torch.zeros(SEQ, dtype=torch.bool)
    places[torch.randperm(SEQ - 4, generator=generator)[:count]] = True
    return {
        "input_ids": ids.masked_fill(places, 1), "attention_mask": attention,
        "labels": ids.masked_fill(~places, IGNORED),
    }  # fmt: skip


def _translation(generator: torch.Generator) -> Sample:
    return {"input_ids": _tokens(generator), "labels": _tokens(generator, SEQ - 3)}


def _image(generator: torch.Generator) -> Sample:
    return {
        "pixel_values": torch.randn(3, 16, 16, generator=generator),
        "labels": torch.randint(0, 5, (), generator=generator),
    }


def gpt2(**settings: Any) -> nn.Module:
    """Two layers, the head tied to the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **settings,
        )
    )  # fmt: skip


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
            vocab_size=VOCABULARY,
        )
    )  # fmt: skip


def _bert(kind: str) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=48, vocab_size=VOCABULARY,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5,
    )  # fmt: skip
    model: nn.Module = getattr(transformers, kind)(config)
    return model


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=VOCABULARY, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=48, image_size=16,
            patch_size=4, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(
            image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, num_labels=5,
            drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _labelled(generator: torch.Generator) -> Sample:
    return {"input_ids": _tokens(generator), "labels": torch.randint(0, 5, (), generator=generator)}


FAMILIES = {
    "gpt2": Family(gpt2, _text),
    "llama": Family(_llama, _text),
    "bert": Family(lambda: _bert("BertForMaskedLM"), _masked),
    "bert unequal": Family(lambda: _bert("BertForMaskedLM"), lambda generator: _masked(generator, None)),
    "bert classifier": Family(lambda: _bert("BertForSequenceClassification"), _labelled),
    "t5": Family(_t5, _translation),
    "vit": Family(_vit, _image),
    "swin": Family(_swin, _image),
}


def samples(family: str, count: int, seed: int = 0) -> list[Sample]:
    """The same for every process."""
    generator = torch.Generator().manual_seed(seed)
    return [FAMILIES[family].sample(generator) for _ in range(count)]


def padded(batch: list[Sample]) -> dict[str, Tensor]:
    """A collator that pads text to the longest of the batch."""
    width = max(len(one["input_ids"]) for one in batch)
    found: dict[str, list[Tensor]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for one in batch:
        missing = width - len(one["input_ids"])
        found["input_ids"].append(nn.functional.pad(one["input_ids"], (0, missing)))
        found["attention_mask"].append(nn.functional.pad(torch.ones_like(one["input_ids"]), (0, missing)))
        found["labels"].append(nn.functional.pad(one["labels"], (0, missing), value=IGNORED))
    return {name: torch.stack(tensors) for name, tensors in found.items()}
