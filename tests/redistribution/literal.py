"""What devices literally send and receive in a step, counted copy by copy."""

from __future__ import annotations

import numpy as np

from partita.redistribution import Step
from partita.redistribution.exchange import Exchange


def traffic(step: Step) -> tuple[dict[int, int], dict[int, int]]:
    """Elements that each device sends and receives, counted one by one."""
    exchange = Exchange(step)
    sent = {device: sum(copy.elements for copy in exchange.gives(device)) for device in step.before.mesh.devices}
    received = {
        device: sum(copy.elements for copy in exchange.takes(device) if copy.source != device)
        for device in step.after.mesh.devices
    }
    return sent, received


def unevenness(step: Step) -> int:
    """Elements by which a device may miss its even share of what a direct step sends.

    Where the holders of a tile can't cut a reader's block into equal boxes, it is the largest part less the smallest,
    over all readers.
    """
    if step.op != "direct":
        return 0
    exchange, most, devices = Exchange(step), 0, np.asarray(step.before.mesh.devices)
    tiles = np.stack([step.before.tiles, step.before.parts])
    for tile in np.unique(tiles, axis=1).T:
        holders = devices[(tile == tiles.T).all(axis=1)].tolist()
        # Readers are served by the holders of their node, where there are any, each group for itself.
        groups: dict[int, dict[int, list[int]]] = {}
        for holder in holders:
            for copy in exchange.gives(holder):
                node = -1 if step.nodes is None else step.nodes[copy.target]
                groups.setdefault(node, {}).setdefault(copy.target, []).append(copy.elements)
        if step.nodes is not None:
            near = {node for node in groups if node in [step.nodes[holder] for holder in holders]}
            far = {target: parts for node in groups.keys() - near for target, parts in groups[node].items()}
            groups = {node: groups[node] for node in near} | {-1: far}
        uneven = 0
        for node, blocks in groups.items():
            count = sum(node in (-1, step.nodes[holder]) for holder in holders) if step.nodes else len(holders)
            if any(len(parts) > 1 for parts in blocks.values()) or len(blocks) % count:
                full = [parts + [0] * (count - len(parts)) for parts in blocks.values()]
                uneven += sum(max(parts) - min(parts) for parts in full)
        most = max(most, uneven)
    return most
