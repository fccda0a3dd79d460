"""Tiny modules whose blocks form a graph, all but one no chain, each with a plan by hand that gives branches devices.

A row says which blocks make which stage, and where a stage has more than one device or micro-batches of its own. All
layers are of width 8; the loss is a mean over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from partita.adapters.torch.prepare import Lowered
from partita.adapters.verify.batch import Example, wide
from partita.adapters.verify.exact import Exact
from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, op_assign, op_order, op_trans
from partita.plan import Axis, Plan
from partita.plugins.capture_torch import Captured, capture_module
from partita.problem import Problem
from partita.spacetime.alike import aligned
from partita.spacetime.lower import lower

WIDTH = 8


class Layer(nn.Module):
    """A linear layer and tanh; of several inputs it takes the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *values: Tensor) -> Tensor:
        return self.linear(sum(values[1:], values[0])).tanh()


class Head(Layer):
    """The same, and the mean of the squares."""

    def forward(self, *values: Tensor) -> Tensor:
        return super().forward(*values).square().mean()


class Chain(nn.Module):
    """No branches: four layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = Layer(), Layer(), Layer(), Head()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.c(self.b(self.a(x))))


class Diamond(nn.Module):
    """Two branches from one start to one end."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.left, self.right, self.head = Layer(), Layer(), Layer(), Head()

    def forward(self, x: Tensor) -> Tensor:
        value = self.start(x)
        return self.head(self.left(value), self.right(value))


class LongBranches(nn.Module):
    """Two branches of two layers each, and the first value is read again by the last."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.head = Layer(), Head()
        self.left, self.left_top, self.right, self.right_top = Layer(), Layer(), Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        value = self.start(x)
        return self.head(self.left_top(self.left(value)), self.right_top(self.right(value)), value)


class FanOut(nn.Module):
    """Three branches read one value; the end reads all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.a, self.b, self.c, self.head = Layer(), Layer(), Layer(), Layer(), Head()

    def forward(self, x: Tensor) -> Tensor:
        value = self.start(x)
        return self.head(self.a(value), self.b(value), self.c(value))


class SkipTwo(nn.Module):
    """The first value is read again by the last of four."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = Layer(), Layer(), Layer(), Head()

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        return self.head(self.c(self.b(first)), first)


class Towers(nn.Module):
    """Two inputs, a tower each, and a head that reads both; the text's tower may be frozen."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.text, self.image, self.head = Layer(), Layer(), Head()
        self.text.requires_grad_(not frozen)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.text(x), self.image(y))


class TopOfFrozen(Towers):
    """The text's tower is frozen, and has a layer on top that is trained."""

    def __init__(self) -> None:
        super().__init__(frozen=True)
        self.top = Layer()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.top(self.text(x)), self.image(y))


class ThreeTowers(Towers):
    """One more input with its tower."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__(frozen)
        self.sound = Layer()

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.head(self.text(x), self.image(y), self.sound(z))


class EncoderDecoder(nn.Module):
    """Both layers of the decoder read the encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.top, self.decoder, self.head = Layer(), Layer(), Layer(), Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory = self.top(self.encoder(x))
        return self.head(self.decoder(y, memory), memory)


class SharedBranches(Towers):
    """Both towers have one weight; their biases are their own."""

    def __init__(self) -> None:
        super().__init__()
        self.image.linear.weight = self.text.linear.weight


class Recycled(nn.Module):
    """A first pass whose result is detached, a second with the same weights that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Layer(), Layer(), Head()
        self.second.linear = self.first.linear

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(x, self.first(x).detach()))


class Pair(Layer):
    """Gives a tuple."""

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(value), value.sin() * self.linear.bias


class Tuples(nn.Module):
    """Two of a tuple's values take different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.left, self.head = Pair(), Layer(), Head()

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.pair(x)
        return self.head(self.left(one), other)


class Optional(Towers):
    """A tower for an input that may be None, and is."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
        left, right = self.text(x), self.image(y)
        return self.head(left, right) if z is None else self.head(left, right, z)


class Choose(Layer):
    """A value, its largest element's place (int64) and where it is positive (bool)."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value = super().forward(x)
        return value, value.argmax(-1), value > 0


