"""Megatron-core: its tensor-parallel layers in the place of a plan's cut linears, embeddings and loss."""
