"""Imported by the server from which ranks are forked: what torch.export and the planner load at their first use.

Every rank would do it again, and so would every one that is started after a failure. None of it may start a thread.
"""

from __future__ import annotations

import numpy as np
import torch

from partita.planner.joint.floor import evenest
from partita.plugins.capture_torch import capture_module

capture_module(lambda: torch.nn.Linear(1, 1), {"input": torch.zeros(1, 1)}, name="warm")
evenest(np.ones(2), 1, 1)
