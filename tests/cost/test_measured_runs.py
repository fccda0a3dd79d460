"""Steps that others measured on many devices, with figures that the benchmarks fitted on a fifth of the rows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import fsdp_rows
import vtrain_rows


@pytest.mark.parametrize(
    ("kind", "figures", "rows", "mean"),
    [
        pytest.param("a100", fsdp_rows.Figures(product=0.7606, attention=0.2521), 69, 0.075, marks=pytest.mark.slow),
        ("h100", fsdp_rows.Figures(product=0.653, attention=0.1623), 35, 0.09),
    ],
)
def test_mpt_under_fsdp(kind, figures, rows, mean):
    some = [row for row in fsdp_rows.mpt_rows()[0] if row.device.startswith(kind)]
    assert len(some) == rows
    for row in some:
        graph = fsdp_rows.model(row.model, row.seq).problem.graph
        assert sum(graph.tensor[name].elements for b in graph.blocks for name in b.parameters) == row.parameters
    assert np.abs(fsdp_rows.errors(some, figures)).mean() < mean


def test_llama_is_predicted_by_what_mpt_showed():
    """Compiled runs: full checkpointing as it is, selective between none and full."""
    figures = fsdp_rows.Figures(product=0.653, attention=0.1623)
    compiled = [row for row in fsdp_rows.titan_rows()[0] if "compiled" in row.words]
    assert len(compiled) == 4
    for row in compiled:
        none, full = (fsdp_rows.predicted(row, figures, again) for again in (False, True))
        if row.again == "full":
            assert full == pytest.approx(row.seconds, rel=0.1)
        else:
            assert none < row.seconds < full


def test_tensor_parallelism_over_two_nodes_has_all_ports():
    """Megatron's tp = 16 on nodes of eight: a ring over one device's port would take 1.8 times what was measured."""
    figures = vtrain_rows.Figures(product=0.9, half_gflop=34, attention=0.05, memory=1.0, op_microseconds=89, near=0.8,
                                  far=0.75)  # fmt: skip
    rows = [row for row in vtrain_rows.read(vtrain_rows.DATA / "multi_even.csv") if row.tp == 16]
    assert len(rows) == 2
    assert np.abs(vtrain_rows.errors(rows, figures)).max() < 0.3
