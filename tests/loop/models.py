"""Tiny transformers models with their own losses, and batches for several ranks: ragged, and joined as one process
would see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Odd: its pieces differ in size where it is divided.
VOCABULARY = 97
SEQ = 24
PIXELS = 32
CLASSES = 5
IGNORED = -100

Batch = dict[str, Tensor]


def gpt2() -> nn.Module:
    """Two layers; the head's weight is the embedding's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=SEQ, use_cache=False, resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    """Grouped-query attention; the head has its own weight."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
            vocab_size=VOCABULARY, max_position_embeddings=SEQ, use_cache=False,
        )
    )  # fmt: skip


def bert() -> nn.Module:
    """Masked language modelling."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64, vocab_size=VOCABULARY,
            max_position_embeddings=SEQ, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    """Two layers of encoder and decoder each."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY, dropout_rate=0.0,
            use_cache=False, decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def vit() -> nn.Module:
    """Images of 32², patches of 8²."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64, image_size=PIXELS,
            patch_size=8, num_labels=CLASSES, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        )
    )  # fmt: skip


def swin() -> nn.Module:
    """Two stages of two layers, windows that shift."""
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(
            image_size=PIXELS, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
            num_labels=CLASSES, drop_path_rate=0.0,
        )
    )  # fmt: skip


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2, "llama": llama, "bert": bert, "t5": t5, "vit": vit, "swin": swin
}  # fmt: skip


def build(name: str) -> nn.Module:
    """The model with the same weights in every process, not so small that its first losses say nothing."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(3)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)
    return model.train()


def batches(model: nn.Module, seed: int, samples: Sequence[int], lengths: Sequence[int] | None = None) -> list[Batch]:
    """One batch a rank, of so many samples; texts of up to ``lengths`` tokens, of which the last samples have fewer."""
    made = torch.Generator().manual_seed(seed)
    if getattr(model, "main_input_name", "") == "pixel_values":
        return [
            {"pixel_values": torch.rand(count, 3, PIXELS, PIXELS, generator=made),
             "labels": torch.randint(CLASSES, (count,), generator=made)}
            for count in samples
        ]  # fmt: skip
    return [text(made, count, length) for count, length in zip(samples, lengths or [SEQ] * len(samples), strict=True)]


def text(made: torch.Generator, samples: int, length: int) -> Batch:
    """Sample i has i tokens less than the longest, to the right of which there is padding."""
    tokens = torch.randint(1, VOCABULARY, (samples, length), generator=made)
    mask = (torch.arange(length) < length - torch.arange(samples)[:, None].clamp(max=length - 2)).long()
    labels = tokens.masked_fill(mask == 0, IGNORED)
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}


def joined(parts: Sequence[Batch]) -> Batch:
    """The batches of all ranks as one, padded to the longest."""
    found = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if values[0].dim() == 2:
            length = max(value.shape[1] for value in values)
            fill = IGNORED if name == "labels" else 0
            values = [functional.pad(value, (0, length - value.shape[1]), value=fill) for value in values]
        found[name] = torch.cat(values)
    return found


def exact(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch for a model in float64."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }
