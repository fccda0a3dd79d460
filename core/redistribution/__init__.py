"""How tensors lie on a mesh."""

from partita.redistribution.layout import Layout

__all__ = ["Layout"]
