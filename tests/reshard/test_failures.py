"""What goes wrong: each has one message and exit status 2, leaves the source as it was and no half output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from partita.adapters.checkpoint import write_safetensors
from partita.adapters.checkpoint.reshard import identity_of, unfinished, write_outputs
from partita.adapters.checkpoint.sources import read_checkpoint
from partita.adapters.checkpoint.write_safetensors import dense_outputs
from partita.cli.main import main
from partita.errors import InputError
from tests.failures.saving import full
from tests.reshard.made import digests, zero1

OPTIMIZER = "global_step5/zero_pp_rank_1_mp_rank_00_optim_states.pt"
MODULE = "global_step5/mp_rank_00_model_states.pt"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def another_s(path: Path) -> None:
    torch.save({"something": "else"}, path)


TRUNCATED = ": can't be read: it is truncated or broken, or torch.save didn't write it ({size:,} bytes)"
Break = Callable[[Path], object]
SOURCES: dict[str, tuple[str, Break, str]] = {
    "a missing rank's file": (
        OPTIMIZER, Path.unlink,
        "{at}/global_step5: the file of rank 0, copy 1 is missing (zero_pp_rank_1_mp_rank_00_optim_states.pt); 2 "
        "copies saved it",
    ),
    "a truncated file": (
        OPTIMIZER, cut_off,
        "{at}/" + OPTIMIZER + TRUNCATED,
    ),
    "a truncated file of the module": (
        MODULE, cut_off,
        "{at}/" + MODULE + TRUNCATED,
    ),
    "another's file": (
        MODULE, another_s,
        "{at}/" + MODULE + ": isn't DeepSpeed's: it has no module, mp_world_size and dp_world_size",
    ),
    "latest names nothing": (
        "latest", lambda path: path.write_text("global_step9"),
        '{at}/latest: names "global_step9", and there is no such checkpoint',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_lacks_something(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    file, broken, words = SOURCES[name]
    saved = zero1(tmp_path / "saved")
    broken(saved / file)
    before = digests(tmp_path)
    assert main(["reshard", str(saved), "--to", "safetensors", "-o", str(tmp_path / "out")]) == 2
    size = (saved / file).stat().st_size if (saved / file).exists() else 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"partita: {words.format(at=saved, size=size)}\n")
    assert digests(tmp_path) == before


def test_what_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path, words in ((tmp_path, "is no checkpoint of a known form (it has notes.txt); known are"),
                        (tmp_path / "none", "no such file or folder")):  # fmt: skip
        assert main(["reshard", str(path), "--to", "safetensors", "-o", f"{tmp_path} out"]) == 2
        assert f"partita: {path}: {words}" in capsys.readouterr().err


def test_a_pipeline_module_s_own_files_are_refused(tmp_path: Path) -> None:
    zero1(tmp_path / "saved")
    (tmp_path / "saved/global_step5/layer_00-model_states.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"layer_00-model_states.pt: is a layer of a PipelineModule"):
        read_checkpoint(tmp_path / "saved")


def test_outputs_that_would_be_lost_or_lie_in_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = zero1(tmp_path / "saved")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("kept")
    before = digests(tmp_path)
    for out, words in ((tmp_path / "mine", "exists already; nothing of it is replaced: remove it, or give another -o"),
                       (saved / "new", f"lies in the checkpoint that is read ({saved}); give an -o outside of it"),
                       (tmp_path / "mine/file/out",
                        f"can't be made: {tmp_path}/mine/file/.out.reshard: Not a directory")):  # fmt: skip
        assert main(["reshard", str(saved), "--to", "safetensors", "-o", str(out)]) == 2
        assert capsys.readouterr().err == f"partita: {out}: {words}\n"
    assert digests(tmp_path) == before


def link_to_itself(folder: Path) -> None:
    (folder / "circle").symlink_to("circle")


def a_file_where_it_is_made(folder: Path) -> None:
    (folder / ".out.reshard").write_text("mine")


def module_is_a_dangling_link(folder: Path) -> None:
    (folder / "saved" / MODULE).unlink()
    (folder / "saved" / MODULE).symlink_to("nowhere")


def moved_to_where_it_is_made(folder: Path) -> None:
    (folder / "saved").rename(folder / ".out.reshard")


EXISTS = "exists already; nothing of it is replaced: remove it, or give another -o"
ODD_PATHS: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "no checkpoint but links in a circle": (link_to_itself, "circle", "out", "circle: no such file or folder"),
    "a checkpoint's name that is too long": (str, "n" * 300, "out", "n" * 300 + ": no such file or folder"),
    "an output's name that is too long": (
        str, "saved", "n" * 300, "n" * 300 + ": can't be made: ." + "n" * 300 + ".reshard: File name too long",
    ),
    "an output that is links in a circle": (link_to_itself, "saved", "circle", "circle: " + EXISTS),
    "an output in links in a circle": (
        link_to_itself, "saved", "circle/out",
        "circle/out: can't be made: circle/.out.reshard: Too many levels of symbolic links",
    ),
    "an output that exists by way of what doesn't": (str, "saved", "new/..", "new/..: " + EXISTS),
    "an output without a name": (str, "saved", "", ".: " + EXISTS),
    "a file where the output is made": (
        a_file_where_it_is_made, "saved", "out", "out: can't be made: .out.reshard: File exists",
    ),
    "a checkpoint where the output is made": (
        moved_to_where_it_is_made, ".out.reshard", "out",
        "out: is made in {at}/.out.reshard, where the checkpoint that is read lies; give another -o",
    ),
    "a file that is a dangling link": (
        module_is_a_dangling_link, "saved", "out", f"saved/{MODULE}: can't be read: No such file or directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_PATHS)
def test_paths_that_are_odd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    prepare, checkpoint, out, words = ODD_PATHS[name]
    monkeypatch.chdir(tmp_path)
    zero1(tmp_path / "saved")
    prepare(tmp_path)
    before, names = digests(tmp_path), sorted(tmp_path.rglob("*"))
    assert main(["reshard", checkpoint, "--to", "safetensors", "-o", out]) == 2
    assert capsys.readouterr() == ("", f"partita: {words.format(at=tmp_path)}\n")
    assert (digests(tmp_path), sorted(tmp_path.rglob("*"))) == (before, names)


def test_a_plan_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reshard", str(zero1(tmp_path / "saved")), "--to", "safetensor", "-o", str(tmp_path / "out")]) == 2
    words = '--to "safetensor": no such file; safetensors, megatron and the file of a plan work'
    assert capsys.readouterr().err == f"partita: {words}\n"


def test_files_that_were_understood_in_another_way_are_another_s(tmp_path: Path) -> None:
    """The same files of the same size, and a piece that lies elsewhere: as another --from may say."""
    catalogue = read_checkpoint(zero1(tmp_path / "saved"))
    key, entry = next(iter(catalogue.tensors.items()))
    first, *others = entry.pieces
    moved = replace(first, stored=replace(first.stored, start_bytes=first.stored.start_bytes + 4))
    other = replace(catalogue, tensors={**catalogue.tensors, key: replace(entry, pieces=(moved, *others))})
    assert identity_of(catalogue, "safetensors") == identity_of(read_checkpoint(tmp_path / "saved"), "safetensors")
    assert len({identity_of(catalogue, "safetensors"), identity_of(other, "safetensors"),
                identity_of(catalogue, "megatron")}) == 3  # fmt: skip


def test_a_disk_that_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing stands under the final name; where there is room again the run goes on."""
    source, out = tmp_path / "source.safetensors", tmp_path / "out"
    save_file({"x": torch.arange(20000.0), "y": torch.arange(20.0)}, source)
    before = digests(tmp_path)
    with full(True):
        status = main(["reshard", str(source), "--to", "safetensors", "-o", str(out)])
    assert status == 2
    assert capsys.readouterr().err == f"partita: {out}/model.safetensors: can't be written: File too large\n"
    assert not out.exists()
    assert {name: digest for name, digest in digests(tmp_path).items() if ".out.reshard" not in name} == before
    assert main(["reshard", str(source), "--to", "safetensors", "-o", str(out)]) == 0
    assert sorted(os.listdir(out)) == ["model.safetensors"]
    assert sorted(os.listdir(tmp_path)) == ["out", "source.safetensors"]


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    catalogue = read_checkpoint(zero1(tmp_path / "saved"))
    (output,) = dense_outputs(catalogue)
    large = type(output)(output.name, output.write, 2**60)
    with pytest.raises(InputError, match=r"1,152,921,504,606,846,976 bytes are needed, [0-9,]+ are free there"):
        write_outputs([large], tmp_path / "out", "")


