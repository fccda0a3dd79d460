"""What others would take from one type of an array to another, priced as our own answer is: a measure beside it."""

from __future__ import annotations

from dataclasses import dataclass

from partita.cluster.model import Cluster
from partita.hooks import plugins
from partita.redistribution.answer import Priced
from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout
from partita.redistribution.price import Network, priced
from partita.redistribution.steps import Step, all_gather, all_reduce, direct, mask, slice_


@dataclass(frozen=True)
class Peer:
    """Another way, with the figures of ours: see ``answer.Redistribution``."""

    name: str
    steps: tuple[Priced, ...]
    bytes_per_device: int
    peak_bytes: int
    seconds: float


def peers(source: ArrayType, target: ArrayType, item_bytes: int, cluster: Cluster) -> list[Peer]:
    """Gather-then-slice, and what the planners of other libraries that are installed would do."""
    ways = [("gather, then slice", gather_then_slice(source, target))]
    for named in plugins().hook.partita_peer_redistribution(source=source, target=target, item_bytes=item_bytes):
        ways += named
    network = Network.of(cluster, (*source.mesh.devices, *target.mesh.devices))
    ends = max(source.largest, target.largest) * item_bytes
    return [_peer(name, steps, ends, item_bytes, network) for name, steps in ways]


def _peer(name: str, steps: tuple[Step, ...], ends_bytes: int, item_bytes: int, network: Network) -> Peer:
    prices, bytes_per_device = priced(steps, item_bytes, network)
    peak_bytes = max([ends_bytes, *(price.local_bytes for price in prices)])
    return Peer(name, prices, bytes_per_device, peak_bytes, sum(price.seconds for price in prices))


def gather_then_slice(source: ArrayType, target: ArrayType) -> tuple[Step, ...]:
    """What people write by hand: sums are added up, every dim is gathered, each device keeps its part.

    A sum that stays one within a mesh isn't added up. To another mesh each device takes its part from all that then
    have everything.
    """
    one_mesh = source.mesh == target.mesh
    kept = {axis for axis in source.layout.partial if one_mesh and axis in target.layout.partial}
    steps: list[Step] = []
    here = source

    def take(step: Step) -> None:
        nonlocal here
        steps.append(step)
        here = step.after

    if gone := [axis for axis in source.layout.partial if axis not in kept]:
        take(all_reduce(here, gone))
    for dim, axes in enumerate(source.layout.dims):
        if axes:
            take(all_gather(here, dim, len(axes)))
    if not one_mesh:
        take(direct(here, target.with_layout(Layout(target.layout.dims))))
    for axis in target.layout.partial:
        if axis not in kept:
            take(mask(here, axis))
    if one_mesh:
        for dim, axes in enumerate(target.layout.dims):
            for axis in axes:
                take(slice_(here, axis, dim))
    return tuple(steps)
