"""``deepspeed.initialize`` with the key ``"partita"``: from the user's arguments to an engine that runs a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.config import DeepSpeedConfig
from torch import nn

from partita.adapters.deepspeed.initialize import Parting, check, connect, mark_copies, own_device, require_trained
from partita.adapters.deepspeed.loop_engine import LoopEngine
from partita.adapters.deepspeed.model_weights import ModelWeights, same_everywhere
from partita.adapters.deepspeed.planning import Gpu, chosen, this_cluster, words_of
from partita.adapters.deepspeed.regroup import names_of, regroup_optimizer, regroup_parameters
from partita.adapters.deepspeed.request import BATCH, Request, read_request
from partita.adapters.torch.loop.facade import keep_dtype, occupy, require_free
from partita.adapters.torch.loop.loop import Loop
from partita.adapters.torch.prepare import DTYPES, Lowered, prepare, realiser
from partita.cluster import Cluster
from partita.errors import InputError, ModelError, PartitaError
from partita.hooks import plugins
from partita.key import KEY, Key, parse_key
from partita.plan import Plan
from partita.plugins.capture_torch import Captured, Skeleton, capture_skeleton, skeleton_of
from partita.plugins.capture_torch.example import arguments_of, examples
from partita.plugins.export.deepspeed_config import deepspeed_config
from partita.spacetime.lower import lower


def initialize_with_plan(config: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """What ``deepspeed.initialize`` returns: engine, optimizer, loader, schedule. Collective over all ranks.

    The model becomes a facade: the user's object, with this rank's parameters. With a dry run the plan is printed and
    the process ends with status 0. PartitaError, the same on every rank, where there is no plan or it can't be run.
    """
    model, optimizer = given.get("model"), given.get("optimizer")
    _require(given)
    assert isinstance(model, nn.Module)
    zero = deepspeed.zero.partition_parameters
    # A model that is built while ZeRO-3 is on must not have what is built here divided.
    zero.shutdown_init_context()
    _restore_linear()
    connect(given.get("distributed_port"))
    ranks = dist.get_world_size()
    key = parse_key(config[KEY])
    device = own_device()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    gpus: list[Gpu] = [None] * ranks
    dist.all_gather_object(gpus, _gpu(device))
    cluster = this_cluster(key, gpus, local)
    request = read_request(config, cluster.devices, optimizer, _recomputes(model))
    _same_model(model, device)
    skeleton = _skeleton(model, request)
    captured = _capture(skeleton, model, request.micro, key, given)
    plan, sentences = _agreed_plan(captured, cluster, key, request)
    _say(plan, sentences, key)
    if key.dry_run:
        dist.barrier()
        sys.exit(0)
    engine = _engine(plan, captured, skeleton, model, request, config, given, device)
    zero.restore_init_context()
    _restore_linear()
    plugins().hook.partita_engine_made(engine=engine, config=config)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _restore_linear() -> None:
    """Give torch its own linear back: building a model under ZeRO-3 replaces it for good, by one that hides its op."""
    own = getattr(deepspeed.zero.partition_parameters.InsertPostInitMethodToModuleSubClasses, "linear_bk", None)
    if own is not None:
        torch.nn.functional.linear = own


def _require(given: Mapping[str, Any]) -> None:
    model = given.get("model")
    if not isinstance(model, nn.Module):
        raise InputError(f"deepspeed.initialize was given a {type(model).__name__} as the model; a module is needed")
    if isinstance(model, deepspeed.PipelineModule):
        raise InputError(
            f'the model is a PipelineModule, whose stages are cut by hand, and the configuration has the key "{KEY}", '
            "which cuts the model itself: give the model as it is for one device, or remove the key"
        )
    for name in ("mpu", "mesh_param"):
        if given.get(name) is not None:
            raise InputError(f'deepspeed.initialize was given {name}: the plan of the key "{KEY}" makes its own groups')
    require_free(model)


def _gpu(device: torch.device) -> Gpu:
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    return found.name, found.total_memory


def _recomputes(model: nn.Module) -> bool:
    """Whether activation checkpointing was turned on in a transformers model."""
    return any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())


def _same_model(model: nn.Module, device: torch.device) -> None:
    """Rank 0's weights and buffers on every rank, said where they differed."""
    different = same_everywhere(dict(model.named_parameters()) | dict(model.named_buffers()), device)
    if different and dist.get_rank() == 0:
        print(
            f"partita: {len(different)} tensors of the model differed between ranks ({different[0]}, …); rank 0's are "
            "taken", file=sys.stderr, flush=True,
        )  # fmt: skip


def _common_seed() -> int:
    """Rank 0's seed: ranks that share a value have to drop the same of it, and scripts may seed each rank otherwise."""
    seed = [torch.initial_seed() % 2**31]
    dist.broadcast_object_list(seed, 0)
    return seed[0]


def _skeleton(model: nn.Module, request: Request) -> Skeleton:
    skeleton = skeleton_of(model, DTYPES[request.precision])
    for module in skeleton.model.modules():
        # The plan recomputes block by block; torch.export can't read through the model's own way.
        if getattr(module, "gradient_checkpointing", False) is True:
            module.gradient_checkpointing = False  # type: ignore[assignment]
    return skeleton


