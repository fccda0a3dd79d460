"""Plugins that ship with Partita: they read models, measure, execute and report through the hooks anybody's plugin has."""
