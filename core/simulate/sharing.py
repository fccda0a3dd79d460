"""Messages on their way: each port divides what it can take evenly among the messages that pass it.

A message is as fast as the port that gives it least. When one starts or ends, those that share a port with it change
their pace, and no others: the cost of an event doesn't grow with the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.simulate.fabric import Route


class Message:
    """A message under way. ``ends`` is when it arrives if nothing changes; ``version`` counts the changes."""

    __slots__ = ("arrived", "ends", "left", "pace", "receiver", "route", "sender", "since", "version")

    def __init__(self, sender: tuple[int, int], receiver: tuple[int, int], size_bytes: float, route: Route):
        # Device and position of the tasks that send and receive it.
        self.sender, self.receiver = sender, receiver
        self.left, self.route = size_bytes, route
        self.pace = self.since = self.ends = 0.0
        self.version = 0
        self.arrived = False


class Sharing:
    """The messages on every port."""

    def __init__(self, bytes_per_second: Sequence[float]):
        self.bytes_per_second = bytes_per_second
        # Dicts without values: sets that keep the order, so that every run is the same.
        self.passing: dict[int, dict[Message, None]] = {}

    def start(self, message: Message, now: float) -> list[Message]:
        """Put a message under way; returns those whose end has changed, itself first."""
        for port in message.route.ports:
            self.passing.setdefault(port, {})[message] = None
        # Its share of the ports is taken from the start, its bytes flow after the latency. Nothing takes no time.
        message.pace = self._pace(message)
        message.since = message.ends = now
        if message.left and message.route.ports:
            message.since = now + message.route.latency_seconds
            message.ends = now + (message.route.latency_seconds + message.left / message.pace)
        return [message, *self._changed(message, now)]

    def end(self, message: Message, now: float) -> list[Message]:
        """Take away a message that has arrived; returns those whose end has changed."""
        for port in message.route.ports:
            del self.passing[port][message]
        return self._changed(message, now)

    def _pace(self, message: Message) -> float:
        return min((self.bytes_per_second[port] / len(self.passing[port]) for port in message.route.ports), default=0.0)

    def _changed(self, cause: Message, now: float) -> list[Message]:
        found: dict[Message, None] = {}
        for port in cause.route.ports:
            found.update(self.passing[port])
        found.pop(cause, None)
        return [message for message in found if self._repace(message, now)]

    def _repace(self, message: Message, now: float) -> bool:
        pace = self._pace(message)
        if pace == message.pace:
            return False
        if now > message.since:
            message.left = max(0.0, message.left - (now - message.since) * message.pace)
            message.since = now
        message.pace = pace
        message.ends = message.since + message.left / pace
        message.version += 1
        return True
