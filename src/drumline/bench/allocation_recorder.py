"""Records when the storages of tensors come and go, below autograd and above the kernels.

Every operator's new storages are allocations; a storage's end is its free. What a CUDA kernel
takes for itself while it runs is added by `operator_memory`. Works on fake and on real tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from drumline.bench.operator_memory import CONVOLUTIONS, Temporaries, temporaries, workspaces
from drumline.bench.value_dependent import without_values

Operator = Callable[..., Any]
_RECORDING = " recording"


class AllocationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under which allocations and frees are written down.

    Attributes:
        sizes: Bytes of each allocation.
        categories: What each is; see `planning.memory_trace.CATEGORIES`.
        workspaces: Names of allocations whose size the device decides.
        events: k + 1 where allocation k is made, -(k + 1) where it is freed, 0 where the cache is
            emptied.
        category: Of allocations outside a backward.
        selections: Operators met whose result's size depends on values.
        selected: As given.
        truth: What a truth value read on the host becomes; most often it is asked whether
            something went wrong.
        convolutions: Whether there was one.
        streams: Which allocations another stream than the computing one asked for, or are of a pool
            that graphs are recorded in, by number.
        held: The numbers of the pools that were held at each emptying.

    Args:
        kernels: Whether to add what CUDA's kernels take for themselves.
        selected: Part of the elements that an operator selects whose choice depends on values.
    """

    def __init__(self, *, kernels: bool = True, selected: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []
        self.categories: list[str] = []
        self.workspaces: dict[int, str] = {}
        self.events: list[int] = []
        self.category = "activations"
        self.selections: set[str] = set()
        self.convolutions = False
        self.streams: dict[int, int] = {}
        self.held: list[tuple[int, ...]] = []
        self._known_streams: list[Any] = [torch.cpu.current_stream()]
        self._pool: object | None = None
        self.selected, self._kernels, self.truth = selected, kernels, False
        self._numbers = WeakIdKeyDictionary()
        self._references: dict[int, Any] = {}
        self._named: dict[str, int] = {}
        self._made_up = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and record what it makes. What a DTensor's operator does to its pieces
        comes by again.
        """
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if func.namespace in ("prim", "profiler") or self._made_up:
            return func(*args, **kwargs)
        result, selects = without_values(func, args, kwargs, self.selected, truth=self.truth)
        if selects:
            self.selections.add(selects)
        for leaf in tree_leaves(result):  # kernels are given their results to fill
            if isinstance(leaf, Tensor):
                self.see(leaf)
        made = [] if not self._kernels else self._start_kernel(func, args, kwargs, result)
        for number in made:
            self.events.append(-(number + 1))
        return result

    def see(self, tensor: Tensor, category: str | None = None) -> None:
        """Record a tensor's storage, unless it is known."""
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage not in self._numbers:
            self._see_storage(storage, category or self._now())

    def _see_storage(self, storage: torch.UntypedStorage, category: str) -> None:
        number = self._allocate(storage.nbytes(), category)
        self._numbers[storage] = number
        self._references[number] = weakref.ref(storage, lambda _: self._freed(number))

    def label(self, tensors: Iterable[Tensor], category: str, *, only: str = "") -> None:
        """Say what storages are that were recorded as something else (or as `only`)."""
        for tensor in tensors:
            number = self._numbers.get(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            if number is not None and only in ("", self.categories[number]):
                self.categories[number] = category

    @contextmanager
    def within(self, category: str) -> Iterator[None]:
        """What allocations are for a while."""
        before, self.category = self.category, category
        try:
            yield
        finally:
            self.category = before

    @contextmanager
    def recording(self, pool: object) -> Iterator[None]:
        """What is allocated for a while is of a pool that graphs are recorded in."""
        before, self._pool = self._pool, pool
        try:
            yield
        finally:
            self._pool = before

    def emptied(self, held: Iterable[object]) -> None:
        """Free segments are given back, but those of pools that are held."""
        self.events.append(0)
        self.held.append(tuple(sorted(self._number(pool) for pool in held)))

    def free_workspaces_of_recording(self) -> None:
        """Free the workspaces that were needed within `recording`."""
        for name in [name for name in self._named if name.endswith(_RECORDING)]:
            self.events.append(-(self._named.pop(name) + 1))

    def stop(self) -> None:
        """Let go of all storages; what is alive stays so in the record."""
        self._references.clear()
        self._named.clear()

    def __enter__(self) -> Any:
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign]
        self._propagate = ShardingPropagator._propagate_tensor_meta_non_cached
        ShardingPropagator._propagate_tensor_meta_non_cached = self._unseen()  # type: ignore[method-assign]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        ShardingPropagator._propagate_tensor_meta_non_cached = self._propagate  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _unseen(self) -> Any:
        """To learn a result's shape DTensor runs an operator on whole tensors that are made up."""
        propagate, recorder = self._propagate, self

        def unseen(*arguments: Any) -> Any:
            recorder._made_up += 1
            try:
                return propagate(*arguments)
            finally:
                recorder._made_up -= 1

        return unseen

    def _resizing(self) -> Any:
        """FSDP empties a storage to free its memory, and fills it again, without an operator."""
        resize, recorder = self._resize, self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            before = storage.nbytes()
            result = resize(storage, size)
            recorder.resized(storage, before)
            return result

        return resize_

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Record that a storage was given another size than `before`."""
        if storage.nbytes() == before:
            return
        number = self._numbers.get(storage)  # type: ignore[no-untyped-call]
        if number is not None:
            self._freed(number)
            del self._numbers[storage]
        if storage.nbytes():
            self._see_storage(storage, "buckets")

    def _now(self) -> str:
        backward = torch._C._current_graph_task_id() != -1
        return "temporaries" if backward else self.category

    def _allocate(self, size: int, category: str) -> int:
        self.sizes.append(size)
        self.categories.append(category)
        self.events.append(len(self.sizes))
        number = len(self.sizes) - 1
        if self._pool is not None:
            self.streams[number] = self._number(self._pool)
        elif stream := self._number(torch.cpu.current_stream()):
            self.streams[number] = stream
            self.categories[number] = "buckets"
        return number

    def _number(self, stream: object) -> int:
        """Of a stream or a pool, as they come: 0 is the stream that computes."""
        if stream not in self._known_streams:
            self._known_streams.append(stream)
        return self._known_streams.index(stream)

    def _freed(self, number: int) -> None:
        if self._references.pop(number, None) is not None:
            self.events.append(-(number + 1))

    def _start_kernel(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[int]:
        """Allocations of a kernel's own, which are freed after it."""
        self.convolutions |= func.overloadpacket in CONVOLUTIONS
        for name in workspaces(func):
            self._workspace(f"{name}:{self._user()}")
        taken: Temporaries = temporaries(func, args, kwargs, result)
        return [self._allocate(size, "temporaries") for size in taken if size > 0]

    def _workspace(self, name: str) -> None:
        """A workspace that stays once it was needed."""
        if name not in self._named:
            self._named[name] = self._allocate(0, "workspace")
            self.workspaces[self._named[name]] = name

    def _user(self) -> str:
        """Autograd runs backward in a thread of its own on CUDA, with a handle of its own. All
        graphs are recorded on one stream of their own, and a workspace is of a handle and a stream.
        """
        thread = "backward" if torch._C._current_graph_task_id() != -1 else "main"
        return thread if self._pool is None else thread + _RECORDING
