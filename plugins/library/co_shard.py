"""Co-shard (SuperScaler, section 5): heads and hidden units are cut into shards that one device computes one after
another, so that the activations of one shard alone are there at a time."""

from partita.draft import Draft, op_order, op_trans, recompute
from partita.errors import PlanError
from partita.plan import Axis
from partita.plugins.library.pipeline import staged


def co_shard(draft: Draft) -> None:
    """``shards`` of the first ``blocks`` blocks that have heads or hidden units (default all); ``pp`` (default 1) and
    ``tp`` as in a pipeline. ``recompute=0`` keeps what lies between the shards: more memory, one forward less."""
    shards = Axis("shard", draft.argument("shards", 2), "turns")
    staged(draft, pp=1)
    layers = [block for block in draft.blocks if {"heads", "hidden"}.intersection(draft.classes(block))]
    if not layers:
        raise PlanError(f'no block of "{draft.graph.name}" has heads or hidden units that could be cut into shards')
    count = draft.argument("blocks", len(layers))
    if count > len(layers):
        raise PlanError(f'blocks={count}: "{draft.graph.name}" has {len(layers)} with heads or hidden units')
    layers = layers[:count]
    for dim in ("heads", "hidden"):
        if any(dim in draft.classes(block) for block in layers):
            op_trans(draft, layers, dim, shards)
    if draft.argument("recompute", 1, 0):
        recompute(draft, layers)
    op_order(draft, "1f1b")
