"""The verb ``profile``: blocks of a model measured on this device as the runtime runs them, collectives between
processes, and the file that ``--profile`` reads."""
