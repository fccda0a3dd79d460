"""Checkpoints are saved whole or not at all, and loaded whole or not at all: all ranks say the same, and none waits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.failures import saving
from tests.ranks.pool import Pool

pytestmark = pytest.mark.slow

FILES = {
    ("pp2", 0): "mp_rank_00_model_states.pt",
    ("pp2", 1): "mp_rank_01_model_states.pt",
    ("dp2 zero1", 0): "mp_rank_00_model_states.pt",
    ("dp2 zero1", 1): "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    ("dp2 zero3", 1): "zero_pp_rank_1_mp_rank_00_model_states.pt",
}


@pytest.mark.parametrize(("plan", "rank"), FILES)
@pytest.mark.parametrize("write", ["checkpoint", "checkpoint of the same name"])
def test_a_disk_that_is_full_leaves_the_last_checkpoint(
    pool: Pool, tmp_path: Path, plan: str, rank: int, write: str
) -> None:
    tag = "global_step4" if write == "checkpoint" else "global_step2"
    results = pool.run(saving.failing_write, 2, plan, write, rank, str(tmp_path), timeout=120)
    file = tmp_path / tag / FILES[plan, rank]
    for losses, said in results:
        assert said == [f"InputError: rank {rank}: {file}: can't be written: File too large"]
        whole, again = losses[:4], losses[4:]
        assert again == whole
    assert (tmp_path / "latest").read_text() == "global_step2"
    # Nor is there anything that could be taken for a checkpoint.
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["global_step2"]


DENSE = [
    ("pp2", "model", 1, "model-00002-of-00002.safetensors"), ("dp2 zero3", "model", 0, "model.safetensors"),
    ("pp2", "dense state", 0, "pytorch_model.bin"), ("dp2 zero3", "dense state", 0, "pytorch_model.bin"),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "write", "rank", "file"), DENSE)
def test_a_disk_that_is_full_leaves_no_broken_model(
    pool: Pool, tmp_path: Path, plan: str, write: str, rank: int, file: str
) -> None:
    for losses, said in pool.run(saving.failing_write, 2, plan, write, rank, str(tmp_path), timeout=120):
        assert said == [f"InputError: rank {rank}: {tmp_path}/dense/{file}: can't be written: File too large"]
        assert losses[4:] == losses[:4]
    left = {path.name for path in (tmp_path / "dense").iterdir()}
    assert left <= {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}


def test_a_folder_that_can_not_be_made(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for _, said in pool.run(saving.failing_write, 2, "pp2", "checkpoint into a file", 9, str(tmp_path), timeout=120):
        assert said == [f"InputError: rank 0: {tmp_path}/file/out: can't be written: Not a directory"]


def test_a_state_that_can_not_be_pickled(pool: Pool, tmp_path: Path) -> None:
    for _, said in pool.run(saving.failing_write, 2, "pp2", "a function in it", 9, str(tmp_path), timeout=120):
        assert said[0].startswith("InputError: rank 0: ")
        assert f"{tmp_path}/global_step4/mp_rank_00_model_states.pt: can't be written: " in said[0]
        assert "local object" in said[0]
    assert (tmp_path / "latest").read_text() == "global_step2"


@pytest.fixture(scope="module")
def saved(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each plan global_step1 and global_step2."""
    folders = {}
    for plan in ("pp2", "dp2 zero1"):
        folders[plan] = tmp_path_factory.mktemp("saved")
        (folders[plan] / "global_step2").mkdir()
        (folders[plan] / "global_step2" / "mine").write_text("the user's own")
        # What a run that was killed in the middle of its save left.
        (folders[plan] / ".global_step1.partial").mkdir()
        (folders[plan] / ".global_step1.partial" / "mp_rank_07_model_states.pt").write_text("half of")
        saving_losses = pool.run(saving.save_twice, 2, plan, str(folders[plan]), timeout=120)
        assert saving_losses[0][0][1] == pool.run(saving.resumed, 2, plan, str(folders[plan]), "global_step1")[0][0][0]
    return folders