class Masked(Head):
    """Of its second input it takes what the mask leaves."""

    def forward(self, row: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return super().forward(row, value.masked_fill(mask, 0.5))


class Chosen(nn.Module):
    """An integer chooses a row of a table, a mask what is read of the value."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.table, self.head = Choose(), nn.Embedding(WIDTH, WIDTH), Masked()

    def forward(self, x: Tensor) -> Tensor:
        value, index, mask = self.choose(x)
        return self.head(self.table(index), value, mask)


class Losses(nn.Module):
    """Each branch has a loss; they are summed by the root, which is a block."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.left, self.right = Layer(), Head(), Head()

    def forward(self, x: Tensor) -> Tensor:
        value = self.start(x)
        return self.left(value) + 0.5 * self.right(value)


class Unread(Towers):
    """Nothing reads the text's tower."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.text(x)
        return self.head(self.image(y))


Batch = dict[str, Tensor]


def one(samples: int, generator: torch.Generator, padded: bool = False) -> Batch:
    return {"x": torch.randn(samples, WIDTH, generator=generator)}


def two(samples: int, generator: torch.Generator, padded: bool = False) -> Batch:
    return {name: torch.randn(samples, WIDTH, generator=generator) for name in "xy"}


def three(samples: int, generator: torch.Generator, padded: bool = False) -> Batch:
    return {name: torch.randn(samples, WIDTH, generator=generator) for name in "xyz"}


@dataclass(frozen=True)
class Dag:
    """A model, its stages as blocks, and of the stages by number how many devices and micro-batches, if not 1 and 4."""

    build: Callable[[], nn.Module]
    stages: tuple[str, ...]
    batch: Callable[[int, torch.Generator, bool], Batch] = one
    copies: Mapping[int, int] = field(default_factory=dict)
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    schedule: str = "1f1b"

    @property
    def devices(self) -> int:
        return sum(self.copies.get(stage, 1) for stage in range(len(self.stages)))

    def draft(self, draft: Draft) -> None:
        """The plan function: a stage after the other on the next devices."""
        first = 0
        for index, names in enumerate(self.stages):
            copies = self.copies.get(index, 1)
            op_assign(draft, names.split(), tuple(range(first, first + copies)), data=copies)
            op_trans(draft, names.split(), "batch", Axis("micro", self.micro_batches.get(index, 4), "turns"))
            first += copies
        op_order(draft, self.schedule)


SAMPLES = 8
DIAMOND = ("start", "left", "right", "head")
TOWERS = ("text", "image", "head")
DAGS: dict[str, Dag] = {
    "diamond": Dag(Diamond, DIAMOND),
    "diamond on two devices": Dag(Diamond, ("start left", "right head")),
    "diamond by its graph": Dag(Diamond, DIAMOND, schedule="kfkb"),
    "diamond, unlike micro-batches": Dag(Diamond, DIAMOND, micro_batches={1: 2, 2: 8, 3: 2}),
    "fan-out of three": Dag(FanOut, ("start", "a", "b", "c head")),
    "skip over two": Dag(SkipTwo, ("a", "b", "c", "head")),
    "two towers": Dag(Towers, TOWERS, two),
    "two towers, one of two copies": Dag(Towers, TOWERS, two, copies={0: 2}),
    "encoder and decoder": Dag(EncoderDecoder, ("encoder", "top", "decoder", "head"), two),
    "frozen tower": Dag(lambda: Towers(frozen=True), TOWERS, two),
    "frozen part of a tower": Dag(TopOfFrozen, ("text top", "image", "head"), two),
    "weight shared by branches": Dag(SharedBranches, TOWERS, two),
    "recycled": Dag(Recycled, ("first", "second", "head")),
    "tuple": Dag(Tuples, ("pair", "left", "head")),
    "optional None": Dag(Optional, TOWERS, two),
    "integers and a mask": Dag(Chosen, ("choose", "table", "head")),
    "several losses": Dag(Losses, ("start", "left", "right head")),
    "chain": Dag(Chain, ("a", "b", "c", "head")),
    "six stages": Dag(LongBranches, ("start", "left", "left_top", "right", "right_top", "head"), schedule="kfkb"),
    "three towers, two of two copies": Dag(
        lambda: ThreeTowers(frozen=True),
        ("text", "image", "sound", "head"),
        three,
        copies={0: 2, 1: 2},
        micro_batches={0: 2, 3: 8},
    ),
    "three towers": Dag(ThreeTowers, ("text", "image", "sound", "head"), three, schedule="kfkb"),
}


def example_of(dag: Dag) -> Example:
    return lambda samples: dag.batch(samples, torch.Generator().manual_seed(0), False)


@cache
def _captured(name: str, samples: int, precision: str) -> Captured:
    dag = DAGS[name]
    capture = partial(capture_module, dag.build, name=name)
    if precision == "fp64":
        with Exact():
            found = capture(wide(example_of(dag))(samples), dtype=torch.float64)
    else:
        found = capture(example_of(dag)(samples))
    if samples == 2:
        return found
    return replace(found, graph=aligned(found.graph, _captured(name, 2, precision).graph))


def plan_of(name: str, precision: str = "fp64", target: str = "partita") -> Plan:
    dag = DAGS[name]
    graph = _captured(name, 2, precision).graph
    cluster = parse_cluster("cpu", dag.devices)
    problem = Problem(graph, cluster, SAMPLES, precision=precision, target=target)
    return drafted(dag.draft, name, problem, {})


def lowered(name: str, precision: str = "fp64", target: str = "partita") -> Lowered:
    """The row's program, with the model at the samples of each stage's turns; proven, because lowering proves."""
    plan = plan_of(name, precision, target)
    counts = [stage.samples // stage.dp for stage in plan.stages]
    program = lower([_captured(name, count, precision).graph for count in counts], plan)
    first, *others = (_captured(name, count, precision) for count in dict.fromkeys(counts))
    return Lowered(first, program, tuple(others))
