"""The sizes of Swin: those of the papers, the parameters that HuggingFace's model has, and that each can be planned."""

from __future__ import annotations

import json

import pytest
import torch

from partita.cli.main import main
from partita.errors import ModelError
from partita.plugins.capture_huggingface import capture_config
from partita.recipes.swin.sizes import SIZES, config

# Layers, width and heads of the first stage, side of an image and of a window; parameters. Swin-T's are those that its
# paper rounds to 29 M; SuperScaler calls its largest model one of 30 B.
PAPERS = {
    "swin-tiny": (4, 32, 2, 32, 4, 136_822),
    "swin-t": (12, 96, 3, 224, 7, 28_288_354),
    "swin-32l": (32, 512, 16, 1536, 48, 1_809_966_536),
    "swin-56l": (56, 1536, 32, 1536, 48, 27_033_621_928),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_the_papers_and_parameters_huggingfaces(name: str) -> None:
    from transformers import SwinConfig, SwinForImageClassification

    layers, width, heads, image, window, parameters = PAPERS[name]
    found = config(name)
    assert sum(found["depths"]) == layers
    assert (found["embed_dim"], found["num_heads"][0]) == (width, heads)
    assert (found["image_size"], found["window_size"]) == (image, window)
    settings = SwinConfig(**found)
    with torch.device("meta"):
        model = SwinForImageClassification(settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    graph = capture_config(found, name=name)
    assert sum(tensor.elements for tensor in graph.tensors if tensor.role == "parameter") == parameters


@pytest.mark.parametrize("name", ["swin-32l", "swin-56l"])
def test_large_ones_have_the_papers_depths(name: str) -> None:
    layers = PAPERS[name][0]
    assert config(name)["depths"] == [2, 2, layers - 6, 2]


def test_an_unknown_size_names_the_nearest() -> None:
    with pytest.raises(ModelError, match=r'no size "swin-54l" of Swin. Did you mean \'swin-56l\''):
        config("swin-54l")


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("swin-tiny", ["cpu", "--devices", "4", "--precision", "fp32"]),
        pytest.param("swin-t", ["8xa100-80gb"], marks=pytest.mark.slow),
        pytest.param("swin-32l", ["4x8xa100-80gb"], marks=pytest.mark.slow),
        pytest.param("swin-56l", ["4x8xa100-80gb"], marks=pytest.mark.slow),
    ],
)
def test_each_can_be_planned(name: str, cluster: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", name, "--cluster", *cluster, "--global-batch", "64", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"] == name
    assert plan["seq"] is None
    blocks = [block for stage in plan["stages"] for block in stage["blocks"]]
    # Embedding, head, every layer, and a merging of patches between the stages of the model.
    assert len(blocks) == 2 + sum(SIZES[name].depths) + len(SIZES[name].depths) - 1
    assert all(stage["samples"] * stage["micro_batches"] == 64 for stage in plan["stages"])


def test_the_largest_does_not_fit_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    """27 billion parameters in bf16 with their gradients and Adam's moments take 432 GB."""
    assert main(["plan", "swin-56l", "--cluster", "1xa100-80gb", "--global-batch", "8"]) == 1
    assert "GiB" in capsys.readouterr().err
