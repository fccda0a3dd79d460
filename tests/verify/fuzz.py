"""Random plans by a seed: any cut into stages, any devices, cuts along any axis, any order of turns that can be.

What a plan draws: how many devices, data-parallel copies and micro-batches; where the model is cut into stages; for
each stage its devices, in any order, some of which may serve others too, and their mesh; for each block what is cut
along which axis; what is computed again; the turns, as one order of all of them in which each comes after what it
needs. Such a plan must either be refused in words, or compute what one device computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from partita.adapters.transformers.module import module_of_config
from partita.adapters.verify.batch import Example, wide
from partita.adapters.verify.exact import Exact
from partita.adapters.verify.planned import module_of
from partita.cluster import parse_cluster
from partita.draft import Draft, divide_state, drafted, offload, op_assign, op_order, op_trans, recompute
from partita.graph import Graph
from partita.plan import Axis, Plan
from partita.plugins.capture_torch import Captured
from partita.problem import Problem
from partita.schedules import Turn
from tests.ranks.captures import kept_capture
from tests.runtime.models import MODELS, tokens

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
NAMES = ("gpt2", "gpt2 dropout", "gpt2 frozen start", "t5", "llama", "swin", "mixture", "alphafold2")
# By hand: a skip, a tied weight, a value without a gradient, values of several kinds between stages.
SCALARS = ("skip", "tied scalar", "tied scalar frozen", "zeros between")
SMALL = ("web", "web dropout", "three between", "two between", *SCALARS)
RECIPES = {"mixture": ("mixture-tiny", 8), "alphafold2": ("alphafold2-tiny", None)}


@dataclass(frozen=True)
class Case:
    """The numbers that are drawn before the plan: ``samples`` are those of one turn of one copy."""

    seed: int
    model: str
    copies: int
    width: int
    micro_batches: int
    samples: int


def case(seed: int, names: Sequence[str] = NAMES) -> Case:
    """The case of a seed: a model of ``names``, at most 6 devices, at most 4 micro-batches."""
    draw = Random(seed)
    copies = draw.choice((1, 1, 1, 2, 2, 3))
    width = draw.randint(1, 6 // copies)
    return Case(seed, draw.choice(names), copies, width, draw.randint(1, 4), draw.choice((1, 2, 2)))


class Layer(nn.Module):
    """A residual layer of two matrices that drops at random."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(functional.gelu(self.wide(self.norm(x)))))


class Web(nn.Module):
    """Six layers that read what is far behind them: two have the weights of two others, one is frozen, and what one
    reads takes no gradient back."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.frozen, self.third = (Layer(dropout) for _ in range(4))
        self.first_again, self.second_again = Layer(dropout), Layer(dropout)
        for mine, other in ((self.first_again, self.first), (self.second_again, self.second)):
            mine.norm, mine.wide, mine.narrow = other.norm, other.wide, other.narrow
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(first)
        frozen = self.frozen(second + first)
        again = self.first_again(frozen.detach())
        third = self.third(again + first)
        return self.second_again(third + second).square().mean()


@cache
def module(name: str) -> tuple[Callable[[], nn.Module], Example]:
    """How to build a model, and its arguments for so many samples."""
    if name in RECIPES:
        return module_of(*RECIPES[name])
    if name.startswith("web"):
        dropout = 0.1 if name == "web dropout" else 0.0

        def points(samples: int) -> Mapping[str, Any]:
            return {"x": torch.randn(samples, 12, 8, generator=torch.Generator().manual_seed(0))}

        return lambda: Web(dropout), points
    if name == "swin":
        return module_of_config(CONFIGS / "swin-odd.json", None)

    kind = MODELS[name]

    def example(samples: int) -> Mapping[str, Any]:
        drawn = torch.Generator().manual_seed(0)
        # What 2, 3 and 4 divide.
        return tokens(samples, drawn, False, seq=12) if kind.batch is tokens else kind.batch(samples, drawn, False)

    return kind.build, example


@cache
def captured(name: str, samples: int) -> Captured:
    """A model in float64 at so many samples."""
    build, example = module(name)
    with Exact():
        return kept_capture(build, wide(example)(samples), name=name, dtype=torch.float64)


def plan(case: Case) -> Plan:
    """The plan of a case. PlanError where what it draws can't be said at all."""
    graph = captured(case.model, case.samples).graph
    batch = case.samples * case.copies * case.micro_batches
    cluster = parse_cluster("cpu", case.copies * case.width)
    problem = Problem(graph, cluster, batch, precision="fp64", target="partita")
    draw = Random(f"plan {case.seed}")
    return drafted(lambda draft: _draw(draft, case, draw), f"random {case.seed}", problem, {})


