"""How tensors lie on devices, and how they get from one way of lying to another."""

from partita.redistribution.array_type import ArrayType
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.steps import Step
from partita.redistribution.view import View

__all__ = ["ArrayType", "Layout", "Mesh", "Step", "View"]
