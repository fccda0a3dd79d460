"""Training goes on under another plan as if it had never stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks.pool import Pool
from tests.reshard.resuming import broken, fails, resume, train_and_save
from tests.runtime.engines import Case
from tests.runtime.programs import Layout

pytestmark = pytest.mark.slow

# Global batches are the same: copies times micro-batches.
LAYOUTS = {
    "one": Layout(micro_batches=4),
    "tp4": Layout(tp=4, micro_batches=4),
    "pp2 tp2": Layout(pp=2, tp=2, micro_batches=4),
    "tp2 dp2 zero1": Layout(tp=2, dp=2, zero=1),
    "pp2 dp2 zero3 zero1": Layout(pp=2, dp=2, zero=(3, 1), zeros=((1, 0),)),
    "dp4 zero3": Layout(dp=4, zero=3, micro_batches=1),
}
PAIRS = [
    ("gpt2 dropout", "torch", "pp2 tp2", "pp2 tp2"),
    ("gpt2", "torch", "dp4 zero3", "one"),
    ("llama", "torch", "pp2 tp2", "dp4 zero3"),
    ("gpt2", "torch", "pp2 dp2 zero3 zero1", "tp2 dp2 zero1"),
    ("gpt2", "torch", "dp4 zero3", "pp2 dp2 zero3 zero1"),
    ("gpt2", "megatron", "tp4", "pp2 tp2"),
    ("gpt2", "megatron", "tp2 dp2 zero1", "tp4"),
]


@pytest.mark.parametrize(("model", "engine", "saved", "loaded"), PAIRS, ids=[" ".join(pair) for pair in PAIRS])
def test_losses_continue(pool: Pool, tmp_path: Path, model: str, engine: str, saved: str, loaded: str) -> None:
    case = Case(model, LAYOUTS[saved], engine=engine)
    folder = str(tmp_path / "checkpoint")
    # What a run that was killed has left.
    (tmp_path / ".checkpoint.partial").mkdir()
    (tmp_path / ".checkpoint.partial" / "__7_0.distcp").write_text("half")
    wanted = pool.run(train_and_save, case.layout.devices, case, folder, timeout=120)[0]
    again = replace(case, layout=LAYOUTS[loaded])
    for losses, state in pool.run(resume, again.layout.devices, again, folder, timeout=120):
        assert losses == (wanted if saved == loaded else pytest.approx(wanted, abs=1e-5))
        assert state == {"mine": [1, "two"]}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_save_that_fails_leaves_what_was_saved_before(pool: Pool, tmp_path: Path, rank: int) -> None:
    folder = tmp_path / "checkpoint"
    (tmp_path / "checkpoint.mine").mkdir()
    (tmp_path / "checkpoint.mine" / "notes.txt").write_text("mine")
    case = Case("gpt2", Layout(tp=2))
    results = pool.run(fails, 2, case, str(folder), rank, timeout=120)
    for losses, (again, new, mine, state) in results:
        for said, name in ((again, folder), (new, f"{folder}.new")):
            assert said == f"InputError: rank {rank}: {name}/__{rank}_0.distcp: can't be written: File too large"
        assert mine == f"InputError: rank 0: {folder}.mine: exists and is no checkpoint; save under another name"
        assert "a checkpoint's state is plain values and tensors; this one can't be saved" in state
        assert losses[:2] == losses[2:4]
        assert losses[4] == losses[5]
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "checkpoint.mine"}
    assert [path.name for path in (tmp_path / "checkpoint.mine").iterdir()] == ["notes.txt"]


def test_what_is_broken_changes_nothing(pool: Pool, tmp_path: Path) -> None:
    case, whole = Case("gpt2", Layout(tp=2)), tmp_path / "whole"
    wanted = pool.run(train_and_save, 2, case, str(whole), timeout=120)[0]
    pool.run(train_and_save, 2, replace(case, model="llama"), str(tmp_path / "llama"), timeout=120)
    for name in ("lacks", "cut"):
        shutil.copytree(whole, tmp_path / name)
    (tmp_path / "lacks" / "__1_0.distcp").unlink()
    content = (whole / "__1_0.distcp").read_bytes()
    (tmp_path / "cut" / "__1_0.distcp").write_bytes(content[: len(content) // 2])
    folders = [str(tmp_path / name) for name in ("lacks", "cut", "llama", "nowhere")]
    for words, fresh, alone in pool.run(broken, 2, case, folders, str(whole), timeout=120):
        lacks, cut, other, nowhere = words
        assert lacks == (
            f"InputError: {tmp_path}/lacks/__1_0.distcp: no such file, and the checkpoint's .metadata names it"
        )
        assert cut.startswith(
            f"InputError: {tmp_path}/cut/__1_0.distcp: is truncated: it has {len(content) // 2} bytes"
        )
        assert "llama: is a checkpoint of another model: it lacks" in other
        assert nowhere.startswith(f"InputError: {tmp_path}/nowhere/.metadata: no such file")
        # The parameters alone: the first loss is that of the run, which is not that of other weights.
        assert alone[0] == pytest.approx(wanted[0], abs=1e-6)
        assert abs(fresh[0] - wanted[0]) > 1e-3
