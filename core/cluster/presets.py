"""Presets: one JSON file a device, in which every figure stands beside its source. Plugins bring more of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from partita.cluster.model import Device, Link
from partita.errors import ClusterError, nearest
from partita.files import parse_json
from partita.hooks import plugins

V = TypeVar("V")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Bytes = Annotated[int, Field(gt=0)]


class Strict(BaseModel):
    """A part of a preset or cluster file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Strict, Generic[V]):
    """A number and where it comes from."""

    value: V
    source: Annotated[str, Field(min_length=3)]


class LinkFile(Strict):
    """One tier of links: bytes a second that a device sends, seconds, fraction."""

    bytes_per_second: Figure[Positive]
    latency_seconds: Figure[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    efficiency: Figure[Fraction]

    def link(self) -> Link:
        return Link(self.bytes_per_second.value, self.latency_seconds.value, self.efficiency.value)


class Preset(Strict):
    """A device with the links that machines of this kind have.

    What only processes on the host have (``on_host``, ``transcendental_seconds``) and the way to the host's memory may
    be left out.
    """

    name: str
    memory_bytes: Figure[Bytes]
    peak_flops: dict[str, Figure[Positive]]
    memory_bytes_per_second: Figure[Positive]
    matmul_efficiency: Figure[list[tuple[Annotated[float, Field(ge=0)], Fraction]]]
    attention_efficiency: Figure[Fraction]
    memory_efficiency: Figure[Fraction]
    op_seconds: Figure[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    framework_bytes: Figure[Annotated[int, Field(ge=0)]]
    on_host: Figure[bool] | None = None
    transcendental_seconds: Figure[Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    host_bytes_per_second: Figure[Positive] | None = None
    intra_node: LinkFile
    inter_node: LinkFile

    def device(self) -> Device:
        return Device(
            name=self.name,
            memory_bytes=self.memory_bytes.value,
            peak_flops={dtype: figure.value for dtype, figure in self.peak_flops.items()},
            memory_bytes_per_second=self.memory_bytes_per_second.value,
            matmul_efficiency=tuple(sorted(self.matmul_efficiency.value, reverse=True)),
            attention_efficiency=self.attention_efficiency.value,
            memory_efficiency=self.memory_efficiency.value,
            op_seconds=self.op_seconds.value,
            framework_bytes=self.framework_bytes.value,
            on_host=self.on_host is not None and self.on_host.value,
            transcendental_seconds=self.transcendental_seconds.value if self.transcendental_seconds else 0.0,
            host_bytes_per_second=self.host_bytes_per_second.value if self.host_bytes_per_second else 0.0,
        )


@cache
def preset_files() -> dict[str, Path]:
    """The file of each preset that a plugin brings; ClusterError where two have one name."""
    found: dict[str, Path] = {}
    for paths in plugins().hook.partita_cluster_presets():
        for path in paths:
            if path.stem in found:
                raise ClusterError(f'there are two presets "{path.stem}": {found[path.stem]} and {path}')
            found[path.stem] = path
    return found


def preset_names() -> list[str]:
    """The names of all presets, sorted."""
    return sorted(preset_files())


@cache
def load_preset(name: str) -> Preset:
    """The preset of that name; ClusterError with the nearest names otherwise."""
    if name not in preset_files():
        raise ClusterError(f'there is no preset "{name}".{nearest(name, preset_names())}')
    return parse_json(preset_files()[name], TypeAdapter(Preset))
