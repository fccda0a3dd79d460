"""What other libraries would do, by name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    from partita.redistribution import ArrayType, Step


@hookimpl
def partita_peer_redistribution(
    source: ArrayType, target: ArrayType, item_bytes: int
) -> Iterable[tuple[str, tuple[Step, ...]]] | None:
    if find_spec("torch") is None:
        return None
    from partita.plugins.peers.dtensor import planned

    return planned(source, target, item_bytes)
