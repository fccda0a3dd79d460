"""What a named schedule is: its generator, the stages that each lane serves, the arguments that it takes.

A *lane* is a list of turns: that of the devices that serve the same stages. In most schedules a lane serves one stage;
in others a device returns to later stages (interleaved, recycling) or all devices share one (interlaced).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from partita.errors import PlanError, listed, nearest
from partita.schedules.turn import Argument, Turn

Lanes = tuple[tuple[int, ...], ...]


def a_stage_each(stages: int, **arguments: Argument) -> Lanes:
    """Lane i serves stage i, whatever the schedule's arguments are."""
    return tuple((stage,) for stage in range(stages))


@dataclass(frozen=True)
class Schedule:
    """A schedule by its name in a plan.

    ``generate(stages, micro_batches, **arguments)`` gives each lane's order of turns, ``serve(stages, **arguments)``
    the stages of each lane; both raise PlanError for counts that can't be. ``arguments`` has their default values,
    None where one must be given. ``weight``: has turns of that phase. ``generate_of(counts, **arguments)`` gives the
    order where stages have unlike numbers of micro-batches; None where there is none. ``generate_on(counts, edges,
    **arguments)`` gives the order for a graph of stages, of like or unlike numbers; None for schedules that take stages
    for a chain. ``each``: the arguments that may have a number for each stage.
    """

    name: str
    generate: Callable[..., dict[int, list[Turn]]]
    serve: Callable[..., Lanes] = a_stage_each
    arguments: Mapping[str, int | None] = field(default_factory=lambda: MappingProxyType({}))
    each: frozenset[str] = frozenset()
    weight: bool = False
    generate_of: Callable[..., dict[int, list[Turn]]] | None = None
    generate_on: Callable[..., dict[int, list[Turn]]] | None = None

    def __call__(self, stages: int, micro_batches: int, **arguments: Argument) -> dict[int, list[Turn]]:
        """Each lane's order of turns. PlanError for counts or arguments that the schedule can't have."""
        return self.generate(stages, micro_batches, **self.complete(arguments))

    def on(
        self, counts: Sequence[int], edges: Sequence[tuple[int, int]], arguments: Mapping[str, Argument]
    ) -> dict[int, list[Turn]]:
        """The order for stages with these numbers of micro-batches and edges (maker, reader) between them.

        A schedule that goes by no graph takes them in the order of the list. PlanError as for the turns.
        """
        if self.generate_on is not None:
            return self.generate_on(counts, edges, **self.complete(arguments))
        if len(set(counts)) > 1:
            return self.unlike(counts, arguments)
        return self(len(counts), counts[0], **arguments)

    def unlike(self, counts: Sequence[int], arguments: Mapping[str, Argument]) -> dict[int, list[Turn]]:
        """The order for stages of unlike numbers of micro-batches. PlanError for a schedule that has none."""
        complete = self.complete(arguments)
        if self.generate_of is None:
            raise PlanError(
                f'schedule "{self.name}" needs as many micro-batches in each stage; these have {listed(counts)}. 1f1b, '
                "kfkb, gpipe and explicit turns take any"
            )
        return self.generate_of(counts, **complete)

    def lanes(self, stages: int, arguments: Mapping[str, Argument]) -> Lanes:
        """The stages that each lane serves, ascending. PlanError as for the turns."""
        return self.serve(stages, **self.complete(arguments))

    def complete(self, arguments: Mapping[str, Argument]) -> dict[str, Argument]:
        """All arguments of the schedule; PlanError for one that it doesn't take and for one that is missing."""
        for name, value in arguments.items():
            if name not in self.arguments:
                known = nearest(name, self.arguments) or " It takes none."
                raise PlanError(f'schedule "{self.name}" takes no argument "{name}".{known}')
            if not isinstance(value, int) and name not in self.each:
                raise PlanError(
                    f'schedule "{self.name}" takes one number as "{name}", not {len(value)}: {listed(value)}. Of kfkb '
                    '"depth" may be one for each stage'
                )
        found = {**self.arguments, **arguments}
        found.update((name, tuple(value)) for name, value in arguments.items() if not isinstance(value, int))
        missing = [name for name, value in found.items() if value is None]
        if missing:
            raise PlanError(f'schedule "{self.name}" needs the argument "{missing[0]}", a whole number')
        return {name: value for name, value in found.items() if value is not None}
