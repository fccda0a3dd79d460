"""What a model keeps between forward and backward: counted from its configuration, and from torch's own hooks."""

from __future__ import annotations

from typing import Any

import pytest

from partita.cost.alike import alike
from partita.cost.division import Division
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes
from partita.plugins.capture_huggingface import capture_config

WORDS, SAMPLES, SEQ = 1000, 2, 64
GPT = {"model_type": "gpt2", "vocab_size": WORDS, "n_positions": SEQ, "n_embd": 128, "n_layer": 2, "n_head": 4,
       "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT,
    "GPT2LMHeadModel of one kernel's GELU": {**GPT, "activation_function": "gelu_pytorch_tanh"},
    "LlamaForCausalLM": {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": SEQ,
    },
    "BertForMaskedLM": {
        "model_type": "bert", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": WORDS, "max_position_embeddings": SEQ, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "ViTForImageClassification": {
        "model_type": "vit", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "image_size": 64, "patch_size": 8, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip


def kept(name: str, config: dict[str, Any]) -> int:
    """Bytes of the memory that autograd's saved tensors lie in, but for parameters, in bfloat16."""
    import torch
    import transformers
    from torch.autograd.graph import saved_tensors_hooks

    torch.manual_seed(0)
    architecture = getattr(transformers, name.split()[0])
    settings = architecture.config_class(**{key: value for key, value in config.items() if key != "model_type"})
    # A cache of keys and values is for generating, and copies them.
    settings.use_cache = False
    model = architecture(settings).to(torch.bfloat16).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    if config["model_type"] == "vit":
        batch = {"pixel_values": torch.randn(SAMPLES, 3, 64, 64, dtype=torch.bfloat16), "labels": torch.tensor([0, 1])}
    else:
        ids = torch.randint(0, WORDS, (SAMPLES, SEQ))
        batch = {"input_ids": ids, "labels": ids}
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**batch).loss
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_is_counted_is_what_autograd_keeps(name):
    config = MODELS[name]
    graph = capture_config(
        config, seq=None if config["model_type"] == "vit" else SEQ, samples=SAMPLES, dtype="bfloat16"
    )
    groups = alike(graph)
    priced = BlockCosts(graph, groups, item_bytes(graph, "bf16"))
    costs = [priced.of(kind, Division()) for kind in groups.kinds]
    assert sum(cost.saved_bytes for cost in costs) == pytest.approx(kept(name, config), rel=0.01)
