"""What a configuration asks for, in the same words whichever framework will run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partita.plugins.check.finding import Finding, Place, problem

Framework = Literal["deepspeed", "megatron"]

# Of counts and sizes: what is larger is a slip, and would make lists as long as it is.
LARGEST = 1_000_000


@dataclass(frozen=True)
class Asked:
    """What the command line says beside the files; None: nothing."""

    devices: int | None = None
    tp: int | None = None
    pp: int | None = None
    seq: int | None = None

    def places(self, file: str) -> dict[str, Place]:
        """Options as places: they have no line."""
        given = {name: getattr(self, name) for name in ("tp", "pp", "seq")}
        return {name: Place(file, None, f"--{name}") for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Batch:
    """Samples of one replica's micro-batch, micro-batches in a step, samples in a step."""

    micro: int | None = None
    accumulation: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class Settings:
    """``written`` is the batch as the file has it, ``batch`` completed by the framework's own rule. ``sp`` counts the
    devices that share one sample's tokens (context parallelism, Ulysses). ``layers``: transformer layers of each stage,
    None where the file doesn't say or doesn't add up. ``places`` and ``keys`` say where a setting is written and what
    it is called there."""

    framework: Framework
    main: Place
    devices: int | None
    tp: int = 1
    pp: int = 1
    sp: int = 1
    written: Batch = field(default_factory=Batch)
    batch: Batch = field(default_factory=Batch)
    zero: int = 0
    precision: str = "fp32"
    optimizer: str = "adam"
    recompute: bool | None = None
    offload: tuple[str, ...] = ()
    seq: int | None = None
    sequence_parallel: bool = False
    trainer: bool = False
    planned: bool = False
    autotp: bool = False
    chunks: int = 1
    layers: tuple[int, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    auto: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_parallel(self) -> int:
        """Devices that hold one replica."""
        return self.tp * self.pp * self.sp

    @property
    def dp(self) -> int | None:
        """Replicas; None where devices are unknown or don't come out even."""
        if self.devices is None or self.devices % self.model_parallel:
            return None
        return self.devices // self.model_parallel

    @property
    def counted(self) -> int | None:
        """Replicas in the framework's own batch arithmetic.

        With AutoTP and no pipeline DeepSpeed reads the batch before it knows of the groups, and takes every process
        for a replica.
        """
        return self.dp if self.dp is None or not self.autotp or self.pp > 1 else self.dp * self.tp

    @property
    def samples(self) -> int | None:
        """Samples that a step really takes: what the replicas that exist do."""
        if not self.counted or self.dp is None or self.batch.total is None:
            return None
        return self.batch.total * self.dp // self.counted

    def place(self, name: str) -> Place:
        """Where a setting is written, or the file itself."""
        return self.places.get(name, self.main)


def whole(value: Any, place: Place, least: int, findings: list[Finding]) -> int | None:
    """A whole number from ``least`` to LARGEST, or None with a finding. A bool is none, nor is a number in quotes."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        shown = "true" if value is True else "false" if value is False else repr(value)
        findings.append(
            problem(place, f"{place.path} is {shown}; a whole number from {least} to {LARGEST:,} is needed")
        )
        return None
    return value
