"""Plugins that ship with Partita: they read models, measure, execute and report through the hooks open to all."""
