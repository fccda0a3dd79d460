"""Which takes together are a collective: the pattern of a mesh is found again in what each device takes (section 3.3).

Devices that take from one another, directly or not, make one exchange. It is a collective where every member's part has
the same form; otherwise it is sends, one for each pair of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.redistribution.materialise import Take

Pattern = Literal["local", "send", "broadcast", "all-gather", "all-reduce", "reduce-scatter", "all-to-all"]
Taken = tuple[int, tuple[Take, ...]]


@dataclass(frozen=True)
class Exchange:
    """One collective among ``group`` (in order; of a broadcast or a send the source comes first) or, on one device, a
    copy; ``received_elements`` is the most that a device gets from others, counted as the takes say, not as a ring
    would."""

    pattern: Pattern
    group: tuple[int, ...]
    received_elements: int


def recognise(taken: Sequence[Taken]) -> list[Exchange]:
    """The exchanges that carry out what ``materialise`` found, in order of their first devices.

    ``taken`` has every device once with all that it takes. Pieces of a collective may be uneven. An all-to-all is the
    exchange in which all members give each member something of its own.
    """
    by_device = dict(taken)
    assert len(by_device) == len(taken), "a device takes once"
    found = []
    for members in _connected(taken):
        parts = {device: by_device.get(device, ()) for device in members}
        pattern = _pattern(members, parts)
        if pattern == "broadcast":
            (source,) = {take.source for device in members for take in parts[device]}
            members = (source, *(device for device in members if device != source))
        if pattern == "send":
            found += [
                Exchange("send", (source, device), _received(device, [t for t in parts[device] if t.source == source]))
                for device in members
                for source in sorted({take.source for take in parts[device]} - {device})
            ]
        elif any(parts.values()):
            found.append(Exchange(pattern, members, max(_received(device, parts[device]) for device in members)))
    return found


def _received(device: int, takes: Sequence[Take]) -> int:
    return sum(take.elements for take in takes if take.source != device)


def _connected(taken: Sequence[Taken]) -> list[tuple[int, ...]]:
    """Devices that exchange something, directly or through others."""
    root: dict[int, int] = {}

    def find(device: int) -> int:
        root.setdefault(device, device)
        while root[device] != device:
            root[device] = root[root[device]]
            device = root[device]
        return device

    for device, takes in taken:
        find(device)
        for take in takes:
            root[find(take.source)] = find(device)
    groups: dict[int, list[int]] = {}
    for device in sorted(root):
        groups.setdefault(find(device), []).append(device)
    return sorted(tuple(group) for group in groups.values())


def _pattern(members: tuple[int, ...], parts: dict[int, tuple[Take, ...]]) -> Pattern:
    if len(members) == 1:
        return "local"
    senders = {take.source for takes in parts.values() for take in takes}
    others = [device for device in members if device not in senders]
    if len(senders) == 1:
        contents = {tuple((take.region, take.add) for take in parts[device]) for device in others}
        # One receiver is a send.
        return "broadcast" if len(others) > 1 and len(contents) == 1 else "send"
    table = {(take.source, device): take for device, takes in parts.items() for take in takes}
    takes = sum(len(found) for found in parts.values())
    if len(table) != takes or takes != len(members) ** 2:
        return "send"
    sums = {sum(take.add for take in parts[device]) for device in members}
    # Of what each device has, all take the same; or what each takes, it takes of all.
    alike = all(len({table[source, device].region for device in members}) == 1 for source in members)
    same = all(len({table[source, device].region for source in members}) == 1 for device in members)
    if sums == {len(members) - 1} and same:
        return "all-reduce" if alike else "reduce-scatter"
    if sums == {0}:
        return "all-gather" if alike else "all-to-all"
    return "send"
