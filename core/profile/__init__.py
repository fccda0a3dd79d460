"""Measured profiles: blocks, single kernels and collectives of one device, read from files and put into a cluster.

Measuring is a plugin's business. What is read here says how long a block takes and what it keeps; where it has no such
block, single kernels say how fast the device computes and moves bytes.
"""
