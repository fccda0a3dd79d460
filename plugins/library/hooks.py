"""The plans of the library by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    from partita.draft import Draft


@hookimpl
def partita_library() -> Mapping[str, Callable[[Draft], None]]:
    from partita.plugins.library import pipeline, zero
    from partita.plugins.library.co_shard import co_shard
    from partita.plugins.library.context_parallel import context_parallel
    from partita.plugins.library.data_parallel import data_parallel
    from partita.plugins.library.expert_parallel import expert_parallel
    from partita.plugins.library.interlaced import interlaced
    from partita.plugins.library.interleaved import breadth_first, interleaved
    from partita.plugins.library.megatron import megatron
    from partita.plugins.library.sequence_parallel import sequence_parallel
    from partita.plugins.library.three_f_one_b import three_f_one_b

    return {
        "data-parallel": data_parallel, "zero-1": zero.zero_1, "zero-2": zero.zero_2, "zero-3": zero.zero_3,
        "megatron": megatron, "sequence-parallel": sequence_parallel, "context-parallel": context_parallel,
        "expert-parallel": expert_parallel, "gpipe": pipeline.gpipe, "1f1b": pipeline.one_f_one_b,
        "interleaved": interleaved, "breadth-first": breadth_first, "zero-bubble": pipeline.zero_bubble,
        "co-shard": co_shard, "interlaced": interlaced, "3f1b": three_f_one_b,
    }  # fmt: skip
