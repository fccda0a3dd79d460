"""The question that a planner answers: a graph, a cluster, a batch, and what the framework that will run it can do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

from pydantic import TypeAdapter

from partita.cluster.model import Cluster
from partita.cost.precision import DTYPES
from partita.cost.state import MOMENTS
from partita.errors import InputError, nearest
from partita.graph.model import Graph

LARGEST_BATCH = 10_000_000


@dataclass(frozen=True)
class Target:
    """What a framework can run: ZeRO stages without and with a pipeline, and the sentence that says why; whether stages
    may form a graph (Partita's own runtime, and its engine on DeepSpeed's)."""

    zero_alone: tuple[int, ...]
    zero_in_pipeline: tuple[int, ...]
    sentence: str
    graphs: bool = True


TARGETS: Mapping[str, Target] = {
    "deepspeed": Target(
        (0, 1, 2, 3), (0, 1), "DeepSpeed's pipeline engine takes ZeRO 0 and 1; without a pipeline 0 to 3 work"
    ),
    "megatron": Target(
        (0,), (0,), "plans for Megatron keep the whole optimizer state on every replica (ZeRO 0)", graphs=False
    ),
    "partita": Target(
        (0, 1, 2, 3), (0, 1, 2, 3), "Partita's own runtime takes ZeRO 0 to 3, with and without a pipeline"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """``memory_bytes`` limits each device (default: the device's memory); ``fix`` holds decisions (planner/fix.py);
    ``model`` is what the graph was captured from, as the user wrote it (default: by the graph's name)."""

    graph: Graph
    cluster: Cluster
    global_batch: int
    precision: str = "bf16"
    optimizer: str = "adam"
    target: str = "deepspeed"
    memory_bytes: int | None = None
    fix: Mapping[str, int | str] = field(default_factory=dict)
    model: str | None = None

    def __post_init__(self) -> None:
        for what, word, known in (
            ("precision", self.precision, DTYPES),
            ("optimizer", self.optimizer, MOMENTS),
            ("target", self.target, TARGETS),
        ):
            if word not in known:
                raise InputError(f'there is no {what} "{word}".{nearest(word, known)}')
        if not 1 <= self.global_batch <= LARGEST_BATCH:
            raise InputError(f"global batch {self.global_batch}: 1 to {LARGEST_BATCH:,} samples work")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise InputError(f"a memory limit of {self.memory_bytes} bytes: it must be positive")
        if self.graph.samples < 1 or not self.graph.blocks:
            raise InputError(
                f'graph "{self.graph.name}" has {self.graph.samples} samples and {len(self.graph.blocks)} blocks; '
                "a plan needs at least one of each"
            )

    @property
    def memory_limit(self) -> int:
        """Bytes that each device may hold, whichever it is: where they differ, those of the smallest."""
        return self.memory_limit_of(None)

    @property
    def largest_memory_limit(self) -> int:
        """Bytes that the largest device may hold."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return max(device.memory_bytes for device in self.cluster.different_devices())

    def memory_limit_of(self, devices: Iterable[int] | None) -> int:
        """Bytes that each of the devices with these ids may hold; None: of all."""
        return self.cluster.weakest(devices).memory_bytes if self.memory_bytes is None else self.memory_bytes

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the problem's canonical JSON: two problems with one digest have the same plan, but for the words
        by which a profile is named."""
        rest = {name: getattr(self, name) for name in ("global_batch", "precision", "optimizer", "target")}
        machine = self.cluster
        kinds = [asdict(kind) for kind in machine.different_kinds]
        for kind in kinds:
            if kind["device"]["measured"] is None:
                del kind["device"]["measured"]
            else:
                del kind["device"]["measured"]["source"]
        limits = [self.memory_bytes or kind.device.memory_bytes for kind in machine.different_kinds]
        cluster = {
            "name": machine.name, "nodes": machine.nodes, "kinds": kinds, "kind_of": machine.kind_of,
            "cores": machine.cores,
        }  # fmt: skip
        rest |= {"cluster": cluster, "memory_bytes": limits, "fix": dict(self.fix)}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(TypeAdapter(Graph).dump_json(self.graph) + b"\n" + text).hexdigest()
