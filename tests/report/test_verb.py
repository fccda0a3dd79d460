"""``partita simulate --report``: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.planner.words import gib
from tests.report.pages import Step, parsed


@pytest.mark.parametrize("name", ["step.html", "STEP.HTM"])
def test_the_report_is_written_beside_the_answer(
    two: Step, two_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file, trace = tmp_path / name, tmp_path / "trace.json"
    assert main(["simulate", str(two_file), "--report", str(file), "--trace", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert (err, out.splitlines()[-2:]) == ("", [f"written: {trace}", f"written: {file}"])
    text = file.read_text(encoding="utf-8")
    assert text == two.text
    assert main(["simulate", str(two_file), "--json", "--report", str(file)]) == 0
    peaks = json.loads(capsys.readouterr().out)["peak_bytes"]
    words = "".join(parsed(text).itertext())
    assert all(f"peak {gib(size)} at " in words for size in peaks.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "step.pdf",
            '--report {folder}/step.pdf: no plugin writes a report with the suffix ".pdf"; {folder}/step.html works',
        ),
        ("step", "--report {folder}/step: no plugin writes a report without a suffix; {folder}/step.html works"),
        ("none/step.html", "{folder}/none/step.html: can't be written: "),
    ],
)
def test_other_files_are_refused(
    two_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert main(["simulate", str(two_file), "--report", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message.format(folder=tmp_path) in err
    assert list(tmp_path.iterdir()) == []
