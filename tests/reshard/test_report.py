"""What reshard says of a checkpoint: padding along any dim, what the output has no place for; folders of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from partita.adapters.checkpoint.catalogue import PARAMETER, Catalogue, Entry
from partita.adapters.checkpoint.convert import Result
from partita.adapters.checkpoint.report import document, text
from partita.adapters.checkpoint.reshard import Done
from partita.cli.main import main
from tests.reshard.distributed import save
from tests.reshard.made import zero1


def test_padding_is_of_the_dim_that_has_it() -> None:
    """A head that is stored [in, out] is padded along its second dim."""
    catalogue = Catalogue(
        Path("saved"), "made", {("head", PARAMETER): Entry((32, 129), "float32", ())}, padded={"head": (1, 132)}
    )
    found = Result(catalogue, "the dense model", None, Path("out"), Done((), 0, 0), (), 0, 0)
    assert "  head: 129 long in dim 1, saved as 132: 3 are padding and no data" in text(found).splitlines()
    assert document(found)["source"]["padded"] == {"head": [129, 132]}


def test_what_is_of_no_known_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Averages of the weights beside the model."""
    saved = {"model": {"w": torch.ones(3)}, "averages": {"w": torch.ones(3)}, "seen": 12}
    save(saved, tmp_path / "saved")
    words = ["reshard", str(tmp_path / "saved"), "--to", "safetensors"]
    assert main([*words, "-o", str(tmp_path / "one")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  neither the model's nor the optimizer's: averages.w, seen" in lines
    assert "  not in it: averages.w, seen" in lines
    assert main([*words, "-o", str(tmp_path / "two"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"]["others"] == found["target"]["left_out"] == ["averages.w", "seen"]


def test_the_dense_model_has_no_place_for_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reshard", str(zero1(tmp_path / "saved")), "--to", "safetensors", "-o", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    left = ["exp_avg", "exp_avg_sq", "step", "steps", "samples", "lr_scheduler", "client"]
    assert (found["source"]["others"], found["target"]["left_out"]) == ([], left)


def test_what_a_training_is_saving_under_the_same_name_is_left_alone(tmp_path: Path) -> None:
    making = tmp_path / ".out.partial"
    making.mkdir()
    (making / "__0_0.distcp").write_text("half")
    assert main(["reshard", str(zero1(tmp_path / "saved")), "--to", "safetensors", "-o", str(tmp_path / "out")]) == 0
    assert (making / "__0_0.distcp").read_text() == "half"
