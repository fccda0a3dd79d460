"""Plans run inside a DeepSpeed engine: its optimizers, ZeRO, precision, clipping and checkpoints; Partita's queues."""
