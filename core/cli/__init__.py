"""The command line: one small file a verb. ``main`` turns errors into messages and exit statuses."""
