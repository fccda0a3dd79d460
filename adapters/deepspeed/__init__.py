"""Plans run inside a DeepSpeed engine: its optimizers, ZeRO, precision, clipping and checkpoints; Partita's queues.

Importing any of it wraps ``deepspeed.initialize``, which then looks for the key ``"partita"``.
"""

from partita.adapters.deepspeed.wrap import install

install()
