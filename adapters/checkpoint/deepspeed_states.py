"""The optimizer's state in a rank's DeepSpeed files: master weights, moments and numbers, by the model's names.

Without ZeRO each parameter has its own tensors. ZeRO 1 and 2 lay a group's parameters flat one after another and cut
the whole into a partition for each copy; ZeRO 3 cuts each parameter into equal chunks, and lays a copy's chunks flat
one after another. The order is that of ``param_shapes``. Padding, at the end of a partition or of a chunk, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.catalogue import PARAMETER, Group, Key, Piece, Stored
from partita.adapters.checkpoint.deepspeed_layout import RankLayout
from partita.adapters.checkpoint.fill import values
from partita.adapters.checkpoint.local import flat_pieces, stored_shape, whole_pieces
from partita.errors import InputError


@dataclass
class State:
    """What a rank's files have: the dtype and the pieces of each tensor, numbers, groups. ``zero``: None without."""

    zero: int | None = None
    pieces: dict[Key, tuple[str, list[Piece]]] = field(default_factory=dict)
    scalars: dict[Key, Any] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    def add(self, name: str, word: str, stored: Stored, pieces: Iterator[Piece] | list[Piece]) -> None:
        self.pieces.setdefault((name, word), (stored.dtype, []))[1].extend(pieces)

    def number(self, name: str, word: str, value: Any) -> None:
        self.scalars[name, word] = values(value) if isinstance(value, Stored) else value


def rank_states(heads: Sequence[Any], parts: Sequence[Any], layout: RankLayout, folder: Path) -> State:
    """The state of one rank of a copy: ``heads`` are its module files, ``parts`` its optimizer files, one a copy.

    InputError where it is of no form that is known, or doesn't say whose it is.
    """
    if not parts:
        return _without_zero(heads[0].get("optimizer"), layout, folder)
    shapes = heads[0]["param_shapes"]
    inner = [part["optimizer_state_dict"] for part in parts]
    if "fp32_flat_groups" in inner[0]:
        return _third(inner, shapes, layout, heads)
    if "single_partition_of_fp32_groups" not in inner[0]:
        raise InputError(
            f"{folder}: its optimizer's files have {', '.join(map(str, inner[0]))}, which is none of the forms of ZeRO "
            "1, 2 and 3"
        )
    return _first(inner, shapes, layout)


def _without_zero(optimizer: Any, layout: RankLayout, folder: Path) -> State:
    """A torch optimizer's state, or that of DeepSpeed's around one with copies in 32 bits."""
    state = State()
    if optimizer is None:
        return state
    base = optimizer.get("optimizer_state_dict", optimizer)
    groups = layout.groups
    if groups is None:
        if base["state"]:
            raise InputError(
                f"{folder}: its optimizer knows its parameters by numbers, and no file says which they are: it was "
                "saved without ZeRO and not by Partita's engine; --to safetensors takes its weights"
            )
        return state
    masters = optimizer.get("fp32_groups") or optimizer.get("fp32_groups_flat")
    for group, (names, options) in enumerate(zip(groups, base["param_groups"], strict=True)):
        state.groups.append(_group(names, options))
        flat = masters is not None and isinstance(masters[group], Stored)
        offset = 0
        for place, name in enumerate(names):
            size = 1 if name is None else prod(layout.parts[name].local_shape)
            if name is not None:
                own = base["state"].get(options["params"][0 if flat else place], {})
                items = dict(own)
                if masters is not None:
                    items[PARAMETER] = masters[group] if flat else masters[group][place]
                for word, value in items.items():
                    if isinstance(value, Stored) and value.shape:
                        part = layout.parts[name]
                        if flat:
                            there = value.at(((offset, offset + size),))
                            state.add(name, word, value, flat_pieces(part, 0, size, there))
                        elif value.shape == stored_shape(part):
                            state.add(name, word, value, whole_pieces(part, value))
                        else:
                            raise InputError(
                                f'{folder}: the optimizer\'s "{word}" of "{name}" is {list(value.shape)} for a '
                                f"parameter of {list(stored_shape(part))}: only a state of the parameter's own shape, "
                                "or of one number, can be cut anew"
                            )
                    else:
                        state.number(name, word, value)
            offset += size
    return state


