"""How gradients are summed over ranks: small ones together in parcels, large ones on their own.

A collective costs tens of microseconds to start, whatever it sends, and models have many small
parameters. What shares a parcel depends on the model alone, and not on how DDP packs its buckets,
which changes after its first backward: with more than two ranks the place of a number in what is
sent decides in which order it is added, so a run that was interrupted and resumed adds as one that
was not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from drumline.distributed.strategies.compression import Packing
from drumline.distributed.strategies.pieces import local

# DDP looks at a hook's annotations, so this module must not turn them into strings.

LARGE_BYTES = 4 * 2**20
"""A gradient of more is sent on its own, which saves its copy: on two H200 a bound of 16 MiB was no
faster."""

PARCEL_BYTES = 25 * 2**20
"""A parcel is closed before it would hold more; DDP's buckets have this size, too."""


@dataclass
class Channel:
    """The process group in which gradients are summed; None is that of all collectives."""

    group: dist.ProcessGroup | None = None


def parcels_of(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters whose gradients are sent together: of one dtype, in about the order in which a
    backward makes their gradients, the last parameters first.
    """
    parcels: list[list[nn.Parameter]] = []
    filling: dict[torch.dtype, tuple[list[nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        size = local(parameter).nbytes
        if size > LARGE_BYTES:
            parcels.append([parameter])
            continue
        parcel, filled = filling.get(parameter.dtype, ([], 0))
        if not parcel or filled + size > PARCEL_BYTES:
            parcel, filled = [], 0
            parcels.append(parcel)
        parcel.append(parameter)
        filling[parameter.dtype] = parcel, filled + size
    return parcels


class Summation:
    """Sums the gradients of a model over the ranks of a channel, in place; sums, not means.

    Args:
        parameters: Those that are trained, the same on all ranks.
        device: Of the data plane.
        packing: How gradients are sent; by default as they are.
        channel: Among whom; by default all ranks.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        packing: Packing | None = None,
        channel: Channel | None = None,
    ) -> None:
        self.parameters, self.device = list(parameters), device
        self.packing, self.channel = packing or Packing(), channel or Channel()
        self.parcels = parcels_of(self.parameters)
        self._parcel = {id(p): n for n, parcel in enumerate(self.parcels) for p in parcel}
        self._arrived: dict[int, dict[int, Tensor]] = {}
        self._sent: list[Sent] = []
        self._backwards = 0
        self._buckets: dict[int, _Bucket] = {}

    def all_at_once(self) -> None:
        """Sum what backwards left that sent nothing. A gradient that only some ranks have counts as
        zero on the others; one that none has stays None.
        """
        wanted = self._wanted()
        for parcel in self.parcels:
            if any(id(parameter) in wanted for parameter in parcel):
                self._send([_gradient(parameter) for parameter in parcel])
                self._land()  # each before the next, which takes the memory of one
        for parameter in self.parameters:
            if id(parameter) not in wanted:
                parameter.grad = None

    def of_bucket(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's hook: send what is complete with this bucket. A parcel may have begun in an earlier
        one. Sums are put where they belong at the end of the backward, as DDP's own would be.
        """
        self._take(self._known(bucket))
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] = [buffer.device] if buffer.is_cuda else []
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        done.set_result(buffer)
        return done

    def _known(self, bucket: GradBucket) -> "_Bucket":
        """A bucket's gradients; asking DDP for them takes long. Its buckets are packed anew at most
        once, after the first backward, and what is kept here holds their memory: so another bucket
        has another address.
        """
        index, buffer = bucket.index(), bucket.buffer()
        self._backwards += index == 0
        known = self._buckets.get(index)
        if known is None or known.address != buffer.data_ptr():
            parameters: list[Any] = bucket.parameters()
            known = _Bucket(
                index, buffer.data_ptr(), parameters, list(map(_line, bucket.gradients()))
            )
            if self._backwards > 1:
                self._buckets[index] = known
        return known

    def take(
        self, bucket: int, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]
    ) -> None:
        """Within a backward: the gradients of one of DDP's buckets, which come in order."""
        self._take(_Bucket(bucket, 0, parameters, list(map(_line, gradients))))

    def _take(self, bucket: "_Bucket") -> None:
        if bucket.index == 0:
            self._arrived, self._sent = {}, []  # of a backward that was not finished
        for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            number = self._parcel[id(parameter)]
            here = self._arrived.setdefault(number, {})
            here[id(parameter)] = gradient
            if len(here) == len(self.parcels[number]):
                self._call_back()
                self._send([here[id(parameter)] for parameter in self.parcels[number]])
                del self._arrived[number]

    def _wanted(self) -> set[int]:
        """Identities of the parameters that some rank has a gradient of."""
        used = torch.tensor([int(p.grad is not None) for p in self.parameters], device=self.device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.channel.group)
        found = zip(self.parameters, used.tolist(), strict=True)
        return {id(parameter) for parameter, is_used in found if is_used}

    def _call_back(self) -> None:
        if not self._sent:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._land)

    def _send(self, lines: list[Tensor]) -> None:
        packed = self.packing.pack(lines[0] if len(lines) == 1 else torch.cat(lines))
        self._sent.append(Sent(lines, packed, self.start(packed)))

    def start(self, packed: Tensor) -> dist.Work:
        """Begin to sum a tensor in place."""
        work: dist.Work = dist.all_reduce(packed, group=self.channel.group, async_op=True)
        return work

    def _land(self) -> None:
        """Put all sums where their gradients are, once they are there."""
        sent, self._sent = self._sent, []
        for each in sent:
            each.work.wait()  # on a GPU the stream waits, and not the host
            summed = self.packing.unpack(each.packed, each.lines[0].dtype)
            if len(each.lines) > 1:
                parts = torch.split(summed, [line.numel() for line in each.lines])
                torch._foreach_copy_(each.lines, list(parts))
            elif summed is not each.lines[0]:
                each.lines[0].copy_(summed)


@dataclass(frozen=True)
class _Bucket:
    """One of DDP's buckets: its number, where it lies, and whose gradients it holds as lines."""

    index: int
    address: int
    parameters: Sequence[nn.Parameter]
    gradients: Sequence[Tensor]


@dataclass(frozen=True)
class Sent:
    """Gradients as lines, what was sent of them, and the collective that sums it."""

    lines: list[Tensor]
    packed: Tensor
    work: dist.Work


def sum_each(state: Summation, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's hook with its state, as DDP wants them: apart."""
    return state.of_bucket(bucket)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return _line(local(parameter.grad))


def _line(gradient: Tensor) -> Tensor:
    """A gradient as a vector in the order in which it lies in memory; not a copy. Autograd and DDP
    lay a gradient out as its parameter, without gaps.
    """
    if gradient.is_contiguous():
        return gradient.view(-1)
    return gradient.as_strided((gradient.numel(),), (1,))