def _draw(draft: Draft, case: Case, draw: Random) -> None:
    bounds = sorted(draw.sample(range(1, len(draft.blocks)), min(len(draft.blocks) - 1, draw.randint(0, 5))))
    # Stages that share a parameter must have it alike: mostly they all have one mesh, and the same dims cut.
    alike = bool(draft.graph.shared_parameters) and draw.random() < 0.8
    mesh, cut = _mesh(case, draw), _Cuts(draw)
    for blocks in (draft.blocks[a:b] for a, b in zip([0, *bounds], [*bounds, len(draft.blocks)], strict=True)):
        mesh = mesh if alike else _mesh(case, draw)
        _stage(draft, blocks, case, mesh, cut if alike else _Cuts(draw), draw)
    op_trans(draft, draft.blocks, "batch", Axis("micro", case.micro_batches, "turns"))
    again = draw.choice((0, 0, 0.5, 1))
    computed_again = {block for block in draft.blocks if draw.random() < again}
    recompute(draft, computed_again, draw.choice(("full", "full", "selective")))
    if draw.random() < 0.2:
        offload(draft, [block for block in draft.blocks if block not in computed_again and draw.random() < 0.7])
    divide_state(draft, draft.blocks, draw.choice((0, 0, 0, 0, 1, 2, 3)))
    if draw.random() < 0.3:
        for block in draw.sample(draft.blocks, len(draft.blocks) // 2):
            divide_state(draft, [block], draw.randint(0, 3))
    op_order(draft, turns=_turns(draft, case, draw))


@dataclass(frozen=True)
class _Mesh:
    """A stage's devices in one copy: their number, of which ``tensor`` are the innermost axis, ``other`` the rest."""

    width: int
    tensor: int
    other: str


def _mesh(case: Case, draw: Random) -> _Mesh:
    # Few dims are divided by 3 and 5.
    width = draw.choice([w for w in (*(1, 2, 2, 4, 4) * 3, 3, 5, 6) if w <= case.width])
    tensor = draw.choice([d for d in range(1, width + 1) if width % d == 0])
    samples = case.samples % (width // tensor) == 0
    return _Mesh(width, tensor, "expert" if samples and draw.random() < 0.6 else "context")


class _Cuts:
    """What is cut where a block has it, drawn when it is first asked for."""

    def __init__(self, draw: Random):
        self.draw, self.drawn = draw, {}

    def __call__(self, what: str, chance: float) -> bool:
        return self.drawn.setdefault(what, self.draw.random() < chance)


def _stage(draft: Draft, blocks: Sequence[str], case: Case, mesh: _Mesh, cut: _Cuts, draw: Random) -> None:
    """A stage on some of each copy's devices; what of its blocks is cut along which axis of its mesh."""
    # A device that serves several stages of one mesh has one number in all of them.
    alike, devices = draw.random() < 0.7, []
    for copy in range(case.copies):
        if not (alike and devices):
            seats = [draw.choice(range(place, case.width, mesh.width)) for place in range(mesh.width)]
            if draw.random() < 0.15:
                draw.shuffle(seats)
        devices += [copy * case.width + seat for seat in seats]
    others = mesh.width // mesh.tensor
    op_assign(draft, blocks, devices, data=case.copies, **{mesh.other: others}, tensor=mesh.tensor)
    some = 1.0 if cut("all blocks", 0.6) else 0.5
    shards = Axis("shard", draw.choice((2, 2, 2, 2, 3, 4)), "turns")
    for block in blocks:
        if draw.random() >= some:
            continue
        classes = draft.classes(block)
        if others > 1 and mesh.other == "context" and case.model not in SCALARS:
            op_trans(draft, [block], "sequence", "context")
        if others > 1 and mesh.other == "expert":
            op_trans(draft, [block], "batch", "expert")
            if "experts" in classes:
                op_trans(draft, [block], "experts", "expert")
        if mesh.tensor > 1 and case.model not in SCALARS and cut("sequence", 0.3):
            op_trans(draft, [block], "sequence", "tensor")
        for dim in classes:
            if mesh.tensor > 1 and cut(dim, 0.5 if dim == "vocabulary" else 0.8):
                op_trans(draft, [block], dim, "tensor")
            if cut("turns", 0.25) and dim in ("heads", "hidden") and cut(f"{dim} in turns", 0.8):
                op_trans(draft, [block], dim, shards)


def _turns(draft: Draft, case: Case, draw: Random) -> dict[int, list[Turn]]:
    """One order of all turns in which each comes after what it needs, and of it each device's own."""
    stages = draft.stages
    reads, trained = _reads(draft.graph, [stage.blocks for stage in stages])
    after: dict[Turn, set[Turn]] = {}
    for m in range(case.micro_batches):
        for s in range(len(stages)):
            after[Turn(s, "forward", m)] = {Turn(source, "forward", m) for source in reads[s]}
            if s in trained:
                back = {Turn(reader, "backward", m) for reader in trained if s in reads[reader]}
                after[Turn(s, "backward", m)] = {Turn(s, "forward", m), *back}
    for s in trained:
        if draw.random() < 0.3:
            after |= {Turn(s, "weight", m): {Turn(s, "backward", m)} for m in range(case.micro_batches)}
    # What is preferred: nothing; backwards, as 1F1B; the oldest micro-batch; forwards, as GPipe.
    taste = draw.choice(
        (
            lambda turn: 0,
            lambda turn: turn.phase != "backward",
            lambda turn: turn.micro,
            lambda turn: turn.phase != "forward",
        )
    )
    used = sorted({device for stage in stages for device in stage.devices})
    # Rarely each device takes what it likes next of its own: most such orders wait for each other for ever.
    if draw.random() < 0.1:
        return {
            device: _ordered(after, taste, draw, lambda t, d=device: d in stages[t.stage].devices) for device in used
        }
    order = _ordered(after, taste, draw, lambda turn: True)
    return {device: [turn for turn in order if device in stages[turn.stage].devices] for device in used}


def _ordered(
    after: Mapping[Turn, set[Turn]], taste: Callable[[Turn], int], draw: Random, mine: Callable[[Turn], bool]
) -> list[Turn]:
    """An order of the turns of ``after`` that are ``mine``, each after what it needs of them."""
    wanted = {turn: {other for other in needs if mine(other)} for turn, needs in after.items() if mine(turn)}
    order: dict[Turn, None] = {}
    while len(order) < len(wanted):
        ready = [turn for turn, needs in wanted.items() if turn not in order and needs <= order.keys()]
        order[min(ready, key=lambda turn: (taste(turn), draw.random()))] = None
    return list(order)


def _reads(graph: Graph, stages: Sequence[Sequence[str]]) -> tuple[list[set[int]], set[int]]:
    """The stages that each stage reads from, and the stages through which a gradient flows."""
    stage_of = {block: index for index, blocks in enumerate(stages) for block in blocks}
    maker = {name: stage_of[op.block] for op in graph.ops for name in op.outputs}
    reads: list[set[int]] = [set() for _ in stages]
    trained = {maker[graph.loss.tensor]} if graph.loss else set()
    for op in graph.ops:
        here = stage_of[op.block]
        for name in op.inputs:
            if name in maker and maker[name] != here:
                reads[here].add(maker[name])
                if graph.tensor[name].gradient:
                    trained.add(maker[name])
    return reads, trained
