"""Problem → Plan. The chain engine: exact over cuts, uniform dp × tp × pp × micro-batch × ZeRO × recomputation."""

from partita.planner.engine import plan
from partita.planner.fix import parse_fix

__all__ = ["parse_fix", "plan"]
