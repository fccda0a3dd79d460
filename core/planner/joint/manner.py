"""A manner: how the axes inside a copy of a stage divide the blocks, beside ``data`` and the micro-batches.

Each strategy of a block is a manner with a ZeRO stage and what is computed again. Plugins offer manners
(``partita_strategies``), the built-in ones come the same way (``manners``), and all are priced by the division that
their strategy comes to (``cost.divide``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from partita.graph.model import Block
from partita.plan import Axis, Cut, Recompute, Strategy


def all_along_tensor(block: Block, classes: Sequence[str]) -> Iterable[Cut]:
    """Every class of dims along ``tensor``: Megatron's tensor parallelism."""
    return [Cut(name, ("tensor",)) for name in classes]


def always(dp: int, tp: int) -> bool:
    """For manners that go with all numbers of devices."""
    return True


@dataclass(frozen=True, eq=False)
class Manner:
    """``axes``: those of space that a stage needs between data and tensor, and those of turns inside a block.

    ``cuts``: of a block, by the names of its classes of dims; None: the block doesn't run so. Asked once for blocks
    that are alike, with one of them. Cuts along an axis of one device are dropped; a manner is not offered for a block
    where pieces don't divide a dim. ``batch``, ``sequence``: the axes of space, ``tensor`` among them, that divide a
    copy's samples and its tokens, of all blocks. ``fits``: whether it goes with dp and tp. ``each``: each block of a
    stage may run so or plainly, which is for axes of turns or none, and neither samples nor tokens divided; otherwise
    all blocks of a stage do.
    """

    name: str
    cuts: Callable[[Block, Sequence[str]], Iterable[Cut] | None] = all_along_tensor
    axes: tuple[Axis, ...] = ()
    batch: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    fits: Callable[[int, int], bool] = always
    each: bool = False

    def __post_init__(self) -> None:
        space = {axis.name for axis in self.space}
        flows = {*self.batch, *self.sequence}
        assert flows <= {*space, "tensor"}, (self.name, flows)
        assert not (self.each and (space or flows)), self.name

    @cached_property
    def space(self) -> tuple[Axis, ...]:
        """Its axes of space."""
        return tuple(axis for axis in self.axes if axis.kind == "space")

    @property
    def turns(self) -> tuple[Axis, ...]:
        """Its axes of turns."""
        return tuple(axis for axis in self.axes if axis.kind == "turns")

    def width(self, tp: int) -> int:
        """The devices of a copy."""
        return tp * self._apart

    @cached_property
    def _apart(self) -> int:
        return prod(axis.size for axis in self.space)

    def sizes(self, tp: int) -> dict[str, int]:
        """The axes of space inside a copy that have several devices."""
        return {name: size for name, size in (*((a.name, a.size) for a in self.space), ("tensor", tp)) if size > 1}

    def parts(self, tp: int) -> int:
        """Into how many parts a copy's samples are divided."""
        return prod(size for name, size in self.sizes(tp).items() if name in self.batch)

    def flows(self, tp: int) -> frozenset[str]:
        """The axes inside a copy that divide samples or tokens."""
        return frozenset(self.sizes(tp)) & {*self.batch, *self.sequence}

    def held(self, name: str) -> int:
        """What ``--fix`` calls sp, cp and ep."""
        if name == "sp":
            return int("tensor" in self.sequence)
        axis = {"cp": "context", "ep": "expert"}[name]
        return next((found.size for found in self.axes if found.name == axis), 1)

    def strategy(
        self, block: Block, classes: Sequence[str], tp: int, zero: int, recompute: Recompute
    ) -> Strategy | None:
        """The strategy of a block; None: it doesn't run so."""
        found = self.cuts(block, classes)
        if found is None:
            return None
        here = {*self.sizes(tp), *(axis.name for axis in self.turns)}

        def along(axes: Sequence[str]) -> tuple[str, ...]:
            return tuple(axis for axis in axes if axis in here)

        cuts = [Cut("batch", ("micro", "data", *along(self.batch)))]
        cuts += [Cut("sequence", axes) for axes in (along(self.sequence),) if axes]
        cuts += [Cut(cut.dim, axes) for cut in found if (axes := along(cut.axes))]
        return Strategy(tuple(cuts), zero, recompute)  # type: ignore[arg-type]


# Tensor parallelism, or none.
PLAIN = Manner("plain")
# The samples of a copy divided over its devices: data parallelism in a stage of which other blocks cut classes.
DIVIDED = Manner("divided", lambda block, classes: (), batch=("tensor",))
