"""ZeRO 1, 2, 3 in the plain runtime: one device's training, and no more of the state on each copy than its share."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from partita.adapters.torch import offload
from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.prepare import Lowered, make_stages
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.save import save_dense
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import Initialised
from partita.adapters.verify.devices import Cast
from partita.adapters.verify.one_device import adam
from partita.adapters.verify.queues import run_queues
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.draft import drafted
from partita.drafted import library
from partita.errors import PlanError
from partita.plan import Order, Plan
from partita.planner.joint.price import Pricing
from partita.problem import Problem
from partita.schedules import Turn
from partita.spacetime.communication import begins_with
from partita.spacetime.lower import lower
from partita.spacetime.program import Program, Task
from tests.ranks.pool import Pool
from tests.runtime.engines import Case
from tests.runtime.models import MODELS, SEQ, Batch
from tests.runtime.parity import assert_equal
from tests.runtime.programs import Layout, plan, program
from tests.runtime.test_memory import Storages
from tests.runtime.training import Part, train
from tests.verify.models import Model, model

# Together these take longer than all fast tests should.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

LAYOUTS = {
    "dp2": Layout(dp=2),
    # Chunks of three: most parameters need padding.
    "dp3": Layout(dp=3, micro_batches=1),
    "dp2 recompute": Layout(dp=2, recompute="full", micro_batches=3),
    "dp2 tp2": Layout(dp=2, tp=2),
    "pp2 dp2": Layout(pp=2, dp=2, micro_batches=3),
    "pp2 dp2 recompute": Layout(pp=2, dp=2, recompute="full"),
    "pp2 dp2 tp2": Layout(pp=2, dp=2, tp=2),
}
# GPT-2's and T5's embeddings are tied: with stages the last one has a copy.
MODELS_HERE: dict[str, tuple[str, ...]] = {
    "gpt2": tuple(name for name in LAYOUTS if name != "dp2"),
    # Of other models those layouts in which what they have and GPT-2 hasn't can matter: two stacks, heads of two
    # sizes, stages of which little or nothing is trained, masks that are drawn again.
    "t5": ("dp2 tp2", "pp2 dp2", "pp2 dp2 recompute"),
    "llama": ("dp2 tp2", "pp2 dp2 tp2"),
    "gpt2 frozen start": ("dp3", "pp2 dp2"),
    "gpt2 frozen middle": ("dp2", "pp2 dp2 recompute"),
    "gpt2 dropout": ("dp2 tp2", "dp2 recompute", "pp2 dp2 recompute"),
}
# Plans of the library on four devices, with two data-parallel copies.
LIBRARY: dict[str, dict[str, int]] = {
    "interleaved": {"pp": 2}, "zero-bubble": {"pp": 2}, "interlaced": {"pp": 2}, "co-shard": {"pp": 2},
    "sequence-parallel": {"tp": 2}, "context-parallel": {"cp": 2},
}  # fmt: skip


def assert_one_device(found: Model, divided: Program) -> None:
    run_queues(divided)
    verdict = found.verify(divided)
    assert verdict.equal, str(verdict.difference)
    assert verdict.errors.missing == ()
    assert verdict.errors.loss < 1e-13
    assert verdict.errors.largest("gradient") < 1e-11
    assert verdict.errors.largest("parameter") < 1e-10
    assert len(set(verdict.losses)) == 3


@pytest.mark.parametrize(
    ("name", "layout", "zero"),
    [
        (name, layout, zero)
        for name, found in MODELS_HERE.items()
        for layout in found
        # What 1 divides 2 divides too: alone it is where chunks are padded, and where stages and pieces are.
        for zero in ((1, 2, 3) if name == "gpt2" and layout in ("dp3", "pp2 dp2 tp2") else (2, 3))
    ],
)
def test_training_is_that_of_one_device(name: str, layout: str, zero: int) -> None:
    found = model(name)
    assert_one_device(found, program(found.captured.graph, replace(LAYOUTS[layout], zero=zero)))


# Stages and blocks of unlike ZeRO stages. GPT-2's embedding is tied: where stage 0 owns it, its ZeRO stage is that of
# the copy in the last stage.
UNLIKE = {
    "0 1": Layout(pp=2, dp=2, zero=(0, 1)),
    "1 3": Layout(pp=2, dp=2, zero=(1, 3)),
    "2 0": Layout(pp=2, dp=2, zero=(2, 0)),
    "3 1 tp2": Layout(pp=2, dp=2, tp=2, zero=(3, 1)),
    "3 0 2": Layout(pp=3, dp=2, zero=(3, 0, 2), micro_batches=3),
    "blocks": Layout(pp=2, dp=2, zero=(1, 2), zeros=((1, 3), (2, 0), (4, 3)), micro_batches=3),
    "blocks of one stage, again": Layout(dp=2, recompute="full", zeros=((1, 3), (2, 2), (3, 1))),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [*(("gpt2", layout) for layout in UNLIKE), *(("swin", layout) for layout in ("1 3", "2 0", "blocks"))],
)
def test_stages_and_blocks_may_divide_unlike_parts_of_their_state(name: str, layout: str) -> None:
    found = model(name)
    divided = program(found.captured.graph, UNLIKE[layout])
    assert len(set(divided.zero.values())) > 1
    assert_one_device(found, divided)


def of_library(found: Model, name: str, zero: int) -> Plan:
    graph = found.captured.graph
    problem = Problem(graph, parse_cluster("cpu", 4), 8 * graph.samples, precision="fp64", target="partita")
    return with_zero(drafted(library()[name], name, problem, {**LIBRARY[name], "micro_batches": 4}), zero)


def with_zero(given: Plan, zero: int) -> Plan:
    return replace(
        given,
        stages=tuple(
            replace(stage, strategies=tuple(replace(one, zero=zero) for one in stage.strategies))
            for stage in given.stages
        ),
    )


# What 1 divides 2 divides too.
@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_schedule_and_axis_goes_with_it(name: str, zero: int) -> None:
    found = model("gpt2")
    divided = lower(found.captured.graph, of_library(found, name, zero))
    assert max(divided.dp) == 2
    assert_one_device(found, divided)


@dataclass(frozen=True)
class State:
    """Elements on a device. At rest: parameters, what the optimizer updates, its moments, the elements of chunks that
    are there; ``gradients``: the most between two tasks before the reduction, of the stage's own parameters. ``kept``:
    bytes that a forward pass has made and left."""

    local: list[int]
    parameters: int
    updated: int
    moments: int
    gradients: int
    kept: int


def states(found: Model, divided: Program) -> dict[int, State]:
    """What every virtual device has, of which each has one stage, after a step."""
    cast, device = Cast(divided), torch.device("cpu")

    def part(number: int, groups: Groups) -> State:
        captured = found.captured
        stages = make_stages(Lowered(captured, divided), groups, Initialised(captured.skeleton, 0), 0, device)
        (stage,) = stages.values()
        most, reduced = 0, False

        def look(task: Task) -> None:
            nonlocal most, reduced
            reduced = reduced or task.kind == "reduce"
            if not reduced:
                most = max(most, sum(_gradients(stage, name) for name in stage.trained))

        runtime = Runtime(divided, stages, groups, device=device, observe=look)
        engine = TorchEngine(stages, groups, optimizers(stages, adam))
        share = divided.shares[0]
        micro = [found.example(share.samples)] * share.turns
        # Of several stages what arrives would have to be made up.
        kept = _kept_bytes(stage, groups, micro[0]) if len(divided.pieces) == 1 else 0
        runtime.step(iter(micro), engine)
        (optimizer,) = engine.optimizers.values()
        moments = [value for of in optimizer.state.values() for key, value in of.items() if key.startswith("exp_avg")]
        shapes = [p.shape if (one := stage.divided(n)) is None else one.shape for n, p in stage.trained.items()]
        return State(
            [shape.numel() for shape in shapes],
            sum(p.untyped_storage().nbytes() // 8 for p in stage.parameters_by_name.values()),
            sum(p.numel() for p in stage.updated.values()), sum(value.numel() for value in moments), most, kept,
        )  # fmt: skip

    return cast.play(part)


def _kept_bytes(stage: StageModule, groups: Groups, batch: Batch) -> int:
    """Of what a forward pass makes, the bytes that its backward pass will need."""
    with Storages() as storages:
        outputs = stage(batch, {}, (0,))
    # What virtual devices have gathered is there until all have taken it.
    groups.everyone.objects(None)
    gc.collect()
    own = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    made = [found for pointer, found in storages.made.items() if pointer not in own]
    assert outputs
    return sum(size for reference, size in made if not reference.expired())


def _gradients(stage: StageModule, name: str) -> int:
    """Elements of a parameter's gradient and of its chunk's, whichever are there."""
    held = {id(p): p for p in (stage.parameters_by_name[name], stage.updated[name])}
    return sum(p.grad.numel() for p in held.values() if p.grad is not None)


@pytest.mark.parametrize("layout", [Layout(dp=3), Layout(dp=2, tp=2)])
def test_each_copy_has_its_share(layout: Layout) -> None:
    found = model("gpt2")
    by_zero = {zero: states(found, program(found.captured.graph, replace(layout, zero=zero))) for zero in (0, 1, 2, 3)}
    for device, whole in by_zero[0].items():
        all_, share = sum(whole.local), sum(-(-n // layout.dp) for n in whole.local)
        assert share < all_ / layout.dp * 1.05
        assert (whole.parameters, whole.updated, whole.moments, whole.gradients) == (all_, all_, 2 * all_, all_)
        one, two, three = (by_zero[zero][device] for zero in (1, 2, 3))
        assert one.local == two.local == three.local == whole.local
        assert {(state.updated, state.moments) for state in (one, two, three)} == {(share, 2 * share)}
        assert (one.gradients, two.gradients, three.gradients) == (all_, share, share)
        # Whole ones are laid out with their padding.
        padded = share * layout.dp
        assert (one.parameters, two.parameters, three.parameters) == (padded, padded, share)
        # What a forward pass leaves are activations: none of the parameters that it has gathered.
        assert one.kept == two.kept == three.kept == whole.kept


def test_each_stage_has_its_own_share() -> None:
    found = model("gpt2 untied")

    def of(*zero: int) -> dict[int, State]:
        return states(found, program(found.captured.graph, Layout(pp=2, dp=2, zero=zero)))

    by_zero = {zero: of(zero, zero) for zero in (0, 1, 2, 3)}
    for first, second in ((0, 1), (1, 3), (2, 0), (3, 2)):
        ours = of(first, second)
        assert ours == {device: by_zero[first if device < 2 else second][device] for device in range(4)}
        assert ours != by_zero[first]


def test_weight_turns_are_left_their_gradients() -> None:
    """Zero bubble: linear layers' gradients come in weight turns, where the copies add them up."""
    found = model("gpt2")
    divided = lower(found.captured.graph, of_library(found, "zero-bubble", 2))
    cast, device = Cast(divided), torch.device("cpu")

    def part(number: int, groups: Groups) -> list[tuple[str, bool]]:
        captured = found.captured
        stages = make_stages(Lowered(captured, divided), groups, Initialised(captured.skeleton, 0), 0, device)
        (stage,) = stages.values()
        weight = next(leaf for name, leaf in stage.updated.items() if name.endswith("c_fc.weight"))
        there: list[tuple[str, bool]] = []

        def look(task: Task) -> None:
            there.append((task.kind, weight.grad is not None))

        runtime = Runtime(divided, stages, groups, device=device, observe=look)
        share = divided.shares[0]
        micro = [found.example(share.samples)] * share.turns
        runtime.step(iter(micro), TorchEngine(stages, groups, optimizers(stages, adam)))
        return there

    for there in cast.play(part).values():
        first = next(place for place, (kind, _) in enumerate(there) if kind == "weight")
        assert not any(had for _, had in there[: first + 1])
        assert there[first + 1][1]
        assert "backward" in {kind for kind, _ in there[:first]}


