"""The plan library: plans by name, one file each, over the primitives of ``partita.draft``."""
