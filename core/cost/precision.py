"""What a precision means: the dtype that ops compute in and how many bytes a tensor of the captured model then has."""

from __future__ import annotations

from collections.abc import Callable

from partita.cluster.model import Device
from partita.errors import InputError, PlanError, nearest
from partita.graph.model import ITEM_BYTES, Graph

DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def compute_dtype(precision: str) -> str:
    """The dtype's name; InputError for an unknown precision."""
    if precision not in DTYPES:
        raise InputError(f'there is no precision "{precision}".{nearest(precision, DTYPES)}')
    return DTYPES[precision]


def peak_flops(device: Device, precision: str) -> float:
    """FLOP/s of the device in this precision; PlanError where it can't compute in it."""
    dtype = compute_dtype(precision)
    if dtype not in device.peak_flops:
        works = [word for word, name in DTYPES.items() if name in device.peak_flops]
        raise PlanError(f'{device.name} does not compute in {dtype} (precision "{precision}"); {", ".join(works)} work')
    return device.peak_flops[dtype]


def item_bytes(graph: Graph, precision: str) -> Callable[[str], int]:
    """Bytes of one element by its dtype in the graph.

    The dtype of the graph's parameters is the one that the precision replaces. All others stay what they are, such as
    integers, masks and the float32 logits of a model that was captured in bfloat16.
    """
    own = next((tensor.dtype for tensor in graph.tensors if tensor.role == "parameter"), "float32")
    dtype = compute_dtype(precision)
    return lambda name: ITEM_BYTES[dtype if name == own else name]
