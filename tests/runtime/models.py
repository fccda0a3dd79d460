"""Tiny models whose training is compared with one device: HuggingFace's with a loss of our own, and modules by hand.

HuggingFace's loss casts logits to float32, which would hide what float64 can show: here only 16-bit logits are cast.
Modules by hand are each a shape that stages must carry, with numbers small enough to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from partita.spacetime.program import Share

VOCABULARY = 129
SEQ = 16
IGNORED = -100


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over targets that are not ignored, in float32 or the precision of the logits if that is higher."""
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


class CausalLoss(nn.Module):
    """A causal model and its cross entropy on the next token, over labels that are not -100."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        targets = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        return cross_entropy(logits, targets)


class TranslationLoss(nn.Module):
    """An encoder-decoder model and its cross entropy; the decoder reads the labels one step late."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        late = functional.pad(labels, (1, 0), value=0)[:, :-1]
        late = late.masked_fill(late == IGNORED, 0)
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=late).logits
        return cross_entropy(logits, labels)


def gpt2(dropout: float = 0.0, tied: bool = True, attention: str = "sdpa") -> nn.Module:
    """4 layers, 4 heads; the head's weight is the embedding's unless ``tied`` is false."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return CausalLoss(
        GPT2LMHeadModel(
            GPT2Config(
                n_layer=4, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=SEQ, use_cache=False,
                resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, tie_word_embeddings=tied,
                bos_token_id=0, eos_token_id=0, attn_implementation=attention,
            )
        )
    )  # fmt: skip


class Shifted(CausalLoss):
    """GPT-2 with two buffers in its state: one is added to the embeddings, nothing reads the other."""

    def __init__(self) -> None:
        super().__init__(gpt2().model)
        self.register_buffer("shift", torch.arange(32) / 128)
        self.register_buffer("version", torch.tensor([2, 5]))

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.model.transformer.wte(input_ids) + self.shift
        logits = self.model(inputs_embeds=x, attention_mask=attention_mask).logits
        return cross_entropy(logits, functional.pad(labels, (0, 1), value=IGNORED)[:, 1:])


def llama(layers: int = 4, hidden: int = 32, heads: int = 4, kv_heads: int = 2) -> nn.Module:
    """Grouped-query attention: 4 heads of queries, 2 of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return CausalLoss(
        LlamaForCausalLM(
            LlamaConfig(
                num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
                intermediate_size=2 * hidden, vocab_size=VOCABULARY, use_cache=False,
            )
        )
    )  # fmt: skip


def t5() -> nn.Module:
    """2 + 2 layers; all of the decoder reads the encoder's output, each half has one position bias for its layers."""
    from transformers import T5Config, T5ForConditionalGeneration

    return TranslationLoss(
        T5ForConditionalGeneration(
            T5Config(
                d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY, use_cache=False,
                dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
            )
        )
    )  # fmt: skip


def partly_frozen(*parts: str) -> nn.Module:
    """GPT-2, untied, of which the named parts are not trained."""
    model = gpt2(tied=False)
    for part in parts:
        model.get_submodule(f"model.transformer.{part}").requires_grad_(False)
    return model


class Mixture(nn.Module):
    """Two layers of four experts, of which each token has two; attention is causal by its argument."""

    def __init__(self) -> None:
        from partita.recipes.mixture.model import MixtureOfExperts
        from partita.recipes.mixture.sizes import Size

        super().__init__()
        size = Size(2, 16, 4, 4, 16, chosen=2, slack=1.25, vocabulary=VOCABULARY, context=SEQ)
        self.model = MixtureOfExperts(size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids, labels).loss


class Scale(nn.Module):
    """A scalar weight times its input."""

    def __init__(self, weight: float):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, value: Tensor) -> Tensor:
        return self.weight * value


class Skip(nn.Module):
    """Four scalars in a chain, and the first one's output is read again by the last."""

    def __init__(self) -> None:
        super().__init__()
        self.w0, self.w1, self.w2, self.w3 = Scale(2.0), Scale(3.0), Scale(5.0), Scale(7.0)

    def forward(self, x: Tensor) -> Tensor:
        first = self.w0(x)
        return (self.w3(self.w2(self.w1(first))) + first).mean()


class TiedScalar(nn.Module):
    """The first and the last of three share their weight, which may be frozen."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.first, self.middle, self.last = Scale(2.0), Scale(3.0), Scale(2.0)
        self.last.weight = self.first.weight.requires_grad_(trained)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x))).mean()


class Narrow(nn.Module):
    """A linear layer, of whose outputs the first is left out: the copy of the others is none for one sample alone."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.sigmoid())[:, 1:].contiguous()


