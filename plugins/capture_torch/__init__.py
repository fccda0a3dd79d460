"""``torch.export`` on any ``nn.Module`` with example inputs, folded into blocks by the module hierarchy."""

from partita.plugins.capture_torch.capture import Captured, capture_module, capture_skeleton
from partita.plugins.capture_torch.skeleton import Skeleton, build_skeleton, skeleton_of

__all__ = ["Captured", "Skeleton", "build_skeleton", "capture_module", "capture_skeleton", "skeleton_of"]
