"""From a Plan to a Program in three phases: transform the model, schedule the pieces, preserve the dependencies."""

from partita.spacetime.program import LocalOp, Piece, Place, Program, Segment, Shard, Task, Transfer

__all__ = ["LocalOp", "Piece", "Place", "Program", "Segment", "Shard", "Task", "Transfer"]