class Narrowing(nn.Module):
    """Three of them: captured with one sample, ops that follow have other names than with two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Narrow(8), Narrow(7), Narrow(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x))).square().mean()


class Zeros(nn.Module):
    """A scalar weight times the input, and zeros of that shape: no gradient comes back through them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(2.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = self.scale(x)
        return value, torch.zeros_like(value)


class ReadZeros(nn.Module):
    """A scalar weight times the sum of both."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(3.0)

    def forward(self, value: Tensor, zeros: Tensor) -> Tensor:
        return self.scale(value + zeros)


class ZerosBetween(nn.Module):
    """Two values between two stages, one of them made from the other's shape alone."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.read = Zeros(), ReadZeros()

    def forward(self, x: Tensor) -> Tensor:
        return self.read(*self.make(x)).mean()


class Noisy(nn.Module):
    """A scalar weight times the input and noise that is drawn in place, then a second weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Scale(2.0), Scale(3.0)

    def forward(self, x: Tensor) -> Tensor:
        value = self.first(x)
        return self.second(value * torch.empty_like(value).uniform_(1.0, 2.0)).square().mean()


class Product(nn.Module):
    """The mean over samples of a scalar weight times the sample: the gradient is the samples' mean."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x).mean()


class TwoWords(nn.Module):
    """Cross entropy over two words whose logits are a scalar weight times the input, and 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale(1.0)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.scale(x)
        return cross_entropy(torch.stack([logits, torch.zeros_like(logits)], dim=-1), labels.flatten())


class Three(nn.Module):
    """Makes a value that is trained, a mask (or None), and positions that are frozen and of another precision."""

    def __init__(self, masked: bool):
        super().__init__()
        self.masked = masked
        self.linear = nn.Linear(8, 8, dtype=torch.float16)
        self.position = nn.Parameter(torch.linspace(-1, 1, 32).reshape(1, 4, 8), requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        hidden = self.linear(x)
        mask = (hidden @ hidden.transpose(1, 2) > 0).unsqueeze(1) if self.masked else None
        return hidden, mask, self.position * 2


class ReadThree(nn.Module):
    """Uses all three."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, hidden: Tensor, mask: Tensor | None, position: Tensor) -> Tensor:
        value = self.out(hidden.float() + position)
        if mask is None:
            return value
        return mask.squeeze(1).float() @ value


class ThreeBetween(nn.Module):
    """Three values between two stages; with ``masked`` false the second of them is None."""

    def __init__(self, masked: bool = True):
        super().__init__()
        self.make, self.read = Three(masked), ReadThree()

    def forward(self, x: Tensor) -> Tensor:
        return self.read(*self.make(x)).square().mean()


Batch = dict[str, Tensor]


def tokens(samples: int, generator: torch.Generator, padded: bool, seq: int = SEQ) -> Batch:
    """Random tokens. Padded: each sample ends in its own number of masked tokens with labels -100, the first two have
    no label at all.
    """
    ids = torch.randint(0, VOCABULARY, (samples, seq), generator=generator)
    labels, mask = ids.clone(), torch.ones_like(ids)
    if padded:
        for row, length in enumerate(torch.randint(3, seq + 1, (samples,), generator=generator).tolist()):
            labels[row, length:] = IGNORED
            mask[row, length:] = 0
        if samples > 2:
            labels[:2] = IGNORED
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def unmasked(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    return {name: value for name, value in tokens(samples, generator, padded).items() if name != "attention_mask"}


def ones(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    return {"x": torch.ones(samples)}


def vectors(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    return {"x": torch.randn(samples, 4, 8, generator=generator).half()}


def rows(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    return {"x": torch.randn(samples, 8, generator=generator)}


def one_to_n(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    return {"x": torch.arange(1.0, samples + 1)}


def two_tokens_and_six(samples: int, generator: torch.Generator, padded: bool) -> Batch:
    """Sample 0 has 2 tokens, each with a loss of 1; sample 1 has 6, each with a loss of 3."""
    count = torch.tensor([2, 6])[:samples]
    # The loss of a logit z against 0 is log(1 + exp(-z)).
    logits = -torch.log(torch.expm1(torch.tensor([1.0, 3.0])))[:samples]
    labels = torch.where(torch.arange(6) < count.unsqueeze(1), 0, IGNORED)
    return {"x": logits.unsqueeze(1).expand(samples, 6).contiguous(), "labels": labels}


def micro_batches(batch: Batch, share: Share, copy: int) -> Iterator[Batch]:
    """What a data-parallel copy of a stage trains on."""
    for turn in range(share.turns):
        start, stop = share.interval(copy, turn)
        yield {name: value[start:stop] for name, value in batch.items()}


@dataclass(frozen=True)
class Model:
    """How to build it, a batch of so many samples, and the samples of one micro-batch."""

    build: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator, bool], Batch] = tokens
    samples: int = 2


MODELS = {
    "gpt2": Model(gpt2),
    "gpt2 untied": Model(lambda: gpt2(tied=False)),
    "gpt2 shifted": Model(Shifted),
    "gpt2 dropout": Model(lambda: gpt2(dropout=0.1)),
    # Scores, softmax, dropout and the weighted sum as ops of their own.
    "gpt2 written out": Model(lambda: gpt2(dropout=0.1, attention="eager")),
    "gpt2 frozen start": Model(lambda: partly_frozen("wte", "wpe", "h.0", "h.1")),
    "gpt2 frozen middle": Model(lambda: partly_frozen("h.1", "h.2")),
    "llama": Model(llama),
    "t5": Model(t5),
    "mixture": Model(Mixture, unmasked),
    "llama of width 8": Model(lambda: llama(hidden=8, heads=2, kv_heads=2), partial(tokens, seq=4)),
    "skip": Model(Skip, ones, 1),
    "narrowing": Model(Narrowing, rows),
    "tied scalar": Model(TiedScalar, ones, 1),
    "tied scalar frozen": Model(lambda: TiedScalar(trained=False), ones, 1),
    "noisy": Model(Noisy, ones, 1),
    "zeros between": Model(ZerosBetween, ones, 1),
    **{f"product of {samples}": Model(Product, one_to_n, samples) for samples in (8, 4, 2, 1)},
    "two words": Model(TwoWords, two_tokens_and_six, 1),
    "three between": Model(ThreeBetween, vectors),
    "two between": Model(lambda: ThreeBetween(masked=False), vectors),
}
