"""Padding that a file has and the model has not: rows of the vocabulary that some division over devices needed.

Which tensors may have it, and how many rows there really are, the model says and never the file: a dim that is cut
evenly by padding it (``graph.cuts``) may be longer in a file; any other that is, is another model's.
"""

from __future__ import annotations

from dataclasses import replace

from partita.adapters.checkpoint.boxes import elements
from partita.adapters.checkpoint.catalogue import Catalogue, Entry, Key, Piece
from partita.graph import Graph
from partita.graph.cuts import block_cuts
from partita.redistribution.view import Box, intersection

# Frameworks pad to a multiple of 128 rows a device, for 64 devices at most. A vocabulary that is longer still is real.
MOST_ROWS = 128 * 64


def without_padding(catalogue: Catalogue, graph: Graph) -> Catalogue:
    """The checkpoint with the model's own sizes; ``padded`` says what the files have."""
    tensors: dict[Key, Entry] = {}
    padded = dict(catalogue.padded)
    for (name, state), entry in catalogue.tensors.items():
        own = catalogue.aliases.get(name, name)
        own = graph.aliases.get(own, own)
        tensor = graph.tensor.get(own)
        if tensor is not None and entry.shape != tensor.shape:
            dim = _padded_dim(graph, own, entry.shape)
            if dim is not None:
                padded[name] = dim, entry.shape[dim]
                entry = _cut_off(entry, tensor.shape)
        tensors[name, state] = entry
    return replace(catalogue, tensors=tensors, padded=padded)


def _padded_dim(graph: Graph, name: str, shape: tuple[int, ...]) -> int | None:
    """The dim in which a tensor is longer than the model's by padding; None where it is another tensor."""
    real = graph.tensor[name].shape
    longer = [dim for dim, (size, own) in enumerate(zip(shape, real, strict=False)) if size != own]
    if len(shape) != len(real) or len(longer) != 1 or not 0 < shape[longer[0]] - real[longer[0]] < MOST_ROWS:
        return None
    for block in dict.fromkeys(op.block for op in graph.ops if name in op.inputs):
        for cut in block_cuts(graph, block):
            if cut.pads and cut.dims.get(name, (None, 0))[0] == longer[0]:
                return longer[0]
    return None


def _cut_off(entry: Entry, shape: tuple[int, ...]) -> Entry:
    whole: Box = tuple((0, size) for size in shape)
    found = [(intersection(piece.box, whole), piece) for piece in entry.pieces]
    pieces = [Piece(box, piece.at(box)) for box, piece in found if box is not None and elements(box)]
    return Entry(shape, entry.dtype, tuple(pieces))
