"""Stages, their devices and how every block runs in them, chosen together: numbers in, the proven best out."""
