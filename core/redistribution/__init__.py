"""How tensors lie on devices, and how they get from one way of lying to another."""

from partita.redistribution.layout import Layout
from partita.redistribution.materialise import Take, materialise
from partita.redistribution.view import View

__all__ = ["Layout", "Take", "View", "materialise"]