def dies_after(saved: str, out: str, files: int) -> None:
    """A run that is killed when it has finished some files."""
    write_safetensors.FILE_BYTES = 100
    catalogue = read_checkpoint(Path(saved))
    finished = []

    def progress(name: str) -> None:
        finished.append(name)
        if len(finished) == files:
            os.kill(os.getpid(), signal.SIGKILL)

    write_outputs(dense_outputs(catalogue), Path(out), "same", progress)


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what was finished, and no other: the same bytes in the end as without a stop."""
    monkeypatch.setattr(write_safetensors, "FILE_BYTES", 100)
    saved, out = zero1(tmp_path / "saved"), tmp_path / "out"
    before = digests(saved)
    code = f"from tests.reshard.test_failures import dies_after; dies_after({str(saved)!r}, {str(out)!r}, 2)"
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    finished = sorted(path.name for path in unfinished(out).glob("*.safetensors"))
    assert len(finished) == 2
    times = {name: (unfinished(out) / name).stat().st_mtime_ns for name in finished}
    # One of the two was damaged since, and what was being written is there under another name.
    cut_off(unfinished(out) / finished[1])
    (unfinished(out) / ".model-00003-of-00003.safetensors").write_bytes(b"half")
    (unfinished(out) / "..partita_reshard.json.abc").write_bytes(b"half")
    catalogue = read_checkpoint(saved)
    done = write_outputs(dense_outputs(catalogue), out, "same")
    assert done.kept == 1
    assert (out / finished[0]).stat().st_mtime_ns == times[finished[0]]
    write_outputs(dense_outputs(catalogue), tmp_path / "at once", "same")
    assert digests(out) == digests(tmp_path / "at once")
    assert digests(saved) == before
    assert not unfinished(out).exists()


def test_what_was_begun_for_another_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_safetensors, "FILE_BYTES", 100)
    catalogue, out = read_checkpoint(zero1(tmp_path / "saved")), tmp_path / "out"
    outputs = dense_outputs(catalogue)

    def fails(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"out/last: can't be written: No space left on device"):
        write_outputs([*outputs, type(outputs[0])("last", fails)], out, "one")
    note = json.loads((unfinished(out) / ".partita_reshard.json").read_text())
    assert sorted(note["files"]) == sorted(output.name for output in outputs)
    said: list[str] = []
    done = write_outputs(outputs, out, "another", said.append)
    assert done.kept == 0
    assert said[0] == f"removed what another reshard had begun in {unfinished(out)}"


def test_two_runs_for_one_output(tmp_path: Path) -> None:
    catalogue, out = read_checkpoint(zero1(tmp_path / "saved")), tmp_path / "out"
    outputs = dense_outputs(catalogue)

    def second(path: Path) -> None:
        with pytest.raises(InputError, match=r"out: another process is writing it"):
            write_outputs(outputs, out, "same")
        outputs[0].write(path)

    write_outputs([type(outputs[0])(outputs[0].name, second)], out, "same")
    assert sorted(os.listdir(out)) == ["model.safetensors"]
