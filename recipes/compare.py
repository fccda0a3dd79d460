"""Are two runs equal? Their losses step by step, and the answer."""

from __future__ import annotations

from collections.abc import Sequence

# Adam divides rounding noise by itself: losses of two right programs drift apart by about this much in fp32.
TOLERANCE = 1e-4


def compare(planned: Sequence[float], one_device: Sequence[float]) -> tuple[str, bool]:
    """A table of both losses and their difference, which ends with ``equal: true`` or ``false``, and that answer.

    Equal: as many steps, and at each a difference within the tolerance, which that of a NaN or of infinities never is.
    """
    differences = [abs(ours - theirs) for ours, theirs in zip(planned, one_device, strict=False)]
    equal = len(planned) == len(one_device) > 0 and all(difference <= TOLERANCE for difference in differences)
    lines = [f"{'step':>4}  {'planned':>10}  {'one device':>10}  {'difference':>10}"]
    for step, (ours, theirs, difference) in enumerate(zip(planned, one_device, differences, strict=False), start=1):
        mark = "" if difference <= TOLERANCE else "  <"
        lines.append(f"{step:4d}  {ours:10.6f}  {theirs:10.6f}  {difference:10.1e}{mark}")
    if len(planned) != len(one_device):
        lines.append(f"the plan made {len(planned)} steps, one device {len(one_device)}")
    if differences:
        # max() keeps what comes first when it meets a NaN, so sort by whether it is one.
        worst = max(differences, key=lambda difference: (difference != difference, difference))
        lines += ["", f"largest difference {worst:.1e} (tolerance {TOLERANCE:.0e})"]
    return "\n".join([*lines, f"equal: {str(equal).lower()}"]), equal
