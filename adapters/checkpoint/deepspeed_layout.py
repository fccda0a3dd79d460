"""Which part of the model each tensor of a DeepSpeed rank is: as its file says, as a plan says, or whole.

Partita's engine writes it into the file. An older checkpoint's follows from the plan that saved it. Plain DeepSpeed's
without model parallelism has the model's own tensors under the model's own names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.catalogue import Stored
from partita.adapters.checkpoint.target import Part, Target
from partita.adapters.torch.loop.facade import CHILD
from partita.adapters.torch.resharded import LAYOUT
from partita.adapters.torch.stage import dense_name
from partita.errors import InputError
from partita.spacetime.program import Shard


@dataclass(frozen=True)
class RankLayout:
    """One rank's parts by the model's names; ``groups``: names in the optimizer's groups, where the file says them;
    ``buffers`` that the module of the file hasn't."""

    parts: Mapping[str, Part]
    groups: tuple[tuple[str | None, ...], ...] | None
    own: bool
    buffers: Mapping[str, Stored] = field(default_factory=dict)

    def name(self, key: str) -> str | None:
        """The model's name of a tensor of the module; None for what isn't the model's (a group's placeholder)."""
        if self.own:
            # A loop's stage is the child of the user's module.
            key = key.removeprefix(f"{CHILD}.")
            key = dense_name(key) if "." in key else key
        return key if key in self.parts else None


def rank_layout(head: Mapping[str, Any], path: Path, rank: int, ranks: int, by: Target | None) -> RankLayout:
    """The layout of a rank, from its file's contents. InputError where nobody says it, or where two say two things."""
    said = head.get(LAYOUT)
    if said is not None:
        parts = {name: _part(name, item) for name, item in said["parameters"].items()}
        groups = said["groups"]
        named = None if groups is None else tuple(tuple(names) for names in groups)
        found = RankLayout(parts, named, True, said["buffers"])
        if by is not None:
            _require_same(found, path, rank, ranks, by)
        return found
    shapes = _shapes(head)
    if by is None:
        if ranks > 1:
            raise InputError(
                f"{path}: doesn't say which parts of the model its tensors are (a copy of the model lay on {ranks} "
                "devices); --from PLAN says which plan saved it"
            )
        return RankLayout({name: Part(name, shape, None, 0, False) for name, shape in shapes.items()}, None, False)
    if ranks != len(by.ranks):
        raise InputError(
            f"{path}: a copy of the model lay on {ranks} devices, that of the --from plan ({by.words}) lies on "
            f"{len(by.ranks)}: another plan saved it"
        )
    return _by_plan(shapes, path, rank, by)


def _part(name: str, item: Mapping[str, Any]) -> Part:
    shard = None if item["shard"] is None else Shard(**item["shard"])
    return Part(name, tuple(item["shape"]), shard, item["piece"], item["copy"], item["flipped"])


def _shapes(head: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a module's parameters by key, whole over data-parallel copies."""
    buffers = set(head.get("buffer_names") or ())
    found = {k: v.shape for k, v in (head.get("module") or {}).items() if isinstance(v, Stored) and k not in buffers}
    for group in head.get("param_shapes") or ():
        found.update({key: tuple(shape) for key, shape in group.items()})
    found.update({key: tuple(shape) for key, shape in (head.get("frozen_param_shapes") or {}).items()})
    for alias, key in (head.get("shared_params") or {}).items():
        found[alias] = found[key]
    return found


def _by_plan(shapes: Mapping[str, tuple[int, ...]], path: Path, rank: int, by: Target) -> RankLayout:
    parts = dict(by.ranks[rank])
    own = any("/" in key for key in shapes)
    found = RankLayout(parts, None, own)
    for key, shape in shapes.items():
        name = found.name(key)
        if name is None:
            raise InputError(f'{path}: has "{key}", which this rank has none of under the --from plan ({by.words})')
        wanted = parts[name].local_shape
        if shape == wanted[::-1] and shape != wanted:
            parts[name] = replace(parts[name], flipped=True)
        elif shape != wanted:
            raise InputError(
                f'{path}: its "{name}" is {list(shape)}, under the --from plan ({by.words}) a rank has '
                f"{list(wanted)} of it: another plan saved it"
            )
        elif len(shape) == 2 and shape[0] == shape[1] and parts[name].shard is not None:
            raise InputError(
                f'{path}: its "{name}" is {list(shape)}, and nothing says whether it is stored transposed; '
                "what this version of Partita saves says so itself"
            )
    return RankLayout(parts, None, own)


def _require_same(found: RankLayout, path: Path, rank: int, ranks: int, by: Target) -> None:
    if ranks == len(by.ranks):
        planned = by.ranks[rank]
        odd = [name for name in {**found.parts, **planned} if not _alike(found.parts.get(name), planned.get(name))]
        if not odd:
            return
        what = f'its part of "{odd[0]}" is another one'
    else:
        what = f"a copy of the model lay on {ranks} devices, that of the plan lies on {len(by.ranks)}"
    raise InputError(
        f"{path}: the --from plan ({by.words}) isn't the one that saved it: {what}; leave out --from: the checkpoint "
        "says it itself"
    )


def _alike(one: Part | None, other: Part | None) -> bool:
    return one is not None and other is not None and replace(one, flipped=False) == replace(other, flipped=False)
