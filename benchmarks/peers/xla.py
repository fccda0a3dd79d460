"""What XLA does for pairs of layouts: lines of JSON in, lines of JSON out.

    python benchmarks/peers/xla.py < pairs > traffic

Each pair is the identity, compiled for 8 CPU devices with the pair's shardings; nothing is run. jax is here in a
process of its own, away from torch.
"""

from __future__ import annotations

import json
import os
import sys
from math import prod

# XLA reads them when jax is imported. Machine code isn't needed, so it needn't be good; nor is a warning a pair.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import jax
import numpy as np
from hlo import traffic
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def compiled(mesh: str, shape: list[int], source: str, target: str) -> str:
    """The optimized HLO of a pair."""
    axes = {name: int(size) for name, _, size in (entry.partition("=") for entry in mesh.split(","))}
    grid = Mesh(np.array(jax.devices()[: prod(axes.values())]).reshape(*axes.values()), tuple(axes))
    before, after = (
        NamedSharding(
            grid, PartitionSpec(*(None if dim == "-" else tuple(dim.split(".")) for dim in layout.split(",")))
        )
        for layout in (source, target)
    )
    same = jax.jit(lambda array: array, in_shardings=before, out_shardings=after)
    return same.lower(jax.ShapeDtypeStruct(tuple(shape), np.float32)).compile().as_text()


def main() -> None:
    print(json.dumps({"version": f"jax {jax.__version__}"}), flush=True)
    for line in sys.stdin:
        pair = json.loads(line)
        found = traffic(compiled(**pair), 8)
        print(json.dumps({
            "bytes": max(*found.sent, *found.received), "largest_bytes": found.largest_bytes,
            "collectives": found.collectives,
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
