"""Partita plans how many devices train one model, and runs the plan through the framework that you already use."""

__version__ = "0.1.0"
