"""A model like CANDLE's Uno: how a tumour grows under two drugs, from seven features with a branch each."""
