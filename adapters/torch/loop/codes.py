"""The model's code for every shape of batch that a loop comes with: exported once each, lowered by the plan."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from partita.adapters.torch.begin import loss_ops
from partita.adapters.torch.loop.batch import Shape
from partita.adapters.torch.stage import Code, StageModule
from partita.errors import ModelError
from partita.plan import Plan
from partita.plugins.capture_torch import Captured, Skeleton, capture_skeleton
from partita.spacetime.lower import stage_code
from partita.spacetime.preserve import Version
from partita.spacetime.program import LocalOp, Place
from partita.spacetime.prove_code import prove_code
from partita.spacetime.transform import transform

# Codes hold no weights: the graph's description, a few MB for a large model, and its constants (masks, positions).
KEPT = 64
# From so many shapes on, the time that they cost is told.
MANY = 8


class Mode(NamedTuple):
    """Whether the model trains, and the paths of the modules that are in the other mode (a backbone in evaluation)."""

    training: bool
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """The code for one shape: of all stages, and this rank's own. ``targets`` compute what its loss counts."""

    captured: Captured
    version: Version
    code: Code
    targets: tuple[LocalOp, ...]

    def stage_of(self, name: str) -> int | None:
        """The stage whose piece gives this value, or None."""
        return next((piece.stage for piece in self.version.pieces if name in piece.outputs), None)

    def arguments(self, stage: int) -> set[str]:
        """The model's arguments that a stage reads."""
        return {self.captured.given[name] for name in self.version.pieces[stage].batch}


class Codes:
    """Codes by shape, the least recently used forgotten. ``live``: what a model with a loss returns beside it stays."""

    def __init__(self, plan: Plan, skeleton: Skeleton, stage: StageModule, place: Place, live: bool):
        self.plan = plan
        self.skeleton = skeleton
        self.stage = stage
        self.place = place
        self.live = live
        self.found: OrderedDict[tuple[Shape, bool, Mode], Compiled] = OrderedDict()
        self.made = 0
        self.seconds = 0.0

    def get(self, shape: Shape, *, learning: bool, mode: Mode) -> Compiled:
        """The code for batches of this shape, in the model's mode. ``learning``: gradients are wanted.

        ModelError where the model can't be exported for it, or would read other parameters than those planned for.
        """
        key = (shape, learning, mode)
        if key in self.found:
            self.found.move_to_end(key)
            return self.found[key]
        start = time.perf_counter()
        compiled = self._compile(shape, learning, mode)
        self.made += 1
        self.seconds += time.perf_counter() - start
        if self.made == MANY and self.place.tensor == 0 and self.place.data == 0 and self.place.stage == 0:
            print(
                f"partita: batches came in {MANY} shapes so far, and reading the model for them took "
                f"{self.seconds:.1f} s; padding to fewer lengths saves that",
                flush=True,
            )
        self.found[key] = compiled
        if len(self.found) > KEPT:
            self.found.popitem(last=False)
        return compiled

    def _compile(self, shape: Shape, learning: bool, mode: Mode) -> Compiled:
        try:
            captured = capture_skeleton(
                self.skeleton, shape.example(), name=self.plan.model, goal="loss" if learning else "outputs",
                training=mode.training, others=mode.others,
            )  # fmt: skip
        except ModelError as error:
            raise ModelError(f"{error} (called with {shape})") from error
        known = {block for stage in self.plan.stages for block in stage.blocks}
        if odd := [block.name for block in captured.graph.blocks if block.name not in known]:
            raise ModelError(
                f'called with {shape}, "{self.plan.model}" runs the block "{odd[0]}", which it doesn\'t for the inputs '
                "that it was planned for"
            )
        stages = [stage_code(stage) for stage in self.plan.stages]
        pieces = transform(captured.graph, stages, returned=self.live)
        prove_code(captured.graph, pieces, [stage.inner for stage in self.plan.stages])
        piece = pieces[self.place.stage]
        code = self.stage.another(captured.graph, piece, captured.buffers)
        return Compiled(captured, Version(captured.graph, pieces), code, loss_ops(piece, captured.graph.loss))
