"""Swin Transformers: a tiny one that learns to read digits on any machine, Swin-T, and two of SuperScaler's."""
