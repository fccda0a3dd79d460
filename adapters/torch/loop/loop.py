"""One rank's calls of the model: learning (with a gradient, now or later) and looking (without)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.adapters.torch.begin import agree, count_targets
from partita.adapters.torch.flush import Engine, Flush
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.loop.batch import Given, Shape
from partita.adapters.torch.loop.codes import Codes, Compiled, Mode
from partita.adapters.torch.loop.divide import Part, divide
from partita.adapters.torch.loop.gradients import Keeping, Kept, Looking, Results, Shown
from partita.adapters.torch.loop.returned import build
from partita.adapters.torch.loop.share import Move, batch_moves, move, own, share_shapes
from partita.adapters.torch.loop.together import Together
from partita.adapters.torch.prepare import Prepared
from partita.errors import InputError, ModelError, PartitaError
from partita.plan import Plan
from partita.plugins.capture_torch import Skeleton
from partita.schedules import Turn, find, forward_only, gpipe
from partita.spacetime.preserve import turn_tasks
from partita.spacetime.program import Task

# What a rank was called with, or why that can't be.
Batches = Sequence[Given] | Exception


@dataclass(frozen=True)
class Call:
    """A copy's batches as micro-batches: ``micro[m]`` holds what this rank's stage reads, ``codes[m]`` what it runs.

    ``owners[b]`` is the rank whose batch number b is; ``mine`` are this rank's own numbers. ``counted`` is the sum
    over all ranks of what losses are divided by.
    """

    parts: tuple[Part, ...]
    codes: tuple[Compiled, ...]
    micro: tuple[dict[str, Tensor], ...]
    owners: tuple[int, ...]
    mine: range
    counted: float


class Loop:
    """What runs a plan for a loop over batches of this rank. ``steps`` keys random draws.

    Satisfies ``flush.Rank``. Every call is collective over all ranks, except looking where each rank has all of the
    model (``alone``).
    """

    def __init__(self, plan: Plan, prepared: Prepared, skeleton: Skeleton, seed: int, *, divided: bool):
        self.plan = plan
        self.program = prepared.lowered.program
        self.stages = prepared.stages
        self.stage = prepared.stage
        self.groups: Groups = prepared.groups
        self.device = prepared.runtime.device
        self.seed = seed
        self.steps = 0
        self.observe: Callable[[Task], None] | None = None
        self.together = Together(self.groups.everyone.process_group)
        self.place = self.program.only_place(self.groups.rank)
        copy = [d for d, (place,) in self.program.places.items() if place.data == self.place.data]
        self.members = sorted(copy)
        self.alone = len(self.members) == 1
        # Nobody else is needed to look: unless parameters are divided over copies (ZeRO-3).
        self.sees = self.alone and not divided
        self.looks = 0
        self.micro_batches = plan.stages[0].micro_batches
        self.codes = Codes(plan, skeleton, self.stage, self.place, live=self.lives)
        self.parameters = [p for p in self.stage.parameters_by_name.values() if p.requires_grad]
        model = skeleton.model
        self.names = skeleton.canonical
        self.dense = dict(model.named_parameters())
        # In the order that the model has them in, tied ones under all of their names.
        self.keys = list(model.state_dict())
        self.frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}

    @property
    def lives(self) -> bool:
        """Whether a call leaves its autograd graph to the loop's backward, as a model without a plan does."""
        return self.alone and self.micro_batches == 1

    def learn(self, batches: Batches, *, mode: Mode, factor: float = 1.0) -> Any:
        """What the model returns, with a gradient. Its loss is that of all ranks' batches; where it has none, results
        are this rank's own, and all forwards are held until the loss that is made of them goes backward.

        ``factor`` is the loss scale under which gradients are computed within the call.
        """
        call = self._begin(batches, learning=True, mode=mode)
        graph = call.codes[0].captured.graph
        if self.lives and len(call.parts) == 1:
            found = self._live(call)
        elif graph.loss is not None:
            found = {graph.loss.tensor: self._loss(call, factor)}
        else:
            found = self._results(call)
        self.steps += 1
        return build(call.codes[0].captured, found)

    def learn_loss(self, batches: Batches, *, mode: Mode, factor: float = 1.0) -> Tensor:
        """The loss of all ranks' batches, maybe several of each, in one flush. ModelError for a model without one."""
        call = self._begin(batches, learning=True, mode=mode)
        if call.codes[0].captured.graph.loss is None:
            raise ModelError(f'"{self.plan.model}" returns no loss for these inputs; call it, and make one')
        found = self._loss(call, factor)
        self.steps += 1
        return found

    def look(self, batches: Batches, *, mode: Mode) -> Any:
        """What the model returns for this rank's batch, without a gradient."""
        call = self._begin(batches, learning=False, mode=mode)
        assert not isinstance(batches, Exception)
        self.looks += 1
        # Learning draws by positive numbers, and must not draw otherwise because somebody looked.
        flush = self._flush(call, Looking(self.stage), [0.0] * len(call.parts), draw=-self.looks)
        with torch.no_grad():
            flush.run(self._queue(call, forward_only(self._stages, len(call.parts))))
        captured = call.codes[call.mine[0]].captured
        own = {name: batches[0].tensors[argument] for name, argument in captured.given.items()}
        return build(captured, own | self._bring_home(call, flush))

    def _begin(self, batches: Batches, *, learning: bool, mode: Mode) -> Call:
        """Tell, agree, share. PartitaError on every rank where one can't go on."""
        failure = batches if isinstance(batches, Exception) else None
        # None: this rank can't say what it was called with.
        told: object = None
        if not isinstance(batches, Exception):
            told = tuple((one.shape, () if self.alone else one.scalars) for one in batches)
        with nullcontext() if self.alone else self.together.waiting():
            everyones = share_shapes(told, self.groups.model and self.groups.model.process_group, self.device)
        parts: list[Part] = []
        codes: list[Compiled] = []
        shapes: list[Shape] = []
        if not any(one is None for one in everyones):
            try:
                shapes = [shape for one in everyones for shape, _ in one]
                alike = len({scalars for one in everyones for _, scalars in one}) == 1
                parts, codes = self._compile(shapes, learning, mode, alike)
            except PartitaError as error:
                failure = failure or error
        alone = not learning and self.sees
        if alone and failure is not None:
            raise failure
        counted = torch.zeros((), dtype=torch.float64, device=self.device)
        if self.alone and failure is None:
            assert not isinstance(batches, Exception)
            micro = self._micro(parts, codes, own(batches, 0))
            counted = self._count(parts, codes, micro)
            total = 0.0 if alone else self._agree(None, counted)
            owners, mine = [self.groups.rank] * len(shapes), range(len(shapes))
            return Call(tuple(parts), tuple(codes), tuple(micro), tuple(owners), mine, total)
        # Where some rank has failed all of them end here.
        self._agree(failure, counted)
        assert not isinstance(batches, Exception)
        owners = [member for member, one in zip(self.members, everyones, strict=True) for _ in one]
        mine = range(owners.index(self.groups.rank), owners.index(self.groups.rank) + owners.count(self.groups.rank))
        wanted = {rank: self._reads(codes, rank) for rank in self.members}
        moves = batch_moves(list(zip(owners, shapes, strict=True)), wanted)
        held = move(moves, own(batches, mine.start), self.groups.rank, self.groups.line.values, self.device)
        micro = self._micro(parts, codes, held)
        total = 0.0
        if learning:
            total = self._agree(None, self._count(parts, codes, micro))
        return Call(tuple(parts), tuple(codes), tuple(micro), tuple(owners), mine, total)

    def _compile(
        self, shapes: Sequence[Shape], learning: bool, mode: Mode, alike: bool
    ) -> tuple[list[Part], list[Compiled]]:
        """The micro-batches of the copy, and their codes.

        Batches that are looked at, or whose loss the loop makes, stay apart: their results go back to who brought them.
        So do those whose scalars aren't ``alike``.
        """
        if learning:
            count = self.micro_batches * (len(shapes) // len(self.members))
            parts = divide(shapes, count, apart=not alike)
            if self.codes.get(parts[0].shape, learning=True, mode=mode).captured.graph.loss is None:
                parts = divide(shapes, count, apart=True)
        else:
            parts = divide(shapes, len(shapes), apart=True)
        return parts, [self.codes.get(part.shape, learning=learning, mode=mode) for part in parts]

    def _agree(self, failure: Exception | None, counted: Tensor) -> float:
        with self.together.waiting():
            return agree(self.groups.everyone, failure, counted)

    def _reads(self, codes: Sequence[Compiled], rank: int) -> set[str]:
        stage = self.program.only_place(rank).stage
        return set().union(*(code.arguments(stage) for code in codes))

    def _micro(
        self, parts: Sequence[Part], codes: Sequence[Compiled], held: Mapping[tuple[Any, ...], Tensor]
    ) -> list[dict[str, Tensor]]:
        """Each micro-batch under the graph's names, from the batches' tensors."""
        found = []
        for part, code in zip(parts, codes, strict=True):
            shapes = {name: shape for name, shape, _ in part.shape.tensors}
            batch = {}
            for name in code.code.piece.batch:
                argument = code.captured.given[name]
                if not part.shape.divided(shapes[argument]):
                    batch[name] = held[part.slices[0].batch, argument]
                    continue
                pieces = [held[one.batch, argument][one.start : one.stop] for one in part.slices]
                batch[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            found.append(batch)
        return found

    def _count(self, parts: Sequence[Part], codes: Sequence[Compiled], micro: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """This copy's tokens or samples, on the one of its ranks that counts them."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part, code, batch in zip(parts, codes, micro, strict=True):
            loss = code.captured.graph.loss
            if loss is None or self.place.tensor or self.place.stage != code.stage_of(loss.tensor):
                continue
            if loss.weighting == "tokens":
                total += count_targets(self.stage, code.code, loss, code.targets, [batch])
            else:
                total += part.shape.samples
        return total

    def _scales(self, call: Call) -> list[float]:
        """What the loss of each micro-batch counts for in the loss of all ranks' batches."""
        found = []
        for part, code in zip(call.parts, call.codes, strict=True):
            loss = code.captured.graph.loss
            assert loss is not None
            if loss.weighting == "sum":
                found.append(1.0 / (len(call.owners) * self.program.dp[0]))
                continue
            if not call.counted:
                raise InputError(f"every label of all ranks' batches is {loss.ignore_index}: no token to learn from")
            found.append((1.0 if loss.weighting == "tokens" else part.shape.samples) / call.counted)
        return found

    @property
    def _stages(self) -> int:
        return len(self.plan.stages)

    def _turns(self, micro_batches: int) -> Mapping[int, Sequence[Turn]]:
        """The plan's order for as many micro-batches as a call has."""
        order = self.plan.order
        return find(order.generator)(self._stages, micro_batches, **order.arguments)

    def _queue(self, call: Call, turns: Mapping[int, Sequence[Turn]]) -> tuple[Task, ...]:
        versions = [code.version for code in call.codes]
        program = self.program
        return turn_tasks(versions, self.groups.rank, program.places, program.devices_of, turns[self.place.stage])

    def _flush(self, call: Call, engine: Engine, scales: Sequence[float], draw: int | None = None) -> Flush:
        """A flush of the call's micro-batches. Their numbers differ from those of other copies, however many these
        have."""
        codes = {self.place.stage: [code.code for code in call.codes]}
        return Flush(self, engine, call.micro, scales, codes, draw=draw, first=self.place.data << 32)

    def _total(self, loss: Tensor) -> Tensor:
        """The sum over copies and stages; of ranks that share pieces one counts."""
        total = loss.detach().double() if self.place.tensor == 0 else torch.zeros_like(loss, dtype=torch.float64)
        self.groups.everyone.sum(total)
        return total.float()

    def _live(self, call: Call) -> dict[str, Tensor]:
        (code,), (batch,) = call.codes, call.micro
        outputs = self.stage(batch, {}, (self.seed, self.steps, self.place.data << 32), code.code)
        loss = code.captured.graph.loss
        if loss is not None:
            (scale,) = self._scales(call)
            local = outputs[loss.tensor]
            value = self._total(local * scale)
            outputs[loss.tensor] = Shown.apply(local, value, scale * self.program.dp[0])
        return dict(outputs)

    def _loss(self, call: Call, factor: float) -> Tensor:
        keeping = Keeping(self.stage, self.parameters, factor)
        flush = self._flush(call, keeping, self._scales(call))
        flush.run(self._queue(call, self._turns(len(call.parts))))
        loss: Tensor = Kept.apply(keeping, self._total(flush.loss), *self.parameters)
        return loss

    def _results(self, call: Call) -> dict[str, Tensor]:
        keeping = Keeping(self.stage, self.parameters)
        flush = self._flush(call, keeping, [0.0] * len(call.parts))
        queue = self._queue(call, gpipe(self._stages, len(call.parts)))
        turning = next(index for index, task in enumerate(queue) if task.kind == "backward" or _backwards(task))
        flush.run(queue[:turning])
        home = self._bring_home(call, flush)
        flush.results.clear()
        names = [name for name, value in home.items() if value.is_floating_point()]

        def back(gradients: Sequence[Tensor]) -> list[Tensor]:
            # The loop means the average over all ranks; the framework averages over copies.
            keeping.require_open()
            share = 1.0 / len(self.members)
            given = {name: gradient * share for name, gradient in zip(names, gradients, strict=True)}
            flush.seeds.update(self._take_back(call, given))
            flush.run(queue[turning:])
            return keeping.take(1.0)

        with torch.enable_grad():
            results = Results.apply(back, len(names), *(home[name] for name in names), *self.parameters)
        return {**home, **dict(zip(names, results, strict=True))}

    def _returned(self, call: Call, only: range | None = None) -> list[tuple[int, int, str, int]]:
        """(micro-batch, batch, result, the stage that makes it) of every result that an op of the model made."""
        found = []
        for micro, (part, code) in enumerate(zip(call.parts, call.codes, strict=True)):
            batch = part.slices[0].batch
            for name in code.version.graph.outputs:
                stage = code.stage_of(name)
                if stage is not None and (only is None or batch in only):
                    found.append((micro, batch, name, stage))
        return found

    def _device(self, stage: int, tensor: int) -> int:
        """The device of this copy that has a stage's pieces number ``tensor``."""
        return self.program.devices_of[stage][self.place.data * self.program.widths[stage] + tensor]

    def _bring_home(self, call: Call, flush: Flush) -> dict[str, Tensor]:
        """This rank's results, whole, from the stages that made them."""
        moves = []
        for micro, batch, name, stage in self._returned(call):
            made = call.codes[micro].version.graph.tensor[name]
            moves.append(
                Move((micro, name), self._device(stage, 0), call.owners[batch], made.shape, getattr(torch, made.dtype))
            )
        held = {(micro, name): value for micro, results in flush.results.items() for name, value in results.items()}
        arrived = move(moves, held, self.groups.rank, self.groups.line.values, self.device)
        pieces: dict[str, list[Tensor]] = {}
        for micro, _, name, _ in self._returned(call, call.mine):
            pieces.setdefault(name, []).append(arrived[micro, name])
        own_parts = [part for part in call.parts if part.slices[0].batch in call.mine]
        return {name: _joined(name, values, own_parts) for name, values in pieces.items()}

    def _take_back(self, call: Call, gradients: Mapping[str, Tensor]) -> dict[tuple[str, int], Tensor]:
        """The gradients of this copy's results, on the ranks whose stage made them."""
        moves, held = [], {}
        for micro, batch, name, stage in self._returned(call):
            made = call.codes[micro].version.graph.tensor[name]
            if not made.gradient:
                continue
            owner = call.owners[batch]
            for tensor in range(self.program.widths[stage]):
                moves.append(
                    Move((micro, name), owner, self._device(stage, tensor), made.shape, getattr(torch, made.dtype))
                )
            if owner == self.groups.rank:
                (one,) = call.parts[micro].slices
                whole = sum(part.slices[0].batch == one.batch for part in call.parts) == 1
                held[micro, name] = gradients[name] if whole else gradients[name][one.start : one.stop]
        arrived = move(moves, held, self.groups.rank, self.groups.line.gradients, self.device)
        return {(name, micro): value for (micro, name), value in arrived.items()}


def _backwards(task: Task) -> bool:
    return task.transfer is not None and task.transfer.backwards


def _joined(name: str, values: Sequence[Tensor], parts: Sequence[Part]) -> Tensor:
    """A batch's result from those of its micro-batches."""
    if len(values) == 1:
        return values[0]
    if all(part.shape.divided(tuple(value.shape)) for value, part in zip(values, parts, strict=True)):
        return torch.cat(list(values))
    raise InputError(
        f'the model returns "{name}" with shape {list(values[0].shape)}, which has no dim of samples, and the plan '
        f"divides a batch into {len(values)} micro-batches; hold micro_batches lower"
    )
