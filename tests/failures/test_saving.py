"""Checkpoints are saved whole or not at all, and loaded whole or not at all: all ranks say the same, and none waits."""

from __future__ import annotations

import shutil
from itertools import product
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
# What the dense model's file is called that the rank writes, by how it is written.
DENSE = {
    ("pp2", 0): {"dense state": "pytorch_model.bin"},
    ("pp2", 1): {"model": "model-00002-of-00002.safetensors"},
    ("dp2 zero3", 0): {"model": "model.safetensors", "dense state": "pytorch_model.bin"},
}


@pytest.mark.parametrize(("plan", "rank"), dict.fromkeys([*FILES, *DENSE]))
def test_a_disk_that_is_full_leaves_the_last_checkpoint_and_no_broken_model(
    pool: Pool, tmp_path: Path, plan: str, rank: int
) -> None:
    files = {}
    if (plan, rank) in FILES:
        # A new one, and one of the name of that which is there.
        files = {"checkpoint": f"global_step4/{FILES[plan, rank]}",
                 "checkpoint of the same name": f"global_step2/{FILES[plan, rank]}"}  # fmt: skip
    files |= {write: f"dense/{file}" for write, file in DENSE.get((plan, rank), {}).items()}
    results = pool.run(saving.failing_writes, 2, plan, list(files), rank, str(tmp_path), timeout=120)
    for losses, said in results:
        assert said == [
            f"InputError: rank {rank}: {tmp_path}/{file}: can't be written: File too large" for file in files.values()
        ]
        whole, again = losses[:4], losses[4:]
        assert again == whole
    assert (tmp_path / "latest").read_text() == "global_step2"
    # Nor is there anything that could be taken for a checkpoint, or for a model.
    dense = tmp_path / "dense"
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"dense"} == {"global_step2"}
    left = {path.name for path in dense.iterdir()} if dense.exists() else set()
    assert left <= {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}


def test_a_folder_that_can_not_be_made_and_a_state_that_can_not_be_pickled(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    writes = ["checkpoint into a file", "a function in it"]
    for _, (folder, state) in pool.run(saving.failing_writes, 2, "pp2", writes, 9, str(tmp_path), timeout=120):
        assert folder == f"InputError: rank 0: {tmp_path}/file/out: can't be written: Not a directory"
        assert state.startswith("InputError: rank 0: ")
        assert f"{tmp_path}/global_step4/mp_rank_00_model_states.pt: can't be written: " in state
        assert "local object" in state
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


# How a file is broken, and by which tag the checkpoint is asked for.
HARMS = [("missing", None), ("half", "global_step2"), ("empty", None)]
LATEST = {
    "": "{folder}/latest: is empty",
    "global_step9": "{folder}/global_step9: there is no such checkpoint",
}


@pytest.mark.parametrize("plan", ["pp2", "dp2 zero1"])
def test_a_broken_checkpoint_is_not_loaded(pool: Pool, saved: dict[str, Path], tmp_path: Path, plan: str) -> None:
    """Each harm to the file of each rank, and names of checkpoints that there are none of."""
    asked, wanted = [], []
    for rank, (harm, tag) in product((0, 1), HARMS):
        folder = shutil.copytree(saved[plan], tmp_path / f"{rank} {harm}")
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
        asked.append((str(folder), tag))
        wanted.append(f"InputError: {where}{why}")
    for number, (latest, says) in enumerate(LATEST.items()):
        folder = shutil.copytree(saved[plan], tmp_path / f"latest {number}")
        (folder / "latest").write_text(latest)
        asked.append((str(folder), None))
        wanted.append(f"InputError: {says.format(folder=folder)}; {OTHERS}, global_step2")
    for losses, said in pool.run(saving.broken_loads, 2, plan, asked, timeout=120):
        assert said == wanted
        # The engine is as it was.
        assert losses[:2] == losses[2:]


def test_another_plans_checkpoint(pool: Pool, saved: dict[str, Path]) -> None:
    for _, said in pool.run(saving.broken_loads, 2, "dp2 zero0", [(str(saved["pp2"]), None)], timeout=120):
        assert said == [
            f"InputError: {saved['pp2']}/global_step2: was saved by a plan that lays a copy of the model on 2 devices, "
            "this one on 1; partita reshard writes it for this plan; or hold the plan (fix pp and tp)"
        ]


def test_ranks_save_one_checkpoint(pool: Pool, tmp_path: Path) -> None:
    for _, said in pool.run(saving.differing_tags, 2, "pp2", str(tmp_path)):
        assert said == [
            'InputError: save_checkpoint was given different tags: "of rank 0" on rank 0, "of rank 1" on rank 1; all '
            "ranks save one checkpoint"
        ]
    assert list(tmp_path.iterdir()) == []