def test_offloaded_blocks_leave_the_device_and_their_parameters_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found, moved, pack = model("gpt2"), Counter(), offload._pack

    def look(tensor: Tensor) -> offload.Packed:
        packed = pack(tensor)
        if packed[0]:
            moved[tuple(tensor.shape)] += 1
        return packed

    monkeypatch.setattr(offload, "_pack", look)
    by_zero: list[Counter[tuple[int, ...]]] = []
    for zero in (0, 1, 2, 3):
        given = plan(found.captured.graph, Layout(dp=2, zero=zero))
        stages = tuple(
            replace(stage, strategies=tuple(replace(one, offload=True) for one in stage.strategies))
            for stage in given.stages
        )
        moved.clear()
        assert_one_device(found, lower(found.captured.graph, replace(given, stages=stages)))
        by_zero.append(moved.copy())
    # The inputs of the 12 linear layers that read the hidden values, in 2 micro-batches of 3 steps on 2 devices.
    assert by_zero[0][2 * SEQ, 32] >= 12 * 12
    assert by_zero[1:] == by_zero[:1] * 3


@pytest.mark.parametrize(
    ("zero", "meets"),
    [
        (0, {"reduce"}), (1, {"reduce", "update"}), (2, {"reduce", "update", "backward", "weight"}),
        (3, {"reduce", "forward", "backward", "weight"}),
    ],
)  # fmt: skip
def test_copies_meet_where_they_have_collectives(zero: int, meets: set[str]) -> None:
    divided = program(model("gpt2").captured.graph, Layout(dp=2, zero=zero))
    kinds = ("forward", "backward", "weight", "reduce", "update")
    assert {kind for kind in kinds if begins_with(divided, 0, 0, kind) == (0, 1)} == meets


