"""Unlike devices that work in step, and unlike links on one way: what is as slow as the slowest of them.

Stages wait for their slowest device, groups for their slowest link. What stands for several devices is a device itself,
so that whoever prices one can price them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.cluster.model import Device, Link


def slowest(links: Sequence[Link]) -> Link:
    """The bandwidth of the link that reaches least, and the largest latency."""
    least = min(links, key=lambda link: link.reached_bytes_per_second)
    return replace(least, latency_seconds=max(link.latency_seconds for link in links))


def weakest(devices: Sequence[Device]) -> Device:
    """A device as slow as the slowest of these at anything, with the memory of the smallest.

    Where one of them is the slowest at everything, speeds are its own, and what was measured of it counts. Otherwise
    they are put together, because no op may be faster than on any of the devices: a large device can be the slower one
    at small ops. No profile speaks of what was put together. Dtypes are those in which all compute.
    """
    if len(devices) == 1:
        return devices[0]
    assert len({device.on_host for device in devices}) == 1, "processes and accelerators don't work in step"
    dtypes = [dtype for dtype in devices[0].peak_flops if all(dtype in device.peak_flops for device in devices)]
    least = [device for device in devices if all(_no_faster(device, other, dtypes) for other in devices)]
    slow = min(least, key=lambda device: device.memory_bytes) if least else _composed(devices, dtypes)
    return replace(
        slow,
        peak_flops={dtype: slow.peak_flops[dtype] for dtype in dtypes},
        memory_bytes=min(device.memory_bytes for device in devices),
        framework_bytes=max(device.framework_bytes for device in devices),
        op_seconds=max(device.op_seconds for device in devices),
        transcendental_seconds=max(device.transcendental_seconds for device in devices),
        # 0 means that it isn't known, which is then so for all.
        host_bytes_per_second=min(device.host_bytes_per_second for device in devices),
    )


def _no_faster(device: Device, other: Device, dtypes: Iterable[str]) -> bool:
    """Whether no product, no attention and no pass over memory takes less time on the device than on the other."""
    starts = _starts((device, other))
    return _memory_rate(device) <= _memory_rate(other) and all(
        device.peak_flops[dtype] * device.attention_efficiency <= other.peak_flops[dtype] * other.attention_efficiency
        and all(_rate(device, dtype, start) <= _rate(other, dtype, start) for start in starts)
        for dtype in dtypes
    )


def _composed(devices: Sequence[Device], dtypes: Sequence[str]) -> Device:
    """The least speeds of all, put together. Efficiencies hold for every dtype: the one where they are least says."""
    peaks = {dtype: min(device.peak_flops[dtype] for device in devices) for dtype in dtypes}
    pairs = [(device, dtype) for device in devices for dtype in dtypes]
    curve = tuple(
        (start, min((_rate(device, dtype, start) / peaks[dtype] for device, dtype in pairs), default=1.0))
        for start in _starts(devices)
    )
    attention = min(
        (device.peak_flops[dtype] * device.attention_efficiency / peaks[dtype] for device, dtype in pairs), default=1.0
    )
    memory = min(devices, key=_memory_rate)
    return replace(
        memory, name=" and ".join(device.name for device in devices), peak_flops=peaks, matmul_efficiency=curve,
        attention_efficiency=attention, measured=None,
    )  # fmt: skip


def _starts(devices: Iterable[Device]) -> list[float]:
    """The GFLOP at which any of their curves has a step, largest first."""
    return sorted({start for device in devices for start, _ in device.matmul_efficiency}, reverse=True)


def _rate(device: Device, dtype: str, gflop: float) -> float:
    """FLOP/s of a product of that size; below the curve's smallest size that size's fraction holds."""
    curve = sorted(device.matmul_efficiency, reverse=True)
    fraction = next((fraction for start, fraction in curve if start <= gflop), curve[-1][1])
    return device.peak_flops[dtype] * fraction


def _memory_rate(device: Device) -> float:
    return device.memory_bytes_per_second * device.memory_efficiency
