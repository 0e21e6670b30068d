"""Plans as the API shows them; `drumline plan --json` prints the same."""

from __future__ import annotations

from pydantic import Field

from drumline.config import Mode
from drumline.server.views.common import View


class PlannedDevice(View):
    """The device of one rank."""

    kind: str = Field(description="cuda, rocm or cpu, with `simulated-` before it if not real.")
    name: str = Field(description="The model.")
    uuid: str | None = Field(description="Its UUID; null of a CPU process.")
    index: int | None = Field(description="Its index on the host; null of a CPU process.")
    simulated: bool = Field(description="Whether it is not real.")


class Part(View):
    """A part of a step's time."""

    name: str = Field(description="What takes the time.")
    seconds: float = Field(description="How long.")
    line: str = Field(description="The arithmetic.")


class Candidate(View):
    """One way to spread the run."""

    mode: str = Field(description="How the model is spread.")
    devices: int = Field(description="How many devices are used.")
    shares: list[int] = Field(description="Samples of a step for each.")
    step_s: float | None = Field(description="Predicted time of a step; null: not predicted.")
    parts: list[Part] = Field(description="What the time is made of.")
    selectable: bool = Field(description="Whether mode auto may choose it.")
    note: str = Field(description="Why not, or what the prediction lacks.")


class MemoryEstimate(View):
    """What a rank needs, in bytes."""

    micro_batch: int = Field(description="The micro-batch this is for.")
    parameters: int = Field(description="Parameters and buffers.")
    gradients: int = Field(description="One set of gradients.")
    optimizer: int = Field(description="The optimizer's state.")
    activations: int = Field(description="What the forward keeps, the batch, and what passes.")
    buckets: int = Field(description="DDP's gradient buckets.")
    workspace: int = Field(description="Of cuBLAS and cuDNN.")
    context: int = Field(description="CUDA's context and NCCL's buffers.")
    allocated_peak: int = Field(description="All inside the allocator, at the peak.")
    reserved_peak: int = Field(description="That, and what lies free inside segments.")
    low: int = Field(description="The least reserved memory with which a step can do.")
    high: int = Field(description="Reserved memory, by the worst that is known.")
    unknown: list[str] = Field(description="What the numbers leave out, in words.")
    total: int = Field(description="What nvidia-smi will show for the process.")


class KindMemory(View):
    """The need beside what devices of one kind have."""

    device: str = Field(description="The kind.")
    chosen: int = Field(description="How many of them the plan takes.")
    capacity: int | None = Field(description="The least that is free on one, in bytes.")
    fits: bool | None = Field(description="Whether it fits; null: not known.")
    left: int | None = Field(description="What is left then, in bytes; below 0: what lacks.")
    largest_micro_batch: int | None = Field(description="The largest that fits; null: none.")
    needed: MemoryEstimate = Field(description="What a rank needs.")


class BatchCut(View):
    """How the samples of a step are cut."""

    global_batch: int = Field(description="Samples of a step over all devices.")
    shares: list[int] = Field(description="Samples of each device.")
    micro_batches: list[list[int]] = Field(description="For each device its micro-batches.")
    lines: list[str] = Field(description="The arithmetic.")
    accumulation: int = Field(description="The most micro-batches of any device.")


class Plan(View):
    """Every decision made before a run, and what is predicted."""

    host: str = Field(description="The host it is for.")
    mode: Mode = Field(description="How the model is spread.")
    backend: str = Field(description="The data plane: nccl, gloo, or none for one process.")
    world_size: int = Field(description="How many ranks.")
    devices: list[PlannedDevice] = Field(description="One for each rank.")
    global_batch: int = Field(description="Samples of a step over all ranks.")
    shares: list[int] = Field(description="Samples of a step for each rank.")
    micro_batch: int = Field(description="The most samples one forward holds.")
    reasons: list[str] = Field(description="Why each automatic choice was made, in words.")
    candidates: list[Candidate] = Field(description="Ways to spread the run, with their times.")
    memory: list[KindMemory] = Field(description="What is needed on each kind of device.")
    batch: BatchCut = Field(description="How the samples are cut.")
    learning_rates: dict[str, float] = Field(description="For another batch, by rule.")
    missing: list[str] = Field(description="What could not be predicted, and why.")
