"""AlphaFold2's Evoformer with recycling: a tiny one that runs on any machine, AlphaFold2's own, and SuperScaler's."""
