"""A profile in the making: which rows are wanted, which the file has already, and the file written whole after each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from partita.adapters.profile.measure import measure
from partita.adapters.profile.pieces import runnables
from partita.adapters.torch.prepare import Lowered, lower_model
from partita.cluster import Cluster, Link
from partita.cluster.model import Device
from partita.cost.alike import Alike, alike, tp_sizes
from partita.cost.block import block_cost
from partita.cost.flops import block_flops
from partita.cost.precision import compute_dtype, item_bytes
from partita.errors import InputError
from partita.files import write_text
from partita.graph import Graph
from partita.plan import Plan
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way, cut
from partita.problem import Problem
from partita.profile.measured import BlockShape
from partita.profile.read import read_profile
from partita.spacetime.lower import lower

METHOD = (
    "median of repeated runs after a warm-up, one device, no communication; tp is the local shard of a tensor-parallel "
    "group; spread is half the range of the middle half of the runs, as a part of the median"
)
Row = dict[str, Any]


class Session:
    """Measures what is missing. ``said`` is told of each row."""

    def __init__(self, path: Path, model: str, graph: Graph, precision: str, device: torch.device):
        self.path, self.model, self.graph, self.device = path, model, graph, device
        self.precision, self.groups = precision, alike(graph)
        self.head = {
            "version": 1, "device": _name(device), "precision": precision, "torch": torch.__version__,
            "threads": torch.get_num_threads() if device.type == "cpu" else 0, "method": METHOD,
        }  # fmt: skip
        self.blocks: list[Row] = []
        self.collectives: list[Row] = []
        # By micro-batch.
        self.lowered: dict[int, Lowered] = {}
        self._resume()

    def _resume(self) -> None:
        """Take over the rows of an earlier run; InputError where they aren't of this device."""
        if not self.path.exists():
            return
        file = read_profile(self.path)
        for name in ("device", "precision", "torch", "threads"):
            if (there := getattr(file, name)) != (here := self.head[name]):
                raise InputError(
                    f"{self.path}: this profile has {name} = {there!r}, here it is {here!r}; rows of both don't belong "
                    "into one file: -o with another name works"
                )
        self.blocks = [row.model_dump(exclude_none=True) for row in file.blocks]
        self.collectives = [row.model_dump(exclude_none=True) for row in file.collectives]

    def save(self, complete: bool) -> None:
        """Write the file, whole."""
        document = {
            **self.head, "measured": date.today().isoformat(), "complete": complete, "blocks": self.blocks,
            "collectives": self.collectives,
        }  # fmt: skip
        write_text(self.path, json.dumps(document, indent=1) + "\n")

    def wanted(self, micros: Sequence[int], most_tp: int) -> list[tuple[int, int]]:
        """(tp, micro-batch) of which some block is missing."""
        tps = [tp for tp in tp_sizes(self.graph, self.groups, most_tp) if tp & (tp - 1) == 0]
        return [(tp, micro) for tp in tps for micro in micros if self.missing(tp, micro)]

    def missing(self, tp: int, micro: int) -> set[str]:
        """Names of blocks, one of each kind, that the file lacks."""
        have = {(row["signature"], row["tp"], row["micro_batch"]) for row in self.blocks}
        shapes = _shapes(self.graph, self.groups, tp, self.precision)
        return {name for name, shape in shapes.items() if (shape.signature, tp, micro) not in have}

    def measure(
        self, tp: int, micro: int, factory: Callable[[], Any], example: Callable[[int], Mapping[str, Any]],
        said: Callable[[Row], None],
    ) -> None:  # fmt: skip
        """Measure each missing block; the file is written after each."""
        missing, shapes = self.missing(tp, micro), _shapes(self.graph, self.groups, tp, self.precision)
        plan = one_stage(self.graph, self.precision, tp, micro)
        for block in runnables(self.graph, plan, self._lower(plan, factory, example), example, self.device):
            if block.block not in missing:
                continue
            found, shape = measure(block, self.device), shapes[block.block]
            sizes = {"hidden": shape.hidden, "heads": shape.heads, "seq": shape.seq}
            row = {
                "block": shape.kind, "model": self.model, "signature": shape.signature,
                **{name: size for name, size in sizes.items() if size}, "tp": tp, "micro_batch": micro,
                "fwd_ms": _ms(found.forward_seconds), "bwd_ms": _ms(found.backward_seconds),
                "flops": block_flops(self.graph, block.block) * micro / self.graph.samples / tp,
                "activation_bytes": found.kept_bytes, "params": block.parameters, "spread": round(found.spread, 4),
            }  # fmt: skip
            if found.peak_bytes is not None:
                row["fwd_peak_bytes"] = found.peak_bytes
            self.blocks.append(row)
            self.save(complete=False)
            said(row)

    def _lower(self, plan: Plan, factory: Callable[[], Any], example: Callable[[int], Mapping[str, Any]]) -> Lowered:
        """The one-stage plan lowered. The capture, which takes longest, is the same for every tp."""
        micro = plan.stages[0].samples
        if (known := self.lowered.get(micro)) is None:
            return self.lowered.setdefault(micro, lower_model(plan, factory, example))
        return replace(known, program=lower([known.captured.graph], plan))


def _shapes(graph: Graph, groups: Alike, tp: int, precision: str) -> dict[str, BlockShape]:
    """The shape of one block of each kind."""
    found = {}
    for kind in dict.fromkeys(groups.kinds):
        name = graph.blocks[kind].name
        cost = block_cost(graph, name, groups.classes[kind], tp, item_bytes(graph, precision))
        assert cost.shape is not None
        found[name] = cost.shape
    return found


def one_stage(graph: Graph, precision: str, tp: int, micro: int) -> Plan:
    """The plan of one stage whose turn takes ``micro`` samples, without limits of memory."""
    device = Device("any", 2**60, {compute_dtype(precision): 1e15}, 1e12)
    cluster = Cluster.of("one group", (tp,), device, Link(1e11), Link(1e11))
    pricing = Pricing(Problem(graph, cluster, micro, precision, "adam", "partita"), alike(graph))
    return Way(pricing, Uniform(tp=tp, micro=micro)).plan(cut((0, len(graph.blocks))))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _ms(seconds: float) -> float:
    return float(f"{seconds * 1e3:.5g}")
