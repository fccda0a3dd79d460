"""Swin Transformers: a tiny one that learns to read digits on any machine, and the sizes of the SuperScaler paper."""
