"""A redistribution as people read it, and as one JSON document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from partita.cli import show

if TYPE_CHECKING:
    from rich.table import Table

    from partita.cluster import Cluster
    from partita.redistribution import ArrayType
    from partita.redistribution.answer import Priced, Redistribution
    from partita.redistribution.peers import Peer


@dataclass(frozen=True)
class Asked:
    """What isn't in the answer of what was asked."""

    dtype: str
    cluster: Cluster
    objective: str


def document(
    asked: Asked, found: Redistribution, without: Redistribution | None, others: Sequence[Peer]
) -> dict[str, Any]:
    """What ``--json`` prints. ``without`` is the answer without the memory that was allowed, if any was."""
    return {
        "source": _type(found.source), "target": _type(found.target),
        "dtype": asked.dtype, "cluster": asked.cluster.name, "objective": asked.objective,
        **_cost(found),
        "lower_bound_bytes": found.lower_bound_bytes,
        "memory_bound_bytes": found.memory_bound_bytes,
        "peak": found.peak,
        "optimal": found.optimal, "considered": found.considered,
        "without_more_memory": None if without is None else _cost(without),
        "peers": [{"name": peer.name, **_cost(peer)} for peer in others],
    }  # fmt: skip


def _cost(found: Redistribution | Peer) -> dict[str, Any]:
    return {
        "steps": [_step(priced) for priced in found.steps],
        "bytes_per_device": found.bytes_per_device, "peak_bytes": found.peak_bytes, "seconds": found.seconds,
    }  # fmt: skip


def _type(kind: ArrayType) -> dict[str, Any]:
    from partita.redistribution.partition_spec import as_partition_spec
    from partita.redistribution.placements import as_placements

    return {
        "type": str(kind), "layout": str(kind.layout), "placements": as_placements(kind.layout, kind.mesh),
        "partition_spec": as_partition_spec(kind.layout), "mesh": dict(kind.mesh.axes),
        "devices": list(kind.mesh.devices), "local_shape": list(kind.local_shape()),
    }  # fmt: skip


def _step(priced: Priced) -> dict[str, Any]:
    from partita.redistribution.answer import elements_in_sizes

    step = priced.step
    return {
        "op": step.op, "axis": ".".join(_whole(step.axes, step.before)) or None, "dim": step.dim, "to_dim": step.to_dim,
        "group_size": step.group_size, "bytes_per_device": max(priced.sent_bytes, priced.received_bytes),
        "seconds": priced.seconds, "sent_bytes": priced.sent_bytes, "received_bytes": priced.received_bytes,
        "local_bytes": priced.local_bytes, "local_shape": list(step.after.local_shape()),
        "elements": elements_in_sizes(step.after), "type": _printed(step.after),
    }  # fmt: skip


def text(asked: Asked, found: Redistribution, without: Redistribution | None, others: Sequence[Peer]) -> str:
    """What is printed for people."""
    shape = "×".join(map(str, found.source.shape)) or "scalar"
    return show.render([
        f"{asked.dtype} {shape} on {asked.cluster.name}, least {asked.objective}",
        f"  from {_described(found.source)}",
        f"  to   {_described(found.target)}",
        "",
        _steps(found) if found.steps else "nothing to do: each device has what it wants",
        "",
        *_totals(found),
        *([] if without is None else [_saved(found, without)]),
        "",
        _others(found, others),
        *(["of the planners of other libraries, none that is installed can state this"] if len(others) == 1 else []),
    ])  # fmt: skip


def _described(kind: ArrayType) -> str:
    return f"{kind}  mesh {kind.mesh}, devices {show.ranges(kind.mesh.devices)}"


def _steps(found: Redistribution) -> Table:
    """Bytes are those of the device that has most."""
    table = show.grid("step", "over", "group", "array after it", "local", "sent", "received", "held", "ms")
    table.columns[3].justify = "left"
    table.columns[0].no_wrap = table.columns[4].no_wrap = True
    for index, priced in enumerate(found.steps):
        step = priced.step
        table.add_row(
            f"{index + 1} {step.op}{_dims(priced)}", ".".join(_whole(step.axes, step.before)) or "-",
            str(step.group_size), _printed(step.after), "×".join(map(str, step.after.local_shape())) or "scalar",
            f"{priced.sent_bytes:,}", f"{priced.received_bytes:,}", f"{priced.local_bytes:,}",
            f"{priced.seconds * 1e3:.3g}",
        )  # fmt: skip
    return table


