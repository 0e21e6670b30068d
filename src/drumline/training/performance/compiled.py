"""torch.compile, with a report of where it had to break the graph; and CUDA graphs on top of it.

Compiled code draws the same random numbers as plain code (`fallback_random`), so dropout masks stay
what they were, and chooses its kernels without timing them (`deterministic`), so that another
process that goes on with a run computes the same bits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from drumline.training.performance.switch import Subject, Switch

_OPTIONS: dict[str, Any] = {"fallback_random": True, "deterministic": True}
_GRAPHS: dict[str, Any] = {**_OPTIONS, "triton.cudagraphs": True}


class GraphRecorder:
    """A backend for torch.compile: Inductor, and note of why each graph ended.

    Args:
        options: Inductor's, by name.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._known = _all_breaks()
        self.graphs = 0
        self._places: dict[str, str] = {}

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Compile one graph."""
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        ended = getattr(graph, "compile_subgraph_reason", None)
        if ended is not None and ended.graph_break and ended.user_stack:
            at = ended.user_stack[-1]
            self._places[ended.reason] = f"{Path(at.filename).name}:{at.lineno}"
        compiled: Any = compile_fx(graph, inputs, config_patches=self._options)
        return cast("Callable[..., Any]", compiled)

    def breaks(self) -> list[dict[str, Any]]:
        """Every reason for which a graph was broken since this was made: what, where (file and
        line; empty if torch does not say), and how often.
        """
        seen = _all_breaks() - self._known
        return [
            {"reason": _in_words(reason), "where": self._places.get(reason, ""), "times": times}
            for reason, times in seen.items()
        ]


class Compile(Switch):
    """The model compiled in place; in sharded modes unit by unit, as torch advises."""

    name = "compile"

    def __init__(self) -> None:
        self._made: dict[bool, tuple[GraphRecorder, list[Callable[..., Any]]]] = {}
        self._modules: list[nn.Module] = []
        self._graphed = False

    @property
    def is_on(self) -> bool:
        """Whether the model is compiled by this."""
        return bool(self._modules)

    def why_not(self, subject: Subject) -> str | None:
        """A model that is not compiled yet."""
        if any(m._compiled_call_impl is not None for m in subject.model.modules()):
            return "the model is compiled already"
        return None

    def apply(self, subject: Subject) -> None:
        """Let calls of the model go through compiled code; it is made at the first call."""
        _quieten()
        self._modules = _units(subject.model)
        self._use(graphed=False)

    def undo(self, subject: Subject) -> None:
        """Plain calls again. What was compiled is kept for another time."""
        del subject
        for module in self._modules:
            module._compiled_call_impl = None
        self._modules = []

    def use_graphs(self, graphed: bool) -> None:
        """Whether kernels are launched as CUDA graphs; only while it is on."""
        self._use(graphed=graphed)

    def why_idle(self) -> str | None:
        """Torch passes over code that it cannot compile at all, and says nothing."""
        recorder, _ = self._made[False]
        if recorder.graphs:
            return None
        reasons = [found["reason"] for found in recorder.breaks()]
        return f"torch compiles nothing of this model: {'; '.join(reasons) or 'no reason given'}"

    def details(self) -> Mapping[str, Any]:
        """How many graphs there are, and why they were broken."""
        if False not in self._made:
            return {}
        recorder, _ = self._made[False]
        return {"graphs": recorder.graphs, "graph_breaks": recorder.breaks()}

    def _use(self, *, graphed: bool) -> None:
        if graphed not in self._made:
            recorder = GraphRecorder(_GRAPHS if graphed else _OPTIONS)
            calls = [torch.compile(_callable(m), backend=recorder) for m in self._modules]
            self._made[graphed] = recorder, calls
        for module, call in zip(self._modules, self._made[graphed][1], strict=True):
            module._compiled_call_impl = call


class CudaGraphs(Switch):
    """Compiled code whose kernels are launched together, as CUDA graphs.

    Args:
        compiled: The switch it stands on.
    """

    name = "cuda_graphs"

    def __init__(self, compiled: Compile) -> None:
        self._compiled = compiled

    def why_not(self, subject: Subject) -> str | None:
        """A GPU of CUDA, and torch.compile on."""
        if subject.device.type != "cuda":
            return "only for CUDA devices"
        return None if self._compiled.is_on else "it needs compile, which is not on"

    def apply(self, subject: Subject) -> None:
        """Use the code with graphs."""
        del subject
        self._compiled.use_graphs(True)

    def undo(self, subject: Subject) -> None:
        """Use the code without."""
        del subject
        if self._compiled.is_on:
            self._compiled.use_graphs(False)


def _callable(module: nn.Module) -> Callable[..., Any]:
    """What stands for a call of the module. Torch does not look into calls of its own modules
    (`nn.Sequential(...).compile()` compiles nothing), so these get a frame around them.
    """
    if not type(module).forward.__module__.startswith("torch.nn."):
        return module._call_impl

    def call(*inputs: Any, **options: Any) -> Any:
        return module._call_impl(*inputs, **options)  # type: ignore[no-untyped-call]

    return call


def _units(model: nn.Module) -> list[nn.Module]:
    """What is compiled as a whole: FSDP's hooks stand between its units."""
    inner = [m for m in model.modules() if isinstance(m, FSDPModule) and m is not model]
    return [unit for unit in inner if isinstance(unit, nn.Module)] or [model]


def _all_breaks() -> Counter[str]:
    """How often each reason has ended a graph, or kept code from being one, in this process."""
    from torch._dynamo.utils import counters  # takes a second to import

    return Counter(counters["graph_break"]) | Counter(counters["unimplemented"])


def _in_words(reason: str) -> str:
    """The first line of torch's explanation."""
    return reason.strip().partition("\n")[0]


def _quieten() -> None:
    """Breaks come in the report: torch need not warn of each on standard error, too."""
    logging.getLogger("torch._dynamo.variables.tensor").setLevel(logging.ERROR)
