"""The captured model: tensors, ops, blocks; signatures and the dims that may be cut; reading and writing."""

from partita.graph.file import load_graph, save_graph
from partita.graph.model import Block, Graph, Loss, Op, Tensor, check

__all__ = ["Block", "Graph", "Loss", "Op", "Tensor", "check", "load_graph", "save_graph"]
