"""Writing Megatron's distributed checkpoint (``torch_dist``) of its GPT model, for training in Megatron itself.

The tensors are fused again as ``structure`` says and stacked along the layers; nothing is padded, since Megatron loads
a vocabulary into whatever it pads it to. One file a layer, and one of what is outside: any division of Megatron's reads
the boxes that it wants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.catalogue import PARAMETER, Catalogue, Entry, Piece, Stored
from partita.adapters.checkpoint.output import Output
from partita.adapters.checkpoint.read_megatron import COMMON, CONFIG, OWN_OPTIONS, undecayed
from partita.adapters.checkpoint.structure import LINEAR, Rows, names_of
from partita.adapters.checkpoint.target import entry_of
from partita.adapters.checkpoint.write_dcp import Part, write_file, write_index
from partita.adapters.torch import dcp
from partita.errors import InputError
from partita.graph import Graph
from partita.redistribution.view import intersection

LAYERS = "decoder.layers"
OUTSIDE_FILE = "__outside.distcp"
BACKEND = {
    "sharded_backend": "torch_dist", "sharded_backend_version": 1,
    "common_backend": "torch", "common_backend_version": 1,
}  # fmt: skip


def megatron_outputs(catalogue: Catalogue, graph: Graph) -> list[Output]:
    """The files. InputError where the model is of no family whose tensors in Megatron are known."""
    names = names_of(graph)
    count = names.layers
    states = (PARAMETER, *catalogue.states)
    outside: list[Part] = []
    layers: list[list[Part]] = [[] for _ in range(count)]
    for state in states:
        for name in names.outsides:
            (row,) = names.outside(name)
            entry = entry_of(catalogue, graph, row.name, state)
            if entry is not None:
                outside.append((_key(name, state), entry, whole(entry.shape)))
        for name in names.insides:
            fused = [_fused(catalogue, graph, names.inside(name, layer), state) for layer in range(count)]
            if any(one is not None for one in fused):
                _stack(_key(f"{LAYERS}.{name}", state), fused, layers, catalogue.path)
    files = {f"__{layer}_0.distcp": parts for layer, parts in enumerate(layers)} | {OUTSIDE_FILE: outside}
    # Megatron's layers without fp8 have a state of nothing, and miss it.
    nothing = {f"{LAYERS}.{m}._extra_state/shard_{n}_{count}": [None] for m in LINEAR for n in range(count)}
    common = _common(catalogue, graph)
    text = json.dumps(BACKEND)
    return [
        *(
            Output(file, lambda path, file=file, parts=parts: write_file(path, file, parts))
            for file, parts in files.items()
        ),
        Output("__nothing.distcp", lambda path: write_file(path, "__nothing.distcp", [], nothing)),
        Output(dcp.METADATA, lambda path: write_index(path, [*files, "__nothing.distcp"], {})),
        Output(COMMON, lambda path: torch.save(common, path)),
        Output(CONFIG, lambda path: path.write_text(text)),
    ]  # fmt: skip


def _key(name: str, state: str) -> str:
    return name if state == PARAMETER else f"optimizer.state.{state}.{name}"


def _fused(catalogue: Catalogue, graph: Graph, rows: Sequence[Rows], state: str) -> Entry | None:
    """One of Megatron's tensors of one layer, out of the model's; None where the checkpoint hasn't this state of it."""
    pieces: list[Piece] = []
    shape: tuple[int, ...] = ()
    dtype = ""
    for row in rows:
        entry = entry_of(catalogue, graph, row.name, state)
        if entry is None:
            return None
        dtype = entry.dtype
        shape = (rows[-1].stop, *(entry.shape[:1] if row.transposed else entry.shape[1:]))
        for piece in entry.pieces:
            box = piece.box[::-1] if row.transposed else piece.box
            stored = piece.stored.transposed() if row.transposed else piece.stored
            common = intersection(box, ((row.first, row.first + row.stop - row.start), *box[1:]))
            if common is not None:
                (start, stop), *others = common
                moved = ((start - row.first + row.start, stop - row.first + row.start), *others)
                pieces.append(Piece(moved, Piece(box, stored).at(common)))
    return Entry(shape, dtype, tuple(pieces))


def _stack(key: str, fused: Sequence[Entry | None], layers: Sequence[list[Part]], path: Path) -> None:
    """Add each layer's part of the tensor that is stacked of all layers' to the parts of its file."""
    shapes = {None if one is None else (one.shape, one.dtype) for one in fused}
    if len(shapes) > 1:
        raise InputError(f'{path}: Megatron stacks "{key}" of all layers, which are not alike: {shapes}')
    for layer, one in enumerate(fused):
        assert one is not None
        pieces = tuple(Piece(((layer, layer + 1), *p.box), _with_first_dim(p.stored)) for p in one.pieces)
        stacked = Entry((len(fused), *one.shape), one.dtype, pieces)
        layers[layer].append((key, stacked, ((layer, layer + 1), *whole(one.shape))))


def _with_first_dim(stored: Stored) -> Stored:
    return replace(stored, shape=(1, *stored.shape), strides=(0, *stored.strides))


def _common(catalogue: Catalogue, graph: Graph) -> dict[str, Any]:
    """What Megatron keeps beside the tensors."""
    found: dict[str, Any] = {"iteration": int(catalogue.rest.get("steps", 0)), "checkpoint_version": 3.0}
    if not catalogue.states:
        return found
    steps = {float(value) for (_, state), value in catalogue.scalars.items() if state == "step"}
    if len(steps) > 1:
        raise InputError(
            f"{catalogue.path}: the optimizer has taken {sorted(steps)} steps with different parameters; Megatron has "
            "one number for all"
        )
    state = {"common_step": torch.tensor(steps.pop())} if steps else {}
    return {**found, "optimizer": {"state": state, "param_groups": _groups(catalogue, graph)}}


def _groups(catalogue: Catalogue, graph: Graph) -> list[Mapping[str, Any]]:
    """The options of Megatron's two groups, in its order: what it decays, then biases and tensors of one dim.

    InputError where the parameters of one of them have other options.
    """
    canonical = {**catalogue.aliases, **graph.aliases}
    options = {canonical.get(name, name): group.options for group in catalogue.groups for name in group.names}
    plain = undecayed(options, graph)
    found = []
    for names, decay in (([name for name in options if name not in plain], 1.0), (plain, 0.0)):
        own = list({id(options[name]): options[name] for name in names}.values())
        if len(own) > 1:
            raise InputError(
                f'{catalogue.path}: "{names[0]}" and others have {len(own)} groups in the optimizer; Megatron has one '
                "for biases and tensors of one dim, and one for the rest"
            )
        if own:
            found.append({**own[0], **OWN_OPTIONS, "wd_mult": decay})
    return found
