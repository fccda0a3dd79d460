"""Megatron-core's own GPT model, trained and saved by Megatron on this machine's CPU, on ranks that share its tensors.

Megatron wants a GPU at three places that matter little: the device of the rotary positions, a wait for the device
before saving, and random numbers of dropout, of which there is none. They are answered for the CPU.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.runtime.models import SEQ

SAMPLES = 8


def tokens(step: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (SAMPLES, SEQ), generator=torch.Generator().manual_seed(step))


@contextmanager
def on_the_cpu(tp: int) -> Iterator[None]:
    """Inside, Megatron's groups exist, for ranks that all share one copy of the model's tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core import parallel_state
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        from megatron.core.tensor_parallel import random

        parallel_state.initialize_model_parallel(tp)
        random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
        # Ranks of the pool may start no processes, and Megatron writes in some.
        process = multiprocessing.current_process()
        daemon, process._config["daemon"] = process._config.get("daemon"), False
        manager = multiprocessing.get_context("fork").Manager()
        try:
            with pytest.MonkeyPatch.context() as answered:
                answered.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
                answered.setattr(torch.cuda, "synchronize", lambda *_: None)
                answered.setattr(filesystem_async, "_results_queue", manager.Queue())
                yield
        finally:
            manager.shutdown()
            process._config["daemon"] = daemon
            parallel_state.destroy_model_parallel()


def gpt(config: Mapping[str, Any], vocabulary: int) -> nn.Module:
    """Megatron's model of a HuggingFace configuration, its vocabulary padded to so many."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    llama = config["model_type"] == "llama"
    hidden = config["hidden_size"] if llama else config["n_embd"]
    settings = TransformerConfig(
        num_layers=config["num_hidden_layers"] if llama else config["n_layer"],
        hidden_size=hidden,
        num_attention_heads=config["num_attention_heads"] if llama else config["n_head"],
        num_query_groups=config["num_key_value_heads"] if llama else None,
        ffn_hidden_size=config["intermediate_size"] if llama else 4 * hidden,
        gated_linear_unit=llama,
        activation_func=nn.functional.silu if llama else (lambda x: nn.functional.gelu(x, approximate="tanh")),
        add_bias_linear=not llama,
        normalization="RMSNorm" if llama else "LayerNorm",
        layernorm_epsilon=1e-6 if llama else 1e-5,
        tensor_model_parallel_size=dist.get_world_size(),
        use_cpu_initialization=True, params_dtype=torch.float32, bias_activation_fusion=False,
        gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0, masked_softmax_fusion=False,
        apply_rope_fusion=False, bias_dropout_fusion=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return GPTModel(
        settings, get_gpt_layer_local_spec(normalization=settings.normalization), vocab_size=vocabulary,
        max_sequence_length=SEQ, position_embedding_type="rope" if llama else "learned_absolute",
        share_embeddings_and_output_weights=not llama,
    )  # fmt: skip


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """The mean over the next tokens."""
    mask = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), 1)[None, None]
    losses: Tensor = model(ids, torch.arange(SEQ)[None], mask, labels=ids.roll(-1, dims=1))
    return losses[:, :-1].mean()


def made(config: Mapping[str, Any], vocabulary: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A model, its Adam, and Megatron's optimizer around that, which alone knows Megatron's form of its state."""
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups
    from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer

    model = gpt(config, vocabulary)
    settings = OptimizerConfig(lr=1e-2, clip_grad=0.0)
    adam = torch.optim.Adam(_get_param_groups([model], settings, None), lr=1e-2)
    # Only its constructor wants a GPU.
    optimizer = FP32Optimizer.__new__(FP32Optimizer)
    MegatronOptimizer.__init__(optimizer, adam, settings, lambda *_: None)
    optimizer.is_stub_optimizer = False
    return model, adam, optimizer


def step(model: nn.Module, adam: torch.optim.Optimizer, config: Mapping[str, Any], number: int) -> float:
    loss = loss_of(model, tokens(number, config["vocab_size"]))
    loss.backward()
    adam.step()
    adam.zero_grad()
    return loss.item()


def train_and_save(config: Mapping[str, Any], vocabulary: int, folder: str) -> list[float]:
    """Two steps, a checkpoint, two more: the losses of these."""
    with on_the_cpu(dist.get_world_size()):
        from megatron.core import dist_checkpointing

        model, adam, optimizer = made(config, vocabulary)
        for number in (0, 1):
            step(model, adam, config, number)
        parameters = model.sharded_state_dict()
        state = {"model": parameters, "optimizer": optimizer.sharded_state_dict(parameters), "iteration": 2}
        if dist.get_rank() == 0:
            Path(folder).mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save(state, folder)
        return [step(model, adam, config, number) for number in (2, 3)]


def save(config: Mapping[str, Any], vocabulary: int, folder: str) -> None:
    """The model as it is initialised, without an optimizer."""
    with on_the_cpu(dist.get_world_size()):
        from megatron.core import dist_checkpointing

        model = gpt(config, vocabulary)
        if dist.get_rank() == 0:
            Path(folder).mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save({"model": model.sharded_state_dict(), "iteration": 0}, folder)


def resume(config: Mapping[str, Any], vocabulary: int, folder: str) -> list[float]:
    """Losses of steps 2 and 3 in Megatron, from what Megatron itself loads of a checkpoint."""
    with on_the_cpu(dist.get_world_size()):
        from megatron.core import dist_checkpointing

        model, adam, optimizer = made(config, vocabulary)
        step(model, adam, config, 0)
        parameters = model.sharded_state_dict()
        state = {"model": parameters, "optimizer": optimizer.sharded_state_dict(parameters, is_loading=True)}
        found = dist_checkpointing.load(state, folder)
        assert found["iteration"] == 2
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        return [step(model, adam, config, number) for number in (2, 3)]


def words_of(config: Mapping[str, Any], vocabulary: int, folder: str) -> Tensor:
    """This rank's rows of the vocabulary, as Megatron loads them."""
    with on_the_cpu(dist.get_world_size()):
        from megatron.core import dist_checkpointing

        model = gpt(config, vocabulary)
        model.load_state_dict(dist_checkpointing.load({"model": model.sharded_state_dict()}, folder)["model"])
        return model.get_parameter("embedding.word_embeddings.weight").detach().clone()
