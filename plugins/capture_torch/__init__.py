"""``torch.export`` on any ``nn.Module`` with example inputs, folded into blocks by the module hierarchy."""

from partita.plugins.capture_torch.capture import Captured, capture_module
from partita.plugins.capture_torch.skeleton import Skeleton, build_skeleton

__all__ = ["Captured", "Skeleton", "build_skeleton", "capture_module"]
