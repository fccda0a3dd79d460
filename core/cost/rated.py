"""Seconds of kernels by measured rates: products by shape, attention by pass, all else by the bytes that it moves."""

from __future__ import annotations

from partita.cost.passes import NORMS, SOFTMAX, multiples
from partita.cost.work import Kernel
from partita.profile.rates import Rates


def pass_seconds(kernel: Kernel, rates: Rates, ratio: float, item: int) -> tuple[float, float]:
    """Forward and backward seconds of one kernel for ``ratio`` times the graph's samples.

    Backward a product is two: the gradient of its input and that of its weight. Attention's backward is five products
    where the forward is two. A bias adds that its output's gradient is read.
    """
    moved = kernel.activation_bytes * ratio + kernel.weight_bytes
    if kernel.product is not None:
        m, k, n = kernel.product
        rows = m * ratio
        least = moved / rates.pointwise_bytes_per_second
        forward = max(rates.product_seconds(rows, k, n, item), least)
        backward = max(rates.product_seconds(rows, n, k, item), least)
        backward += max(rates.product_seconds(k, rows, n, item), least) if kernel.weighted else 0.0
        return forward, backward + rows * n * item / rates.pointwise_bytes_per_second
    if kernel.attended is not None:
        groups, seq, width = kernel.attended
        sizes, flops = (groups * ratio, seq, width), kernel.flops * ratio
        least = moved / rates.pointwise_bytes_per_second
        forward = max(flops / rates.near("attention_forward", sizes), least)
        return forward, max(2.5 * flops / rates.near("attention_backward", sizes), 2 * least)
    if kernel.kind in NORMS:
        speed = rates.norm_bytes_per_second
    elif kernel.kind in SOFTMAX:
        speed = rates.softmax_bytes_per_second
    else:
        speed = rates.pointwise_bytes_per_second
    first, second = multiples(kernel.kind)
    return first * moved / speed, second * moved / speed
