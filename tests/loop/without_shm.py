"""``without_shm.py SCRIPT …`` runs a script without the extension that DeepSpeed would compile for CPUs."""

from __future__ import annotations

import runpy
import sys

import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
