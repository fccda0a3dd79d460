"""A language model whose layers are mixtures of experts: tiny, to train on any machine."""
