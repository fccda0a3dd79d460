"""What a plan owes to a measured profile: which blocks are measured, and where numbers go beyond the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partita.errors import listed
from partita.plan import Stage
from partita.planner.joint.kinds import BlockCut
from partita.planner.joint.price import Pricing
from partita.profile.measured import Measured


def profile_sentences(pricing: Pricing, stages: Sequence[Stage]) -> Iterator[str]:
    """Nothing without a profile; otherwise how many blocks are measured, what stands for the others, what is
    extrapolated. Of devices that differ, whose profile there is."""
    of_stages = [pricing.cluster.weakest(stage.devices).measured for stage in stages]
    devices = pricing.cluster.different_devices()
    profiles = {device.name: device.measured.source for device in devices if device.measured is not None}
    if len(devices) > 1 and profiles:
        text = f"Profile {listed(dict.fromkeys(profiles.values()))} is of {listed(profiles)}"
        yield text + ("." if all(of_stages) else "; stages on others, or on unlike ones, have the presets' figures.")
    for source, measured in {each.source: each for each in of_stages if each is not None}.items():
        on_them = [s for s, each in zip(stages, of_stages, strict=True) if each is not None and each.source == source]
        yield from _of_profile(pricing, measured, on_them)


def _of_profile(pricing: Pricing, measured: Measured, stages: Sequence[Stage]) -> Iterator[str]:
    threads = pricing.cluster.threads
    rest = "single kernels of the profile" if measured.rates else "the preset's figures"
    outside: dict[tuple[int, tuple[int, ...]], None] = {}
    for tp, blocks in _by_cut(pricing, stages).items():
        costs = pricing.kinds.costs(BlockCut(tp))
        found = [(measured.find(costs[pricing.kinds.of[block]].shape, threads), micro) for block, micro in blocks]
        known = [(block, micro) for block, micro in found if block is not None]
        if not known:
            yield f"Profile {measured.source}: it has none of these blocks at tp={tp}; {rest} price all of them."
            continue
        others = f"; {rest} price the others" if len(known) < len(found) else ""
        yield f"Profile {measured.source}: {len(known)} of {len(found)} blocks are measured at tp={tp}{others}."
        for block, micro in known:
            if not block.covers(micro):
                outside[micro, tuple(int(s.micro_batch) for s in block.samples)] = None
    for micro, sizes in sorted(outside):
        yield f"A micro-batch of {micro} lies outside the measured {listed(sizes)}: times and bytes are extrapolated."


def _by_cut(pricing: Pricing, stages: Sequence[Stage]) -> dict[int, list[tuple[int, int]]]:
    """The blocks and the samples of a device in a turn, by the devices that share a block's dims."""
    numbers = {block.name: index for index, block in enumerate(pricing.problem.graph.blocks)}
    found: dict[int, list[tuple[int, int]]] = {}
    for stage in stages:
        for name, strategy in zip(stage.blocks, stage.strategies, strict=True):
            divided = strategy.cut_along("tensor") == {"batch"}
            parts = stage.tp if divided else 1
            tp = 1 if divided else stage.tp
            found.setdefault(tp, []).append((numbers[name], stage.samples // (stage.dp * parts)))
    return found
