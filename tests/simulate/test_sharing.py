"""Messages that share ports, by hand: what each gets while another is there, and what is left when that has gone."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import pytest

from partita.simulate.fabric import Route
from partita.simulate.sharing import Message, Sharing


def ends(bytes_per_second: list[float], messages: list[tuple[float, float, tuple[int, ...], float]]) -> list[float]:
    """When each of (start, bytes, ports, latency) arrives."""
    sharing = Sharing(bytes_per_second)
    made = [Message((i, 0), (i, 0), size, Route(ports, late)) for i, (_, size, ports, late) in enumerate(messages)]
    events: list[tuple[float, int, int, str]] = [(start, i, 0, "start") for i, (start, *_) in enumerate(messages)]
    heapify(events)
    found = [0.0] * len(messages)
    while events:
        now, index, version, what = heappop(events)
        if what == "end" and version != made[index].version:
            continue
        changed = sharing.start(made[index], now) if what == "start" else sharing.end(made[index], now)
        for message in changed:
            heappush(events, (message.ends, message.sender[0], message.version, "end"))
        if what == "end":
            found[index] = now
    assert not any(sharing.passing.values())
    return found


@pytest.mark.parametrize(
    ("ports", "messages", "arrive"),
    [
        ([2.0], [(0, 6, (0,), 0)], [3]),
        ([2.0], [(0, 6, (0,), 5)], [8]),
        ([1.0, 1.0], [(0, 6, (0,), 0), (0, 6, (1,), 0)], [6, 6]),
        ([1.0], [(0, 6, (0,), 0), (0, 6, (0,), 0)], [12, 12]),
        # Halves until the short one has gone at 4, then the other's 6 bytes are alone.
        ([1.0], [(0, 8, (0,), 0), (0, 2, (0,), 0)], [10, 4]),
        # The first has sent 2 when the second comes; 2 · 6 later it is through.
        ([1.0], [(0, 8, (0,), 0), (2, 8, (0,), 0)], [14, 16]),
        # The slowest port decides; what is not taken of the other is nobody's.
        ([4.0, 1.0], [(0, 6, (0, 1), 0), (0, 6, (0,), 0)], [6, 3]),
        # Three on one port, of which one shares another port too.
        ([3.0, 1.0], [(0, 3, (0,), 0), (0, 3, (0,), 0), (0, 3, (0, 1), 0), (0, 3, (1,), 0)], [3, 3, 6, 6]),
        # A message takes its share during its latency; nothing takes no time.
        ([1.0], [(0, 4, (0,), 0), (0, 4, (0,), 2)], [8, 9]),
        ([1.0], [(0, 0, (0,), 7), (3, 0, (0,), 7)], [0, 3]),
        ([1.0], [(1, 5, (), 0)], [1]),
    ],
)
def test_ports_are_shared_evenly(ports, messages, arrive):
    assert ends([float(port) for port in ports], messages) == arrive
