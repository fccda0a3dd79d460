"""Parameters that several blocks share: what a stage holds of those that an earlier stage owns.

The owner is the first user. Every stage that has another of the users, and not the owner, holds a copy; what it costs
is told by the block that uses it first there.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from partita.cost.alike import Alike
from partita.cost.division import split_fraction
from partita.graph.model import Graph


def tied_blocks(graph: Graph) -> np.ndarray:
    """[n]: whether a block shares a parameter with another. Stages that hold it must cut it alike."""
    users = {user for found in graph.shared_parameters.values() for user in found}
    return np.array([block.name in users for block in graph.blocks])


def owners(graph: Graph) -> np.ndarray:
    """[n]: whether a block owns a parameter that others use."""
    first = {users[0] for users in graph.shared_parameters.values()}
    return np.array([block.name in first for block in graph.blocks])


def lent_elements(graph: Graph, groups: Alike, tp: int) -> np.ndarray:
    """[parameters, n, n]: elements on a device of what block i lends in a stage that begins with block s, at [s, i]."""
    n = len(graph.blocks)
    position = {block.name: index for index, block in enumerate(graph.blocks)}
    found = np.zeros((len(graph.shared_parameters), n, n))
    for number, (name, users) in enumerate(graph.shared_parameters.items()):
        owner, *others = sorted(position[user] for user in users)
        size = local_elements(graph, groups, name, tp)
        for start in range(owner + 1, others[-1] + 1):
            found[number, start, next(other for other in others if other >= start)] = size
    return found


def local_elements(graph: Graph, groups: Alike, name: str, tp: int) -> int:
    """Elements of a shared parameter on one device, cut over tp devices as its owner cuts it."""
    owner = min(index for index, block in enumerate(graph.blocks) if block.name in graph.shared_parameters[name])
    classes, standing = groups.owner_cuts(name, owner)
    part = split_fraction(classes, {cut.name: tp for cut in classes})(standing)
    return ceil(graph.tensor[name].elements * part)
