"""How the members of a group lie in the nodes of a cluster."""

from __future__ import annotations

import numpy as np


def beside(nodes: np.ndarray) -> int:
    """[groups, members], the node of each member: the members that a group has in one of its nodes, at least."""
    groups = np.arange(len(nodes))[:, None] * (int(nodes.max()) + 1)
    counts = np.bincount((groups + nodes).reshape(-1))
    return int(counts[counts > 0].min())
