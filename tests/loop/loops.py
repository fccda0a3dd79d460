"""Training loops as people write them, each for one thing that a loop may do. They yield numbers to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.loop.models import IGNORED, SEQ, Batch, batches
from tests.loop.sides import Side

Numbers = Iterator[tuple[str, Any]]
SAMPLES = 4


def of(side: Side, seed: int, samples: int = SAMPLES, lengths: tuple[int, ...] = ()) -> list[Batch]:
    """Batches of all ranks; ``lengths`` are repeated over them."""
    wanted = lengths or (SEQ - 4,)
    return batches(side.model, seed, [samples] * side.ranks, [wanted[r % len(wanted)] for r in range(side.ranks)])


def take_step(side: Side, loss: Tensor) -> None:
    side.backward(loss)
    side.step()


def plain(side: Side) -> Numbers:
    for step in range(3):
        loss = side.call(of(side, step)).loss
        take_step(side, loss)
        yield f"loss {step}", loss


def uneven_padding(side: Side) -> Numbers:
    """Ranks with batches of different lengths: what is averaged are tokens."""
    for step in range(3):
        loss = side.call(of(side, step, lengths=(9, SEQ))).loss
        take_step(side, loss)
        yield f"loss {step}", loss


def odd_last_batch(side: Side) -> Numbers:
    """An epoch whose last batch is smaller: on all ranks; then on the last one alone."""
    yield from plain(side)
    loss = side.call(of(side, 5, samples=3)).loss
    take_step(side, loss)
    yield "fewer on all", loss
    few = batches(side.model, 6, [SAMPLES] * (side.ranks - 1) + [1], [SEQ - 4] * side.ranks)
    loss = side.call(few).loss
    take_step(side, loss)
    yield "fewer on one", loss


def evaluation(side: Side) -> Numbers:
    """Between steps, with other numbers of samples and tokens; what comes back is the rank's own."""
    for step in range(2):
        loss = side.call(of(side, step)).loss
        take_step(side, loss)
        yield f"loss {step}", loss
        shown = side.look(of(side, 10 + step, samples=5, lengths=(7, 11)))
        yield f"own loss {step}", [one.loss for one in shown]
        yield f"own logits {step}", [one.logits for one in shown]


def scaled(side: Side) -> Numbers:
    """What is put between the model's loss and backward, and a loss that never goes backward."""
    other = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    loss = side.call(of(side, 0)).loss
    take_step(side, loss * 0.5)
    yield "halved", loss
    loss = side.call(of(side, 1)).loss
    take_step(side, loss + 0.1 * other**2)
    yield "regularised", loss
    assert other.grad is not None
    yield "the regulariser's own gradient", other.grad
    loss = side.call(of(side, 2)).loss
    yield "not learned from", loss
    loss = side.call(of(side, 3)).loss
    take_step(side, loss / 3)
    yield "third", loss


def accumulated(side: Side) -> Numbers:
    """Three calls a step, which count differently."""
    for step in range(2):
        for call, weight in enumerate((1.0, 0.25, 2.0)):
            loss = side.call(of(side, 3 * step + call, lengths=(9, SEQ))).loss
            take_step(side, loss * weight)
            yield f"loss {step}.{call}", loss
    yield "rates", torch.tensor(side.rates())


def by_iterator(side: Side) -> Numbers:
    for step in range(2):
        yield f"loss {step}", torch.tensor(side.train_batch([of(side, 3 * step + call) for call in range(3)]))
    yield "rates", torch.tensor(side.rates())


def next_token(output: Any, batch: Batch) -> Tensor:
    """A criterion of one's own."""
    logits, labels = output.logits[:, :-1], batch["labels"][:, 1:]
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=0.1)


def outside(side: Side) -> Numbers:
    """The model returns logits, and the loss is made of them."""
    for step in range(2):
        loss, own = side.outside(of(side, step, lengths=(9, SEQ)), next_token)
        take_step(side, loss)
        yield f"own loss {step}", own
    loss, own = side.outside(of(side, 7, samples=3), lambda output, batch: 0.5 * output.logits.square().mean())
    take_step(side, loss * 0.5)
    yield "another", own


def two_calls_one_backward(side: Side) -> Numbers:
    for step in range(2):
        first, second = side.call(of(side, step)).loss, side.call(of(side, 10 + step, samples=3)).loss
        take_step(side, first + 0.5 * second)
        yield f"losses {step}", first.detach() + second.detach()


def items(side: Side) -> Numbers:
    """The model is told by how many tokens to divide, as trainers tell it: ranks then mean the average over them.

    In the third step each rank is told its own number.
    """
    for step in range(3):
        parts = of(side, step, lengths=(9, SEQ))
        counts = [float((part["labels"] != IGNORED).sum()) for part in parts]
        told = counts if step == 2 else [sum(counts) / side.ranks] * side.ranks
        loss = side.told(parts, [torch.tensor(count) for count in told])
        take_step(side, loss)
        yield f"loss {step}", loss


def in_turn(*loops: Callable[[Side], Numbers]) -> Callable[[Side], Numbers]:
    """The loops one after another, of the same engine: what one leaves behind the next would show."""

    def whole(side: Side) -> Numbers:
        for loop in loops:
            for name, value in loop(side):
                yield f"{loop.__name__}: {name}", value

    return whole


LOOPS: Mapping[str, Callable[[Side], Numbers]] = {
    "plain": plain,
    "accumulated": accumulated,
    "whatever a loop may do": in_turn(
        uneven_padding, odd_last_batch, evaluation, scaled, outside, items, two_calls_one_backward
    ),
    "calls of a step": in_turn(accumulated, by_iterator),
    "texts": in_turn(uneven_padding, odd_last_batch, evaluation),
    "images": in_turn(odd_last_batch, evaluation),
}
