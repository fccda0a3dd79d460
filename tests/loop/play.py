"""One case on a rank: the loop with an engine and, on rank 0, in one process of plain torch; how far apart they are."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.loop.loops import LOOPS
from tests.loop.models import build
from tests.loop.sides import One, Ranks

# What a plan is asked for by, on how many ranks.
PLANS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "dp2": (2, {"partita": {"pipeline": "off", "tensor_parallel": "off", "fix": {"zero": 0}}}),
    "zero1": (2, {"zero_optimization": {"stage": 1}, "partita": {"pipeline": "off", "tensor_parallel": "off"}}),
    "zero2": (2, {"zero_optimization": {"stage": 2}, "partita": {}}),
    "zero3": (2, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "partita": {}}),
    "pp2": (2, {"partita": {"fix": {"pp": 2, "micro_batches": 4, "zero": 0}}}),
    "tp2": (2, {"partita": {"fix": {"pp": 1, "tp": 2, "zero": 0}}}),
    "pp2 dp2": (4, {"partita": {"fix": {"pp": 2, "dp": 2, "zero": 0}}}),
    "pp2 dp2 zero1": (4, {"zero_optimization": {"stage": 1}, "partita": {"fix": {"pp": 2, "dp": 2}}}),
    "pp2 tp2": (4, {"partita": {"fix": {"pp": 2, "tp": 2, "zero": 0}}}),
}
# DeepSpeed clips to a norm of 1 where nothing is said.
QUIET = {"zero_allow_untested_optimizer": True, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0}


@dataclass(frozen=True)
class Case:
    """``config`` is more of the JSON; ``plan`` is one of ``PLANS``, or empty where ``config`` has the key.

    ``setting`` names how the model, optimizer and schedule are given.
    """

    loop: str
    plan: str
    model: str = "gpt2"
    setting: str = "sgd"
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return PLANS[self.plan][0]


@dataclass(frozen=True)
class Outcome:
    """A rank's numbers and, on rank 0, those of one process; weights too, as they were and as they are. ``ran`` is the
    plan: pp, tp, dp, ZeRO stage, recomputation."""

    ran: tuple[int, int, int, int, str]
    numbers: dict[str, list[Tensor]]
    wanted: dict[str, list[Tensor]]
    weights: dict[str, Tensor]
    wanted_weights: dict[str, Tensor]
    before: dict[str, Tensor]


@dataclass(frozen=True)
class Setting:
    """How a model is made ready, and what deepspeed.initialize and the one process are given.

    ``given(model)`` returns its arguments and the schedule that the loop steps; ``one(model)`` optimizer and schedule.
    """

    given: Callable[[nn.Module], tuple[dict[str, Any], Any]]
    one: Callable[[nn.Module], tuple[torch.optim.Optimizer, Any]]
    config: Mapping[str, Any] = field(default_factory=dict)
    ready: Callable[[nn.Module], None] = lambda model: None
    alone: Callable[[nn.Module], None] = lambda model: None


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def by_name(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """Three groups, of which the first is in one stage alone; a schedule made before the engine."""
    named = list(model.named_parameters())
    first = [p for n, p in named if "wpe" in n]
    decay = [p for n, p in named if p.dim() > 1 and "wpe" not in n]
    rest = [p for n, p in named if p.dim() <= 1]
    optimizer = torch.optim.SGD(
        [{"params": first, "lr": 0.02}, {"params": decay, "weight_decay": 0.1}, {"params": rest, "lr": 0.2}],
        lr=0.1, momentum=0.9,
    )  # fmt: skip
    return optimizer, torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda s: 1 / (1 + s), lambda s: 0.5**s, lambda s: 1.0]
    )


def freeze(model: nn.Module) -> None:
    model.transformer.wte.requires_grad_(False)
    model.transformer.h[1].attn.requires_grad_(False)


JSON = {
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {
        "warmup_min_lr": 0.001, "warmup_max_lr": 0.02, "warmup_num_steps": 4, "warmup_type": "linear"}},
}  # fmt: skip


def adam_by_json(model: nn.Module, groups: bool = False) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of ``JSON``, and its schedule."""
    from deepspeed.runtime.lr_schedules import WarmupLR

    given: Any = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(two_groups(model) if groups else given, lr=0.01, weight_decay=0.1, eps=1e-4)
    return optimizer, WarmupLR(optimizer, **JSON["scheduler"]["params"])


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.2},
        {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]


def with_schedule(model: nn.Module) -> tuple[dict[str, Any], Any]:
    optimizer, schedule = by_name(model)
    return {"optimizer": optimizer}, schedule


SETTINGS = {
    "sgd": Setting(lambda model: ({"optimizer": sgd(model)}, None), lambda model: (sgd(model), None)),
    "groups": Setting(with_schedule, by_name, {"gradient_clipping": 0.3}),
    "frozen": Setting(lambda model: ({"optimizer": sgd(model)}, None), lambda model: (sgd(model), None), ready=freeze),
    "generator": Setting(lambda model: ({"model_parameters": model.parameters()}, None), adam_by_json, JSON),
    "json groups": Setting(
        lambda model: ({"model_parameters": two_groups(model)}, None), lambda model: adam_by_json(model, True), JSON
    ),
    "recomputed": Setting(
        lambda model: ({"optimizer": sgd(model)}, None), lambda model: (sgd(model), None),
        ready=lambda model: model.gradient_checkpointing_enable(),
        alone=lambda model: model.gradient_checkpointing_disable(),
    ),
}  # fmt: skip


def initialize(model: nn.Module, case: Case, **given: Any) -> Any:
    """The user's call, with the key in the configuration."""
    import deepspeed

    from tests.runtime.engines import forget_earlier_engines

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    forget_earlier_engines()
    config = {**QUIET, **SETTINGS[case.setting].config, **(PLANS[case.plan][1] if case.plan else {}), **case.config}
    return deepspeed.initialize(model=model, config=config, **given)[0]


def play(case: Case) -> Outcome:
    rank, ranks, setting = dist.get_rank(), dist.get_world_size(), SETTINGS[case.setting]
    model = build(case.model)
    setting.ready(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given, schedule = setting.given(model)
    engine = initialize(model, case, **given)
    numbers = run(case, Ranks(engine, rank, ranks, schedule))
    weights = {name: value.clone() for name, value in engine.module.state_dict().items()}
    stages = engine.plan.stages
    strategy = stages[0].strategies[0]
    ran = (len(stages), stages[0].tp, stages[0].dp, strategy.zero, strategy.recompute)
    engine.destroy()
    if rank:
        return Outcome(ran, numbers, {}, {}, {}, {})
    wanted, wanted_weights = alone(case, ranks)
    return Outcome(ran, numbers, wanted, weights, wanted_weights, before)


def alone(case: Case, ranks: int) -> tuple[dict[str, list[Tensor]], dict[str, Tensor]]:
    """What one process computes in float64."""
    setting = SETTINGS[case.setting]
    model = build(case.model).double()
    setting.ready(model)
    setting.alone(model)
    optimizer, schedule = setting.one(model)
    config = {**setting.config, **case.config}
    one = One(
        model, optimizer, ranks, config.get("gradient_accumulation_steps", 1), config.get("gradient_clipping"), schedule
    )
    return run(case, one), copy.deepcopy(model.state_dict())


def run(case: Case, side: Any) -> dict[str, list[Tensor]]:
    found = {}
    for name, value in LOOPS[case.loop](side):
        values = value if isinstance(value, list) else [value]
        found[name] = [one.detach().clone() for one in values]
    return found