def overlapping(zero: int) -> Plan:
    """Three stages whose first and last share the embedding; device 0 serves both, with another device in each."""
    graph = model("gpt2").captured.graph
    given = plan(graph, Layout(pp=3, dp=2, zero=zero, micro_batches=1))
    devices = ((0, 1), (3, 2), (0, 2))
    turns = {
        device: [Turn(s, "forward", 0) for s in at] + [Turn(s, "backward", 0) for s in reversed(at)]
        for device in range(4)
        if (at := [stage for stage in range(3) if device in devices[stage]])
    }
    stages = tuple(replace(stage, devices=on) for stage, on in zip(given.stages, devices, strict=True))
    return replace(given, stages=stages, order=Order("turns", 3, 1, turns=turns))


def test_a_parameter_that_a_device_would_divide_twice_is_refused() -> None:
    found = model("gpt2")
    assert_one_device(found, lower(found.captured.graph, overlapping(1)))
    for zero in (2, 3):
        with pytest.raises(PlanError) as caught:
            found.verify(lower(found.captured.graph, overlapping(zero)))
        assert str(caught.value) == (
            f'zero={zero}: the stages [0, 2] share "model.transformer.wte.weight", which device 0 would divide over '
            "the devices [0, 1] and [0, 2]; it takes the same devices in each, in ascending order. zero=0 and zero=1 "
            "work"
        )


