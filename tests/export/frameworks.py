"""What runs on ranks: the frameworks read what was exported and say what they understood."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def deepspeed_numbers(config: dict[str, Any]) -> tuple[Any, ...]:
    """Batch sizes, ZeRO stage and precision as DeepSpeed reads them."""
    from deepspeed.runtime.config import DeepSpeedConfig

    _start()
    read = DeepSpeedConfig(config)
    return (
        read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps,
        read.zero_optimization_stage, read.bfloat16_config.enabled, read.float16_config.enabled,
    )  # fmt: skip


def deepspeed_pipeline(config: dict[str, Any], stages: dict[str, Any]) -> dict[str, Any]:
    """One step of DeepSpeed's own pipeline, cut where ``stages`` says; a linear layer stands for each block."""
    import deepspeed
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule

    _start()

    class Cut(PipelineModule):
        def _partition_layers(self, method: str = "") -> None:
            self.parts = stages["parts"]
            stage = self._topo.get_coord(self.global_rank).pipe
            self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    specs = [LayerSpec(torch.nn.Linear, 4, 4) for blocks in stages["blocks"] for _ in blocks]
    module = Cut(
        specs, num_stages=stages["num_stages"], loss_fn=torch.nn.functional.mse_loss,
        activation_checkpoint_interval=stages["activation_checkpoint_interval"],
    )  # fmt: skip
    weights = torch.optim.Adam(module.parameters())
    engine, *_ = deepspeed.initialize(model=module, optimizer=weights, config=config)
    size = config["train_micro_batch_size_per_gpu"]
    loss = engine.train_batch(iter([(torch.ones(size, 4), torch.ones(size, 4))] * 100))
    return {
        "blocks": sorted({int(name.split(".")[0]) for name, _ in module.named_parameters()}),
        "copies": engine.dp_world_size,
        "micro_batches": engine.micro_batches,
        "batch": engine.train_batch_size(),
        "finite": bool(torch.isfinite(torch.as_tensor(loss))),
    }


def megatron_stages(arguments: list[str]) -> dict[str, Any]:
    """The layers that Megatron-core builds on each stage, and what else its configuration makes of the arguments.

    The names of the options are Megatron-LM's; each is the field of the configuration that Megatron-LM fills with it.
    """
    import torch
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    fields = {
        "tensor_model_parallel_size": int, "pipeline_model_parallel_size": int, "num_layers": int,
        "pipeline_model_parallel_layout": str, "recompute_granularity": str, "recompute_method": str,
        "recompute_num_layers": int,
    }  # fmt: skip
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for name, kind in fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, dest=name)
    parser.add_argument("--decoder-first-pipeline-num-layers", type=int, dest="num_layers_in_first_pipeline_stage")
    parser.add_argument("--decoder-last-pipeline-num-layers", type=int, dest="num_layers_in_last_pipeline_stage")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    known, others = parser.parse_known_args(arguments)
    config = TransformerConfig(
        hidden_size=16, num_attention_heads=2, pipeline_dtype=torch.float32,
        **{name: value for name, value in vars(known).items() if value is not None},
    )  # fmt: skip
    layout = config.pipeline_model_parallel_layout
    ranks = range(config.pipeline_model_parallel_size)
    return {
        "layers": [
            layout.get_num_layers_to_build(pp_rank=rank) if layout else get_num_layers_to_build(config, None, rank)
            for rank in ranks
        ],
        "tp": config.tensor_model_parallel_size,
        "recompute": (config.recompute_granularity, config.recompute_method, config.recompute_num_layers),
        "precision": (config.bf16, config.fp16),
        "others": others,
    }


def trainer_numbers(arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The Trainer's arguments, and where its DeepSpeed configuration contradicts them."""
    from transformers import TrainingArguments

    _start()
    read = TrainingArguments(**arguments, output_dir=str(folder), use_cpu=True)
    config = read.hf_deepspeed_config
    return {
        "world": read.world_size,
        "batch": read.train_batch_size,
        "accumulation": read.gradient_accumulation_steps,
        "zero": config.get_value("zero_optimization.stage"),
        "clipping": config.get_value("gradient_clipping"),
        "optim": read.optim.value,
        "recompute": bool(read.gradient_checkpointing),
        "mismatches": config.mismatches,
    }


def accelerate_numbers(folder: Path) -> dict[str, Any]:
    """accelerate's configuration file as its launcher reads it, and the DeepSpeed plugin that it would make."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DeepSpeedPlugin

    _start()
    read = load_config_from_file(str(folder / "accelerate.json"))
    plugin = DeepSpeedPlugin(hf_ds_config=str(folder / read.deepspeed_config["deepspeed_config_file"]))
    return {
        "type": read.distributed_type.value,
        "processes": read.num_processes,
        "machines": read.num_machines,
        "zero3_init": read.deepspeed_config["zero3_init_flag"],
        "zero": plugin.zero_stage,
        "accumulation": plugin.gradient_accumulation_steps,
        "micro_batch": plugin.get_value("train_micro_batch_size_per_gpu"),
    }


def _start() -> None:
    """DeepSpeed's collectives over the rank's own group."""
    import deepspeed
    import deepspeed.ops

    # It would be compiled first, which takes minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    deepspeed.init_distributed(dist_backend="gloo")
