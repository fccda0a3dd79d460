"""``partita check``: what is wrong, or will be, with a configuration that the user already has.

One reader a format, one small file a group of rules: pure functions from settings (and a graph and a cluster, where
they are given) to findings. No framework is imported: what frameworks know stands in data files with their source.
"""
