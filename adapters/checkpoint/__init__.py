"""Checkpoints that move between plans and formats: what one holds, and how another is filled from it box by box."""
