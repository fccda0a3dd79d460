"""Prove by execution: a program on virtual devices of one process, beside one device. And the verb ``verify``."""
