"""Reading Megatron's distributed checkpoint (``torch_dist``): torch's format underneath, and ``common.pt`` beside it.

Names are those of Megatron's GPT model, its layers stacked along a first dim or one by one: ``structure`` says what
they are of the HuggingFace model. Or they are the model's own, where Megatron saved a model that isn't its own.
The optimizer's state is ``optimizer.state.STATE.NAME``. Where it has master weights, the parameters are these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.catalogue import PARAMETER, Catalogue, Entry, Group, Key, Piece, Stored
from partita.adapters.checkpoint.pickled import read_pickled, with_values
from partita.adapters.checkpoint.read_dcp import entry
from partita.adapters.checkpoint.structure import VOCABULARY, Names, Rows, names_of
from partita.adapters.torch.dcp import read_metadata
from partita.errors import InputError
from partita.files import read_json, read_text
from partita.graph import Graph
from partita.redistribution.view import Box, intersection

FORMAT = "Megatron distributed checkpoint"
CONFIG, COMMON, LATEST = "metadata.json", "common.pt", "latest_checkpointed_iteration.txt"
MASTERS = ("fp32_param", "param")
# What Megatron finds a group by, as of a model without experts; and what its scheduler alone reads in one.
OWN_OPTIONS = {"lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
SCHEDULED = {*OWN_OPTIONS, "wd_mult", "default_config", "max_lr", "min_lr"}
STATE = re.compile(r"optimizer\.state\.(?P<state>[^.]+)\.(?P<name>.+)")
LAYER = re.compile(r"decoder\.layers\.(?:(?P<layer>\d+)\.)?(?P<name>.+)")


def megatron_folder(path: Path) -> Path | None:
    """The folder of the checkpoint: itself, or that of the latest iteration; None where it is something else."""
    if (path / LATEST).is_file():
        word = read_text(path / LATEST).strip()
        path = path / (f"iter_{int(word):07d}" if word.isdigit() else word)
    if not (path / CONFIG).is_file():
        return None
    config = read_json(path / CONFIG)
    return path if isinstance(config, dict) and "sharded_backend" in config else None


def read_megatron(path: Path, graph: Graph) -> Catalogue:
    """What it holds, under the model's names. InputError where it is broken, or a tensor's structure is unknown."""
    backend = read_json(path / CONFIG)["sharded_backend"]
    if backend != "torch_dist":
        raise InputError(f'{path}: was saved as "{backend}"; torch_dist can be read')
    stored = read_metadata(path).stored
    # Megatron's "extra state" is empty without its fp8 kernels.
    tensors = {key: one for key, one in stored.items() if one.dtype is not None}
    fused = any(key in tensors for key in VOCABULARY) or any(LAYER.fullmatch(key) for key in tensors)
    names = names_of(graph) if fused else None
    found: dict[Key, dict[Box, Piece]] = {}
    dtypes: dict[Key, str] = {}
    padded: dict[str, tuple[int, int]] = {}
    for key, one in tensors.items():
        state, name = _meant(key)
        if any(f"optimizer.state.{master}.{key}" in tensors for master in MASTERS):
            continue
        if state == PARAMETER and key.startswith(("optimizer.distributed.", "chained_")):
            raise InputError(
                f'{path}: has the optimizer\'s state by buckets of its own ranks ("{key}"); '
                "--dist-ckpt-optim-fully-reshardable saves it by names"
            )
        whole = entry(path, one)
        if names is None:
            found[name, state] = {piece.box: piece for piece in whole.pieces}
            dtypes[name, state] = whole.dtype
            continue
        if name in VOCABULARY:
            padded[names.outside(name)[0].name] = 0, whole.shape[0]
        for row, piece in _pieces(names, name, whole, path):
            found.setdefault((row.name, state), {})[piece.box] = piece
            dtypes[row.name, state] = whole.dtype
    entries = {key: Entry(_extent(pieces), dtypes[key], tuple(pieces.values())) for key, pieces in found.items()}
    common = with_values(read_pickled(path / COMMON)) if (path / COMMON).is_file() else {}
    return _with_small_state(Catalogue(path, FORMAT, entries, padded=padded), common, graph)


def _meant(key: str) -> tuple[str, str]:
    """The state, and the name of the parameter."""
    match = STATE.fullmatch(key)
    if match is None:
        return PARAMETER, key
    return PARAMETER if match["state"] in MASTERS else match["state"], match["name"]


def _pieces(names: Names, name: str, whole: Entry, path: Path) -> list[tuple[Rows, Piece]]:
    """Of one of Megatron's tensors the pieces of the model's."""
    match = LAYER.fullmatch(name)
    if match is None:
        return _of_rows(names.outside(name), whole.pieces, name in VOCABULARY, whole.shape, name, path)
    if match["layer"] is not None:
        return _of_rows(names.inside(match["name"], int(match["layer"])), whole.pieces, False, whole.shape, name, path)
    found = []
    for layer in range(whole.shape[0]):
        pieces = []
        for piece in whole.pieces:
            (first, last), *box = piece.box
            if first <= layer < last:
                pieces.append(Piece(tuple(box), _only(piece.at(((layer, layer + 1), *box)))))
        rows = names.inside(match["name"], layer)
        found += _of_rows(rows, tuple(pieces), False, whole.shape[1:], name, path)
    return found


def _only(stored: Stored) -> Stored:
    """An array without its first dim, which has one index."""
    return replace(stored, shape=stored.shape[1:], strides=stored.strides[1:])


def _of_rows(
    rows: list[Rows], pieces: Sequence[Piece], pads: bool, shape: tuple[int, ...], name: str, path: Path
) -> list[tuple[Rows, Piece]]:
    """The model's pieces, out of those of a tensor that consists of these rows. ``pads``: rows after them are none.

    InputError where it has other rows.
    """
    real = rows[-1].stop
    if shape[0] != real and not (pads and shape[0] > real):
        raise InputError(
            f"{path}: is no checkpoint of the model: Megatron's \"{name}\" has {shape[0]} rows, the model's own have "
            f"{real} ({', '.join(dict.fromkeys(row.name for row in rows))})"
        )
    found = []
    for piece in pieces:
        for row in rows:
            common = intersection(piece.box, ((row.start, row.stop), *piece.box[1:]))
            if common is None:
                continue
            (start, stop), *others = common
            box: Box = ((start - row.start + row.first, stop - row.start + row.first), *others)
            values = piece.at(common)
            found.append((row, Piece(box[::-1], values.transposed()) if row.transposed else Piece(box, values)))
    return found


def _extent(boxes: Iterable[Box]) -> tuple[int, ...]:
    """The shape that boxes make up, if nothing lacks at the end."""
    return tuple(max(stop for _, stop in dim) for dim in zip(*boxes, strict=True))


def _with_small_state(catalogue: Catalogue, common: Mapping[str, Any], graph: Graph) -> Catalogue:
    """With what ``common.pt`` says: steps, the optimizer's groups and count, the schedule."""
    optimizer = common.get("optimizer") or {}
    # With master weights, or divided, it is an optimizer in an optimizer.
    optimizer = optimizer.get("optimizer") or optimizer
    trained = list(dict.fromkeys(name for name, state in catalogue.tensors if state != PARAMETER))
    groups = _groups(optimizer.get("param_groups") or [], trained, graph, catalogue.path)
    steps = [optimizer.get("state", {}).get("common_step"), *(group.options.get("step") for group in groups)]
    step = next((step for step in steps if step is not None), None)
    scalars = {} if step is None else {(name, "step"): step for name in trained}
    rest = {"steps": int(common.get("iteration", 0)), "client": {}}
    if "opt_param_scheduler" in common:
        rest["lr_scheduler"] = common["opt_param_scheduler"]
    groups = tuple(
        replace(group, options={key: value for key, value in group.options.items() if key != "step"})
        for group in groups
    )
    return replace(catalogue, scalars=scalars, groups=groups, rest=rest)


