"""Partita plans how many devices train one model, proves the plan, and runs it through the framework you already use."""

__version__ = "0.1.0"
