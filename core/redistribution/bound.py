"""The least that some device must send or receive, in whatever way an array gets from one type to another.

Ways may have any number of steps, any messages of elements or of sums of elements, and may lead over any of the devices
of the two meshes. The bound is the largest of these, S(d) and T(d) being what device d holds and wants:

- A device receives what it wants and doesn't hold: |T(d)| − |S(d) ∩ T(d)|.
- Of a tile, each element that some device wants which doesn't hold it must be sent by one of those r that hold it, so
  that one of them sends at least 1/r of these elements. Where they are parts of a sum the same is true of each part.
- Sums, to a target without: a device has at most one of the k parts of an element, and receives at least a message
  for each element of T(d). An element takes k − 1 messages until the first device has all of it, k if that one holds
  no part, and one more for each other of the devices W that want it, for each gets its last message after that. So
  there are at least k + |W| − 2 messages, one more where no device of W holds a part of it. On the average of all
  devices these are 2(k − 1)/k of the array of an all-reduce, (k − 1)/k of that of a reduce-scatter.
- Sums in the target: parts may be zero and a value may be in any of them, so only this holds: what a tile's holders
  don't want in any part, they send; and an element of which there are r copies and must be r′ takes r′ − r messages.
"""

from __future__ import annotations

import numpy as np

from partita.redistribution.array_type import ArrayType
from partita.redistribution.price import held, kept, keys, overlap


def lower_bound(source: ArrayType, target: ArrayType) -> int:
    """Elements that the device which sends or receives most has to, at least."""
    if target.layout.partial:
        return max(_sent_away(source, target), _copied(source, target))
    if source.layout.partial and source.mesh.size(source.layout.partial) > 1:
        received = int(target.elements.max(initial=0))
        return max(received, _sent_at_least(source, target), _summed(source, target))
    received = int((target.elements - kept(source, target)).max(initial=0))
    return max(received, _sent_at_least(source, target))


def _sent_at_least(source: ArrayType, target: ArrayType) -> int:
    """All of a tile but what nobody outside of its holders wants."""
    key, keys_ = keys(source)
    wanted = target.tiles
    places = held(source, target.mesh.devices)
    holds = np.where(places >= 0, key[places], -1)
    tiles = int(wanted.max(initial=0)) + 1
    least, most = np.full(tiles, keys_), np.full(tiles, -1)
    np.minimum.at(least, wanted, holds)
    np.maximum.at(most, wanted, holds)
    _, first = np.unique(wanted, return_index=True)
    inside = first[(least == most)[wanted[first]] & (holds[first] >= 0)]
    stays = np.bincount(holds[inside], kept(source, target)[inside], minlength=keys_)
    return _shared(source, stays)


def _sent_away(source: ArrayType, target: ArrayType) -> int:
    """All of a tile but what its own holders want, in whatever part of a sum."""
    key, count = keys(source)
    places = held(source, target.mesh.devices)
    here = np.flatnonzero(places >= 0)
    tiles = int(target.tiles.max(initial=0)) + 1
    _, first = np.unique(key[places[here]] * tiles + target.tiles[here], return_index=True)
    pairs = here[first]
    stays = np.bincount(key[places[pairs]], kept(source, target)[pairs], minlength=count)
    return _shared(source, stays)


def _shared(source: ArrayType, stays: np.ndarray) -> int:
    """The largest share of a holder, where of each tile that much needn't be sent."""
    key, count = keys(source)
    elements, holders = np.zeros(count), np.bincount(key, minlength=count)
    elements[key] = source.elements
    return int(np.ceil((elements - stays) / holders).max(initial=0))


def _summed(source: ArrayType, target: ArrayType) -> int:
    """The messages that complete a sum and spread it, over all devices of both meshes."""
    parts = source.mesh.size(source.layout.partial)
    size = int(np.prod(source.shape, dtype=np.int64))
    copies = len(target.mesh.devices) // keys(target)[1]
    places = held(source, target.mesh.devices)
    here = np.flatnonzero(places >= 0)
    tiles = int(source.tiles.max(initial=0)) + 1
    _, first = np.unique(target.tiles[here] * tiles + source.tiles[places[here]], return_index=True)
    pairs = here[first]
    begun = int(overlap(source.boxes[places[pairs]], target.boxes[pairs]).sum())
    messages = size * (parts - 1 + copies) - begun
    return -(-messages // len({*source.mesh.devices, *target.mesh.devices}))


def _copied(source: ArrayType, target: ArrayType) -> int:
    size = int(np.prod(source.shape, dtype=np.int64))
    have, want = (len(kind.mesh.devices) // keys(kind)[1] for kind in (source, target))
    return -(-size * max(0, want - have) // len({*source.mesh.devices, *target.mesh.devices}))