def _whole(axes: Sequence[str], kind: ArrayType) -> list[str]:
    """Axes by the names that the user gave: ``x`` for ``x[0]``, ``x[1]`` into which a search divided it."""
    found, names = list(axes), list(kind.mesh.sizes)
    while divided := {name.rpartition("[")[0] for name in names if name.endswith("]")}:
        # Parts of parts first.
        axis = max(divided, key=len)
        parts = [name for name in names if name.rpartition("[")[0] == axis]
        names = [name for name in names if name not in parts] + [axis]
        starts = [start for start in range(len(found)) if found[start : start + len(parts)] == parts]
        for start in starts:
            found[start : start + len(parts)] = [axis]
    return found


def _printed(kind: ArrayType) -> str:
    """The type with its axes by the names that the user gave."""

    def whole(axes: re.Match[str]) -> str:
        return ",".join(_whole(axes[0].split(","), kind))

    return re.sub(r"(?<=\{)[^}]*(?=\})|(?<=sum over ).*", whole, str(kind))


def _dims(priced: Priced) -> str:
    """The tensor dims that a step is about."""
    step = priced.step
    if step.dim is None:
        return ""
    return f" dim {step.dim}" if step.to_dim is None else f" dim {step.dim} to {step.to_dim}"


def _totals(found: Redistribution) -> list[str]:
    moved, bound = found.bytes_per_device, found.lower_bound_bytes
    least = "the fewest that any way has" if moved == bound else f"no way has fewer than {bound:,}"
    room = found.peak_bytes - found.memory_bound_bytes
    proof = (
        f"proven: nothing cheaper among all that was searched, {found.considered:,} types"
        if found.optimal
        else f"the best of {found.considered:,} types, not proven"
    )
    return [
        f"{moved:,} bytes sent or received by a device at most: {least}",
        f"largest array of a device {found.peak_bytes:,} bytes ({found.peak} elements), "
        f"{'within' if room <= 0 else f'{room:,} more than'} the {found.memory_bound_bytes:,} allowed",
        f"{show.duration(found.seconds)}, {proof}",
    ]


def _saved(found: Redistribution, without: Redistribution) -> str:
    """What the memory that was allowed beyond source and target is good for."""
    seconds = without.seconds - found.seconds
    moved = without.bytes_per_device - found.bytes_per_device
    held = f"{found.memory_bound_bytes:,} bytes for an array instead of {without.memory_bound_bytes:,}"
    if not seconds and not moved:
        return f"{held} save nothing"
    words = [f"{abs(moved):,} bytes {'fewer' if moved > 0 else 'more'}"] if moved else []
    words += [f"{show.duration(abs(seconds))} {'less' if seconds > 0 else 'more'}"] if seconds else []
    return f"{held}: {', '.join(words)}"


def _others(found: Redistribution, others: Sequence[Peer]) -> Table:
    """Ratios are to our own answer."""
    table = show.grid("what others would take", "steps", "bytes", "ratio", "largest array", "ratio", "ms", "ratio")
    table.columns[0].no_wrap = True
    table.columns[1].justify = "left"
    for peer in others:
        table.add_row(
            peer.name, _words(peer),
            f"{peer.bytes_per_device:,}", _ratio(peer.bytes_per_device, found.bytes_per_device),
            f"{peer.peak_bytes:,}", _ratio(peer.peak_bytes, found.peak_bytes),
            f"{peer.seconds * 1e3:.3g}", _ratio(peer.seconds, found.seconds),
        )  # fmt: skip
    return table


def _words(peer: Peer) -> str:
    """The steps in short: those of one kind that follow each other once, with their number."""
    runs = [(op, len(list(run))) for op, run in groupby(priced.step.op for priced in peer.steps)]
    return ", ".join(op if count == 1 else f"{count} {op}" for op, count in runs) or "none"


def _ratio(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.3g}" if ours else "-" if theirs else "1"
