"""Redistributions carried out on processes: their tensors, their groups, and DTensors."""
