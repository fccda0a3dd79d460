"""How the planner's messages write bytes, devices and seconds."""

from __future__ import annotations

GIB = 2**30


def gib(size: float) -> str:
    """Bytes for people: GiB with two digits; small sizes in bytes."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size:,.0f} bytes"


def counted(devices: int) -> str:
    """``1 device`` or ``4 devices``."""
    return f"{devices} device" if devices == 1 else f"{devices} devices"


def duration(seconds: float) -> str:
    """Seconds for people."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