def _first(inner: Sequence[Any], shapes: Any, layout: RankLayout) -> State:
    """ZeRO 1 and 2."""
    state = State(_stage(inner[0].get("zero_stage")))
    alignments = inner[0].get("param_alignment_paddings") or [[0] * len(group) for group in shapes]
    for group, named in enumerate(shapes):
        bounds = [0]
        for part in inner:
            bounds.append(bounds[-1] + part["single_partition_of_fp32_groups"][group].shape[0])
        offset = 0
        for (key, shape), padding in zip(named.items(), alignments[group], strict=True):
            size, name = prod(shape), layout.name(key)
            for copy, part in enumerate(inner):
                start, stop = max(offset, bounds[copy]), min(offset + size, bounds[copy + 1])
                if name is not None and start < stop:
                    for word, value in _flat(part, group):
                        if isinstance(value, Stored) and value.shape:
                            there = value.at(((start - bounds[copy], stop - bounds[copy]),))
                            pieces = flat_pieces(layout.parts[name], start - offset, stop - offset, there)
                            state.add(name, word, value, pieces)
                        else:
                            state.number(name, word, value)
            offset += size + padding
        names = [layout.name(key) for key in named]
        state.groups.append(_group(names, _options(inner[0], group)))
    return state


def _third(inner: Sequence[Any], shapes: Any, layout: RankLayout, heads: Sequence[Any]) -> State:
    """ZeRO 3: the parameters in order fill a copy's flat tensors, of which there are several for a large group."""
    state, copies = State(3), len(inner)
    flat, offset = 0, 0
    base = inner[0]["optimizer_state_dict"]
    members: dict[int, list[str | None]] = {}
    for key, shape in (item for group in shapes for item in group.items()):
        size, name = prod(shape), layout.name(key)
        each = -(-size // copies)
        while offset + each > inner[0]["fp32_flat_groups"][flat].shape[0]:
            flat, offset = flat + 1, 0
        members.setdefault(_group_of(base, flat), []).append(name)
        for copy, part in enumerate(inner):
            start, stop = min(size, copy * each), min(size, (copy + 1) * each)
            if name is not None and start < stop:
                own = part["optimizer_state_dict"]["state"].get(flat, {})
                for word, value in {**own, PARAMETER: part["fp32_flat_groups"][flat]}.items():
                    if isinstance(value, Stored) and value.shape:
                        there = value.at(((offset, offset + stop - start),))
                        state.add(name, word, value, flat_pieces(layout.parts[name], start, stop, there))
                    else:
                        state.number(name, word, value)
        offset += each
    state.groups.extend(
        _group(members.get(index, []), options) for index, options in enumerate(base["param_groups"])
    )  # fmt: skip
    _frozen(state, heads, layout)
    return state


def _frozen(state: State, heads: Sequence[Any], layout: RankLayout) -> None:
    """With ZeRO 3 what isn't trained is in each copy's module file, a chunk each."""
    for key, shape in (heads[0].get("frozen_param_shapes") or {}).items():
        name, size = layout.name(key), prod(shape)
        if name is not None and size == 0:
            # Without elements: it is in no chunk.
            state.add(name, PARAMETER, heads[0]["frozen_param_fragments"][key], [])
        for copy, head in enumerate(heads):
            chunk = head["frozen_param_fragments"][key]
            each = prod(chunk.shape)
            start, stop = min(size, copy * each), min(size, (copy + 1) * each)
            if name is not None and start < stop and not layout.parts[name].copy:
                there = chunk.viewed(0, (stop - start,))
                state.add(name, PARAMETER, chunk, flat_pieces(layout.parts[name], start, stop, there))


def _flat(part: Mapping[str, Any], group: int) -> Iterator[tuple[str, Any]]:
    """The master weights and the state of a group's partition, by word."""
    yield PARAMETER, part["single_partition_of_fp32_groups"][group]
    base = part["base_optimizer_state"]
    if isinstance(base, Mapping):
        yield from base["state"].get(base["param_groups"][group]["params"][0], {}).items()
    else:
        yield from base[group].items()


def _options(part: Mapping[str, Any], group: int) -> Mapping[str, Any]:
    base = part["base_optimizer_state"]
    return base["param_groups"][group] if isinstance(base, Mapping) else {}


def _group_of(base: Mapping[str, Any], flat: int) -> int:
    return next(index for index, group in enumerate(base["param_groups"]) if flat in group["params"])


def _group(names: Sequence[str | None], options: Mapping[str, Any]) -> Group:
    kept = {key: value for key, value in options.items() if key != "params"}
    return Group(tuple(name for name in names if name is not None), kept)


def _stage(found: Any) -> int:
    """DeepSpeed's own number of a stage, which stands in the file as one of its objects; BF16_Optimizer has none."""
    args = getattr(found, "args", ())
    return int(args[0]) if args else int(found) if isinstance(found, int) else 1