def _capture(skeleton: Skeleton, model: nn.Module, samples: int, key: Key, given: Mapping[str, Any]) -> Captured:
    """The model at the samples of a call. ModelError with the first example's reason, where none can be read."""
    name = type(model).__name__
    data = given.get("training_data")
    if data is not None and not callable(getattr(model, "example_inputs", None)):
        collate = given.get("collate_fn") or torch.utils.data.default_collate
        batch = collate([data[index % len(data)] for index in range(samples)])
        return capture_skeleton(skeleton, arguments_of(model, batch), name=name)
    failure: ModelError | None = None
    for arguments in examples(skeleton.model, samples, key.seq):
        try:
            return capture_skeleton(skeleton, arguments, name=name)
        except ModelError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _agreed_plan(captured: Captured, cluster: Cluster, key: Key, request: Request) -> tuple[Plan, list[str]]:
    """Rank 0's plan, or its reason why there is none, on every rank."""
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            found[0] = chosen(captured.graph, cluster, key, request)
        except PartitaError as error:
            found[0] = error
    dist.broadcast_object_list(found, 0)
    if isinstance(found[0], PartitaError):
        raise found[0]
    plan, sentences = found[0]
    return plan, sentences


def _say(plan: Plan, sentences: list[str], key: Key) -> None:
    """On rank 0: the whole plan in a dry run, otherwise what it is in a line, and what the user's settings cost."""
    if dist.get_rank():
        return
    if key.dry_run:
        from partita.cli.show import plan_text

        print("\n".join([plan_text(plan, None), *sentences]), flush=True)
        return
    tokens = f", planned for samples of {plan.seq} tokens" if plan.seq else ""
    words = f"{words_of(plan)}; {plan.predicted.step_seconds:.3g} s a call predicted{tokens}"
    for line in (f"plan for {len(plan.devices)} ranks: {words}", *sentences):
        print(f"partita: {line}", file=sys.stderr, flush=True)


def _engine(
    plan: Plan, captured: Captured, skeleton: Skeleton, model: nn.Module, request: Request, config: Mapping[str, Any],
    given: Mapping[str, Any], device: torch.device,
) -> LoopEngine:  # fmt: skip
    """This rank's engine, around the model's facade."""
    optimizer, parameters = given.get("optimizer"), given.get("model_parameters")
    if parameters is not None and not isinstance(parameters, (nn.Module, list)):
        parameters = list(parameters)  # a generator, which can be read once
    lowered = _lowered(plan, captured, skeleton, model, given)
    check(plan)
    require_trained(plan, lowered)
    complete = _config(plan, request, config)
    names = names_of(model, skeleton.canonical)
    own = dict(model.named_parameters())
    parting = Parting(lowered, complete)
    prepared = prepare(
        lowered, weights=ModelWeights(own), seed=_common_seed(), device=device,
        realise=realiser(lowered, plan.target), finish=parting.finish, divides=False,
    )  # fmt: skip
    stage = prepared.stage
    mpu = parting.mpu(prepared.groups)
    mark_copies(stage)
    if isinstance(optimizer, torch.optim.Optimizer):
        regroup_optimizer(optimizer, names, stage)
    local = regroup_parameters(parameters, names, stage)
    divided = complete["zero_optimization"]["stage"] == 3
    loop = Loop(plan, prepared, skeleton, prepared.runtime.seed, divided=divided)
    counts = _counts(model)
    forward = model.forward
    engine_of: list[LoopEngine] = []
    occupy(
        model, stage,
        call=lambda *args, **kwargs: engine_of[0].call(forward, args, kwargs), state=lambda: engine_of[0].state(),
        count=counts,
    )  # fmt: skip
    engine = LoopEngine(
        args=given.get("args"), model=model, optimizer=optimizer, model_parameters=local,
        lr_scheduler=given.get("lr_scheduler"), mpu=mpu, collate_fn=given.get("collate_fn"), config=complete,
        config_class=DeepSpeedConfig(complete, mpu), dont_change_device=True,
    )  # fmt: skip
    engine_of.append(engine)
    keep_dtype(model, DTYPES[plan.precision])
    engine.follow(prepared, loop, request.micro, config)
    if given.get("training_data") is not None:
        engine.training_dataloader = engine.deepspeed_io(given["training_data"])
    return engine


def _lowered(plan: Plan, captured: Captured, skeleton: Skeleton, model: nn.Module, given: Mapping[str, Any]) -> Lowered:
    """The plan lowered for the model at its own micro-batch."""
    samples = plan.stages[0].samples // plan.stages[0].dp
    if samples != captured.graph.samples:
        captured = _capture(skeleton, model, samples, Key(seq=captured.graph.seq), given)
    return Lowered(captured, lower(captured.graph, plan))


def _config(plan: Plan, request: Request, config: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration for this rank: the user's with the plan's decisions, a call in the place of a batch."""
    user = {name: value for name, value in config.items() if name not in (KEY, *BATCH)}
    if request.zero is None:
        # The plan asks for ZeRO, not the user: DeepSpeed would refuse an optimizer that it hasn't tried with it.
        user.setdefault("zero_allow_untested_optimizer", True)
    return deepspeed_config(plan, user, calls=request.accumulation)


def _counts(model: nn.Module) -> dict[tuple[bool, bool], int]:
    """What a transformers model's num_parameters says, by (only_trainable, exclude_embeddings)."""
    count = getattr(model, "num_parameters", None)
    if not callable(count):
        return {}
    return {(trained, inner): int(count(trained, inner)) for trained in (False, True) for inner in (False, True)}
