"""Train a small GPT-2 on the letters of this file with the HuggingFace Trainer: `torchrun train.py ds.json`.

Nothing here knows of Partita. With the key "partita" in ds.json the same file trains under a plan.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SEQ = 32
VOCABULARY = 127  # ASCII
NOT_COUNTED = -100


def samples() -> list[dict[str, torch.Tensor]]:
    """Windows of this file's letters; a causal model's labels are its inputs."""
    letters = torch.tensor([min(letter, VOCABULARY - 1) for letter in Path(__file__).read_bytes()])
    windows = letters.unfold(0, SEQ, SEQ)
    return [{"input_ids": window, "labels": window} for window in windows]


def best_letters(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What of the logits is kept for the metric."""
    return logits.argmax(dim=-1)


def accuracy(found: EvalPrediction) -> dict[str, float]:
    """How many letters are foreseen."""
    guesses, letters = found.predictions[:, :-1], found.label_ids[:, 1:]
    counted = letters != NOT_COUNTED
    return {"accuracy": float(np.mean(guesses[counted] == letters[counted]))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", help="DeepSpeed's JSON")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", default="out", help="a folder for checkpoints and the model")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in it")
    parser.add_argument("--local_rank", type=int, help="set by the deepspeed launcher")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=4, n_embd=64, n_head=4, vocab_size=VOCABULARY, n_positions=SEQ, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    found = samples()
    arguments = TrainingArguments(
        output_dir=options.output,
        deepspeed=options.config,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=options.epochs,
        learning_rate=3e-3,
        weight_decay=0.01,
        warmup_steps=2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=found[16:], eval_dataset=found[:16], compute_metrics=accuracy,
        preprocess_logits_for_metrics=best_letters,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model(options.output)


if __name__ == "__main__":
    main()