def _groups(saved: Sequence[Mapping[str, Any]], trained: list[str], graph: Graph, path: Path) -> tuple[Group, ...]:
    """The optimizer's groups: Megatron leaves out what is in each. Of two, one decays no biases and norms.

    InputError for others.
    """
    if not trained or not saved:
        return ()
    plain = undecayed(trained, graph)
    rest = [name for name in trained if name not in plain]
    # NeMo writes pre_wd_mult.
    decays = [group.get("wd_mult", group.get("pre_wd_mult")) for group in saved]
    if len(saved) > 1 and sorted(decays, key=str) != [0.0, 1.0]:
        raise InputError(
            f"{path}: the optimizer has {len(saved)} parameter groups and {COMMON} doesn't say what is in them; one "
            "group, or one with weight decay and one without, can be read"
        )
    found = []
    for group, decay in zip(saved, decays, strict=True):
        names = trained if len(saved) == 1 else rest if decay else plain
        own = {key: value for key, value in group.items() if key.removeprefix("pre_") not in SCHEDULED}
        found.append(Group(tuple(names), own))
    return tuple(found)


def undecayed(names: Iterable[str], graph: Graph) -> list[str]:
    """The parameters that Megatron's optimizers don't decay: biases, and those of one dim."""
    own = {name: graph.tensor.get(graph.aliases.get(name, name)) for name in names}
    return [n for n, tensor in own.items() if n.endswith(".bias") or (tensor is not None and len(tensor.shape) == 1)]
