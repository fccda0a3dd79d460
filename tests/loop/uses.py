"""Engines of modules that aren't transformers', their data, what they save and what they load: run by ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.loop.models import batches, build
from tests.loop.play import PLANS, QUIET, Case, initialize, sgd


class Net(nn.Module):
    """Three layers and a loss; called with two tensors in order, and maybe a weight for the second half of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.register_buffer("shift", torch.full((6,), 0.25))

    def forward(self, x: Tensor, target: Tensor, sharpness: float = 1.0) -> Tensor:
        hidden = torch.relu(self.middle(torch.relu(self.first(x + self.shift))))
        return nn.functional.cross_entropy(self.last(hidden) * sharpness, target)


class WithExample(Net):
    """Says what it is called with."""

    def example_inputs(self, samples: int) -> dict[str, Tensor]:
        return {"x": torch.zeros(samples, 6), "target": torch.zeros(samples, dtype=torch.long)}


def net(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def data(samples: int = 16) -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(samples, 6, generator=made), torch.randint(3, (samples,), generator=made))


def plain_module(plan: str, kind: str) -> tuple[list[float], list[float], dict[str, float]]:
    """Losses of a module that is given with a data set or an example, called by position, with another plain value in
    the second step; those of one process, and how far weights are apart at the end. Each rank begins with weights of
    its own, of which rank 0's win."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    classes: dict[str, type[nn.Module]] = {"training_data": Net, "example_inputs": WithExample}
    model, alone = net(classes[kind], seed=rank), net(classes[kind]).double()
    given: dict[str, Any] = {"training_data": data()} if kind == "training_data" else {}
    engine = initialize(model, Case("", plan), optimizer=sgd(model), **given)
    x, target = data().tensors
    losses, wanted = [], []
    optimizer = sgd(alone)
    for sharpness in (1.0, 2.0, 1.0):
        rows = slice(4 * rank, 4 * rank + 4)
        loss = engine(x[rows], target[rows], sharpness)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
        everyone = slice(0, 4 * ranks)
        loss = alone(x[everyone].double(), target[everyone], sharpness)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted.append(float(loss))
    found = engine.module.state_dict()
    far = (
        {}
        if rank
        else {name: float((found[name].double() - value).norm()) for name, value in alone.state_dict().items()}
    )
    return losses, wanted, far


def loader(plan: str) -> list[list[int]]:
    """Which samples of a data set DeepSpeed's loader gives this rank, batch by batch."""
    model = net(WithExample)
    engine = initialize(model, Case("", plan), optimizer=sgd(model))
    rows = data().tensors[0]
    # A rank of the tests can't have processes of its own.
    made = engine.deepspeed_io(data(), num_local_io_workers=0)
    return [[int((rows == row).all(dim=1).nonzero()) for row in x] for x, _ in made]


def resumed(case: Case, folder: str) -> tuple[list[float], list[float], float]:
    """Losses of the third and fourth step: of a run that saved before them, and of a fresh engine that loaded what it
    saved; and the third's before it loaded. The model drops out, the schedule and momentum go on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def fresh(seed: int) -> tuple[Any, Any]:
        model = build(case.model)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.2
        if seed:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01)
        optimizer = sgd(model)
        return initialize(model, case, optimizer=optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def steps(engine: Any, schedule: Any, numbers: tuple[int, ...]) -> list[float]:
        losses = []
        for number in numbers:
            loss = engine(**batches(engine.module, number, [4] * ranks)[rank]).loss
            engine.backward(loss)
            engine.step()
            schedule.step()
            losses.append(float(loss))
        return losses

    engine, schedule = fresh(0)
    steps(engine, schedule, (0, 1))
    engine.save_checkpoint(folder, tag="half", client_state={"schedule": schedule.state_dict()})
    whole = steps(engine, schedule, (2, 3))
    engine, schedule = fresh(1)
    unloaded = float(engine(**batches(engine.module, 2, [4] * ranks)[rank]).loss)
    _, client = engine.load_checkpoint(folder, tag="half")
    schedule.load_state_dict(client["schedule"])
    for group, rate in zip(engine.optimizer.param_groups, schedule.get_last_lr(), strict=True):
        group["lr"] = rate
    return whole, steps(engine, schedule, (2, 3)), unloaded


def built_divided() -> tuple[list[float], list[float]]:
    """Losses of a model that was built while ZeRO-3 divides what is built, and of one process."""
    import deepspeed

    from tests.runtime.engines import forget_earlier_engines

    rank, ranks = dist.get_rank(), dist.get_world_size()
    forget_earlier_engines()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = {**QUIET, **PLANS["zero3"][1]}
    with deepspeed.zero.Init(config_dict_or_path={name: value for name, value in config.items() if name != "partita"}):
        model = net(WithExample)
    assert {parameter.numel() for parameter in model.parameters()} == {0}
    alone = net(WithExample).double()
    engine = deepspeed.initialize(model=model, optimizer=sgd(model), config=config)[0]
    optimizer = sgd(alone)
    x, target = data().tensors
    losses, wanted = [], []
    for _ in range(3):
        rows = slice(4 * rank, 4 * rank + 4)
        loss = engine(x=x[rows], target=target[rows])
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
        loss = alone(x[: 4 * ranks].double(), target[: 4 * ranks])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted.append(float(loss))
    return losses, wanted


def saved(plan: str, folder: str) -> None:
    """Three ways to write the dense model, without a step: it is what it was."""
    model = build("gpt2")
    engine = initialize(model, Case("", plan), optimizer=sgd(model))
    engine.save_model(f"{folder}/dense")
    engine.save_16bit_model(f"{folder}/one", "pytorch_model.bin")
    state = engine.module.state_dict()
    if dist.get_rank() == 0:
        engine.module.save_pretrained(f"{folder}/pretrained", state_dict=state)


def names_and_bits(folder: str) -> dict[str, list[str]]:
    """By way of writing, what differs from the model as it was built."""
    from safetensors.torch import load_file
    from transformers import GPT2LMHeadModel

    wanted = copy.deepcopy(build("gpt2").state_dict())
    dense = {
        name: value for file in Path(folder, "dense").glob("*.safetensors") for name, value in load_file(file).items()
    }
    found = {
        "dense": dense,
        "one": torch.load(Path(folder, "one", "pytorch_model.bin")),
        "pretrained": GPT2LMHeadModel.from_pretrained(Path(folder, "pretrained")).state_dict(),
    }
    # Tied: safetensors have it once, under the embedding's name.
    wanted_of = {"dense": {name: value for name, value in wanted.items() if name != "lm_head.weight"}}
    return {
        way: [name for name in {**wanted_of.get(way, wanted), **state}
              if name not in state or not torch.equal(state[name], wanted[name])]
        for way, state in found.items()
    }  # fmt: skip
