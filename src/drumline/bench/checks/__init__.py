"""Whether multi-GPU training will work on this machine, and what to do where it will not."""

from drumline.bench.checks.check import CheckContext, HostCheck, RankCheck, Seat, TorchFacts
from drumline.bench.checks.finding import Finding, Status, counts
from drumline.bench.checks.run import exit_code, prepare, run_checks, with_torch

__all__ = [
    "CheckContext",
    "Finding",
    "HostCheck",
    "RankCheck",
    "Seat",
    "Status",
    "TorchFacts",
    "counts",
    "exit_code",
    "prepare",
    "run_checks",
    "with_torch",
]