def test_the_planner_offers_it() -> None:
    graph = model("gpt2").captured.graph
    pricing = Pricing(Problem(graph, parse_cluster("4xa100-80gb"), 16, target="partita"), alike(graph))
    shapes = {(family.stages, shape) for family in pricing.families for shape in family.shapes}
    found = {(stages, shape.zero) for stages, shape in shapes if shape.dp == 2}
    assert found == {(stages, zero) for stages in (1, 2, None) for zero in (0, 1, 2, 3)}


RANKS = {
    "gpt2 dp2 tp2 zero2 clipped": Case("gpt2", Layout(dp=2, tp=2, zero=2), dtype="float64", clip_norm=0.25),
    "gpt2 pp2 dp2 zero1 clipped": Case("gpt2", Layout(pp=2, dp=2, zero=1), dtype="float64", clip_norm=0.25),
    "gpt2 pp2 dp2 zero3 clipped": Case("gpt2", Layout(pp=2, dp=2, zero=3), dtype="float64", clip_norm=0.25),
    "gpt2 frozen start pp2 dp2 zero2 clipped": Case(
        "gpt2 frozen start", Layout(pp=2, dp=2, zero=2), dtype="float64", clip_norm=0.25
    ),
    "t5 pp2 dp2 zero3 recompute": Case("t5", Layout(pp=2, dp=2, zero=3, recompute="full")),
    "gpt2 pp2 dp2 zero0 zero1 clipped": Case("gpt2", Layout(pp=2, dp=2, zero=(0, 1)), dtype="float64", clip_norm=0.25),
    "gpt2 pp2 dp2 zero3 zero0 and blocks": Case(
        "gpt2", Layout(pp=2, dp=2, zero=(3, 0), zeros=((1, 0), (4, 2))), dtype="float64", clip_norm=0.25
    ),
    "gpt2 pp2 dp2 zero1 zero3 selective": Case(
        "gpt2", Layout(pp=2, dp=2, zero=(1, 3), recompute="selective"), dtype="float64"
    ),
    "gpt2 dp3 zero3": Case("gpt2", Layout(dp=3, zero=3, micro_batches=3)),
}


@pytest.mark.parametrize("name", RANKS)
def test_on_ranks_training_is_that_of_one_device(pool: Pool, name: str) -> None:
    case = RANKS[name]
    outcomes = pool.run(train, case.layout.devices, case)
    if case.clip_norm:
        assert outcomes[0].dense_norm > 2 * case.clip_norm
    assert_equal(case, outcomes)


def weights(case: Case) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return MODELS[case.model].build().state_dict()


def save(case: Case, folder: str) -> None:
    save_dense(Part(case, weights(case)).runtime, folder)


@pytest.mark.parametrize("zero", [1, 2, 3, (3, 1)])
def test_what_is_saved_is_the_dense_model(pool: Pool, tmp_path: Path, zero: int | tuple[int, ...]) -> None:
    case = Case("gpt2", Layout(pp=2, dp=2, zero=zero))
    pool.run(save, 4, case, str(tmp_path))
    saved = {name: value for file in tmp_path.glob("*.safetensors") for name, value in load_file(file).items()}
    dense = weights(case)
    assert saved.keys() == dict(MODELS[case.model].build().named_parameters()).keys()
    assert [name for name, value in saved.items() if not torch.equal(value, dense[name])] == []
