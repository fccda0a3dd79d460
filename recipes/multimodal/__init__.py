"""A multi-modal transformer: a branch of layers for each modality, side by side, and a head that joins them."""