@pytest.mark.parametrize("plan", ["pp2", "dp2 zero1"])
def test_what_is_saved_and_what_is_left_alone(pool: Pool, saved: dict[str, Path], plan: str) -> None:
    files = [FILES[plan, 0], FILES[plan, 1]]
    if plan != "pp2":
        files.append("zero_pp_rank_0_mp_rank_00_optim_states.pt")
    folder = saved[plan]
    assert (folder / "latest").read_text() == "global_step2"
    assert sorted(path.name for path in (folder / "global_step1").iterdir()) == sorted(files)
    assert sorted(path.name for path in (folder / "global_step2").iterdir()) == sorted([*files, "mine"])
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["global_step1", "global_step2"]
    for tag, mine in (("global_step1", "0"), ("global_step2", "1")):
        for _, words in pool.run(saving.resumed, 2, plan, str(folder), tag):
            assert words == [tag, mine]


OTHERS = "other checkpoints there, to be loaded by their tag: global_step1"


@pytest.mark.parametrize(("plan", "rank"), [key for key in FILES if key[0] != "dp2 zero3"])
@pytest.mark.parametrize(("harm", "tag"), [("missing", None), ("half", "global_step2"), ("empty", None)])
def test_a_broken_checkpoint_is_not_loaded(
    pool: Pool, saved: dict[str, Path], tmp_path: Path, plan: str, rank: int, harm: str, tag: str | None
) -> None:
    folder = shutil.copytree(saved[plan], tmp_path / "copy")
    file = folder / "global_step2" / FILES[plan, rank]
    whole = file.read_bytes()
    file.write_bytes({"missing": b"", "half": whole[: len(whole) // 2], "empty": b""}[harm])
    if harm == "missing":
        file.unlink()
        why = f"{file}: no such file; {OTHERS}"
    else:
        size = file.stat().st_size
        why = f"{file}: can't be read, it is truncated or broken ({size} bytes); {OTHERS}"
    # Where copies share a file, all of them miss it.
    where = "" if (plan, rank) == ("dp2 zero1", 0) else f"rank {rank}: "
    for losses, said in pool.run(saving.broken_load, 2, plan, str(folder), tag, timeout=120):
        assert said == [f"InputError: {where}{why}"]
        # The engine is as it was.
        assert losses[:2] == losses[2:]


@pytest.mark.parametrize(
    ("latest", "says"),
    [("", "{folder}/latest: is empty"), ("global_step9", "{folder}/global_step9: there is no such checkpoint")],
)
def test_a_latest_that_names_nothing(
    pool: Pool, saved: dict[str, Path], tmp_path: Path, latest: str, says: str
) -> None:
    folder = shutil.copytree(saved["pp2"], tmp_path / "copy")
    (folder / "latest").write_text(latest)
    for _, said in pool.run(saving.broken_load, 2, "pp2", str(folder), None):
        assert said == [f"InputError: {says.format(folder=folder)}; {OTHERS}, global_step2"]


def test_another_plans_checkpoint(pool: Pool, saved: dict[str, Path]) -> None:
    for _, said in pool.run(saving.broken_load, 2, "dp2 zero0", str(saved["pp2"]), None, timeout=120):
        assert said == [
            f"InputError: {saved['pp2']}/global_step2: was saved by a plan that lays a copy of the model on 2 devices, "
            "this one on 1; hold the plan (fix pp and tp), or load the dense weights before deepspeed.initialize"
        ]


def test_ranks_save_one_checkpoint(pool: Pool, tmp_path: Path) -> None:
    for _, said in pool.run(saving.differing_tags, 2, "pp2", str(tmp_path)):
        assert said == [
            'InputError: save_checkpoint was given different tags: "of rank 0" on rank 0, "of rank 1" on rank 1; all '
            "ranks save one checkpoint"
        ]
    assert list(tmp_path.iterdir()) == []
