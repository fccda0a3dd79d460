"""GPT-3 in the sizes of its paper, and a tiny one that trains on any machine."""
