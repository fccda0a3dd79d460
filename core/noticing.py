"""The key that Partita looks for in DeepSpeed's configurations, and the switch, ``PARTITA_NOTICE``, that lets it look.

Read by every process that imports torch, with the key or without: so nothing is imported here that costs time.
"""

from __future__ import annotations

from collections.abc import Mapping

KEY = "partita"
VARIABLE = "PARTITA_NOTICE"
# In any case of letters. Nothing, and a variable that isn't set, are on.
OFF, ON = ("off", "0"), ("on", "1", "")


def noticing(environment: Mapping[str, str]) -> bool | None:
    """Whether the key is looked for; None where the variable holds a word that is neither on nor off."""
    word = environment.get(VARIABLE, "").lower()
    return False if word in OFF else True if word in ON else None
