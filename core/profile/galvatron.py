"""Profiles of Galvatron (PKU-DAIR/Hetu-Galvatron): a folder of its JSON files, read for one model.

``computation_profiling_*``: ``layertype_K_bszB_seqS`` and ``layertype_other_…`` are forward milliseconds of one layer
(of all else) for each sample, at micro-batch B; backward takes twice as long, a tensor-parallel shard an even part.
``memory_profiling_*``: MiB that a layer keeps for each sample, by tp; of all else on the first and on the last stage.
``allreduce_bandwidth_*``: MiB a millisecond by group size. Layers are the model's repeated blocks, in order; all else
is priced in the head. What overlaps (``overlap_coefficient``) and how fast messages are have no place in the costs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from partita.cost.alike import alike
from partita.cost.block import block_cost
from partita.cost.precision import item_bytes
from partita.errors import InputError
from partita.files import read_json
from partita.graph.model import Graph
from partita.profile.measured import Measured, MeasuredBlock, Sample

MIB = 2**20
LAYER = re.compile(r"layertype_(?P<layer>\d+|other)_bsz(?P<micro>\d+)_seq(?P<seq>\d+)")
GROUP = re.compile(r"allreduce_size_(?P<size>\d+)_consec_1")


@dataclass(frozen=True)
class Galvatron:
    """The files of a folder: by layer and micro-batch seconds of one sample; by layer and tp bytes of one sample."""

    seconds: Mapping[tuple[str, int], float]
    kept: Mapping[tuple[str, int], float]


def read(folder: Path, seq: int | None) -> Galvatron:
    """The folder's figures for a sequence. InputError for what is missing; file, key and value of what can't be."""
    seconds: dict[tuple[str, int], float] = {}
    lengths: set[int] = set()
    for path, key, value in _figures(folder, "computation_profiling_*.json"):
        found = LAYER.fullmatch(key)
        if found is None:
            continue
        lengths.add(int(found["seq"]))
        if seq in (None, int(found["seq"])):
            seconds[found["layer"], int(found["micro"])] = _positive(path, key, value) * 1e-3
    if not lengths:
        raise InputError(f"{folder}: no computation_profiling_*.json with layertype_0_bsz1_seq… in it")
    if not seconds:
        raise InputError(
            f"{folder}: measured for a sequence of {sorted(lengths)}, not {seq}; --seq {min(lengths)} works"
        )
    if len(lengths) > 1 and seq is None:
        raise InputError(f"{folder}: measured for sequences of {sorted(lengths)}; --seq must say which")
    return Galvatron(seconds, dict(_memory(folder, seq or lengths.pop())))


def measured(folder: Path, graph: Graph, precision: str) -> Measured:
    """The folder as measurements of this graph's blocks."""
    found = read(folder, graph.seq)
    groups = alike(graph)
    repeated = [kind for kind, count in Counter(groups.kinds).items() if count > 1]
    layers = sorted({layer for layer, _ in found.seconds} - {"other"}, key=int)
    if len(layers) != len(repeated):
        raise InputError(
            f'{folder}: it has {len(layers)} kinds of layers ({", ".join(layers)}), model "{graph.name}" has '
            f"{len(repeated)} kinds of repeated blocks"
        )
    roles = dict(zip(repeated, layers, strict=True)) | {0: "first", len(graph.blocks) - 1: "other"}
    blocks = []
    for kind, role in roles.items():
        for tp in sorted({tp for _, tp in found.kept}):
            cost = block_cost(graph, graph.blocks[kind].name, groups.classes[kind], tp, item_bytes(graph, precision))
            if cost.shape is not None:
                blocks.append(MeasuredBlock(replace(cost.shape, tp=tp), tuple(_samples(found, role, tp))))
    return Measured(f"{folder} (Galvatron)", tuple(blocks))


def link_bytes_per_second(folder: Path, devices: int, nodes: int) -> float | None:
    """Bytes a second of all-reduces over all devices of that many nodes; None: no such file in the folder, in
    ``hardware`` below it or beside it."""
    for place in (folder, folder / "hardware", folder.parent / "hardware"):
        name = f"allreduce_bandwidth_{nodes}nodes_{devices}gpus_per_node.json"
        for path, key, value in _figures(place, name):
            found = GROUP.fullmatch(key)
            if found and int(found["size"]) == devices * nodes:
                return _positive(path, key, value) * MIB * 1e3
    return None


def _samples(found: Galvatron, role: str, tp: int) -> Iterator[Sample]:
    for (layer, micro), seconds in sorted(found.seconds.items(), key=lambda item: item[0][1]):
        if layer == ("other" if role == "first" else role):
            forward = 0.0 if role == "first" else seconds * micro / tp
            yield Sample(micro, forward, 2 * forward, found.kept[role, tp] * micro)


def _memory(folder: Path, seq: int) -> Iterator[tuple[tuple[str, int], float]]:
    """((layer, tp), bytes of one sample); of all else ``first`` and ``other``, the latter with what comes last."""
    tables: dict[str, tuple[Path, Any]] = {}
    for path, key, value in _figures(folder, "memory_profiling_*.json"):
        if isinstance(value, dict) and str(seq) in value:
            # Of two ways to run, the one without sequence parallelism is the planner's.
            tables.setdefault(key.removesuffix("_sp"), (path, value[str(seq)]))
    wanted = {key: key.removeprefix("layertype_") for key in tables if key.startswith("layertype_")}
    wanted |= {"other_memory_pp_on_first": "first", "other_memory_pp_on_last": "other"}
    for key, role in wanted.items():
        if key not in tables:
            raise InputError(f"{folder}: no memory_profiling_*.json has {key} for a sequence of {seq}")
        path, table = tables[key]
        by_tp = table.get("activation" if role in ("first", "other") else "tp_activation_per_bsz_dict", {})
        for tp, value in by_tp.items():
            if tp.isdigit():
                yield (role, int(tp)), _positive(path, f"{key}.{tp}", value) * MIB


def _figures(folder: Path, pattern: str) -> Iterator[tuple[Path, str, Any]]:
    """(file, key, value) of the files that match."""
    for path in sorted(folder.glob(pattern)):
        document = read_json(path)
        if not isinstance(document, dict):
            raise InputError(f"{path}: an object is needed, found {type(document).__name__}")
        for key, value in document.items():
            yield path, key, value


def _positive(path: Path, key: str, value: Any) -> float:
    if not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise InputError(f"{path}: {key} = {value}: a positive, finite number works")
    return float(value)
