"""Train a small GPT-2 on the letters of this file with DeepSpeed: one process a device, `torchrun train.py ds.json`.

Nothing here knows of Partita. With the key "partita" in ds.json the same file trains under a plan.
"""

import argparse
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel

SEQ = 32
VOCABULARY = 127  # ASCII


def samples() -> list[dict[str, torch.Tensor]]:
    """Windows of this file's letters; a causal model's labels are its inputs."""
    letters = torch.tensor([min(letter, VOCABULARY - 1) for letter in Path(__file__).read_bytes()])
    windows = letters.unfold(0, SEQ, SEQ)
    return [{"input_ids": window, "labels": window} for window in windows]


def average(value: torch.Tensor) -> float:
    """The mean over ranks."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", help="DeepSpeed's JSON")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a folder for the checkpoint and the model")
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=4, n_embd=64, n_head=4, vocab_size=VOCABULARY, n_positions=SEQ, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=options.config)

    found = samples()
    # As many for each rank and step, whatever the number of ranks.
    found = found[: len(found) // 16 * 16]
    held_out, found = found[:16], found[16:]
    sampler = DistributedSampler(found, shuffle=True, seed=0)
    batch_size = engine.train_micro_batch_size_per_gpu()
    loader = DataLoader(found, batch_size=batch_size, sampler=sampler, drop_last=True)
    held_loader = DataLoader(held_out, batch_size=2, sampler=DistributedSampler(held_out, shuffle=False))
    step = 0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        engine.train()
        for batch in loader:
            batch = {name: value.to(engine.device) for name, value in batch.items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            shown = average(loss)
            if dist.get_rank() == 0:
                print(f"step {step} loss {shown:.8f}", flush=True)
            step += 1
        engine.eval()
        losses = []
        with torch.no_grad():
            for batch in held_loader:
                batch = {name: value.to(engine.device) for name, value in batch.items()}
                losses.append(average(engine(**batch).loss))
        if dist.get_rank() == 0:
            print(f"epoch {epoch} held-out loss {sum(losses) / len(losses):.8f}", flush=True)

    if options.output:
        engine.save_checkpoint(options.output / "checkpoint")
        engine.save_16bit_model(options.output / "model")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
