"""What CUDA's kernels take from the allocator for themselves, operator by operator.

A trace sees what operators return. What a kernel allocates and frees while it runs has to be known;
only what can matter is listed, with its place in torch's source (aten/src/ATen/native).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from drumline.bench.reduction_memory import scratch_bytes

Temporaries = tuple[int, ...]
aten = torch.ops.aten

_REDUCED = (torch.float16, torch.bfloat16)
_SORTED_AT_ONCE = 4096
"""Up to this length a kernel sorts in place, in shared memory."""

_NORM_CHUNK = 65_536
"""Elements that one thread block of the multi-tensor norm takes."""

_DIGITS = 256
_TOPK_BLOCK = 16_384
"""Radix select counts digits for every block of this many elements of a slice."""

_ROWS_PER_SEGMENT = 10
_FEW_INDICES = 3072

MULTIPLIES = {
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten.addmv,
    aten.mv,
    aten.dot,
    aten.addbmm,
    aten._addmm_activation,
}

_WITH_BIAS = {aten.addmm, aten._addmm_activation}

CONVOLUTIONS = {aten.convolution, aten.convolution_backward, aten.cudnn_convolution}


def workspaces(func: Any) -> tuple[str, ...]:
    """Names of the workspaces that an operator's libraries keep once they were called.

    A product with a bias goes through cuBLASLt, and the handle that it comes with is cuBLAS's.
    """
    if func.overloadpacket not in MULTIPLIES:
        return ()
    return ("cublas", "cublaslt") if func.overloadpacket in _WITH_BIAS else ("cublas",)


def temporaries(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Temporaries:
    """Bytes of each allocation that an operator's kernel makes and frees again."""
    rule = _RULES.get(func.overloadpacket)
    return () if rule is None else rule(args, kwargs, result)


def _reduction(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Temporaries:
    """The input cast to the result's dtype, but for halves to float32 (ReduceOpsUtils.h), and what
    blocks leave for each other.
    """
    entered, left = args[0], result
    if not isinstance(left, Tensor) or entered.numel() == 0:
        return ()
    as_is = entered.dtype is left.dtype
    as_is = as_is or (entered.dtype in _REDUCED and left.dtype is torch.float32)
    cast = 0 if as_is else entered.numel() * left.element_size()
    element = max(4, left.element_size())  # halves are added in float32
    return (cast, _scratch(entered, _dims(args, kwargs, 1), element))


def _selection(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Temporaries:
    """Largest, smallest, any, all: nothing is cast; places are kept beside values."""
    if len(args) > 1 and isinstance(args[1], Tensor):
        return ()  # of two tensors, element by element
    places = not isinstance(result, Tensor) or result.dtype is torch.int64
    element = 16 if places else args[0].element_size()
    return (_scratch(args[0], _dims(args, kwargs, 1), element),)


def _scratch(entered: Tensor, dims: list[int], element: int) -> int:
    return scratch_bytes(tuple(entered.shape), entered.stride(), dims, element)


def _dims(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> list[int]:
    """The dimensions that an operator reduces, all of them where none is named."""
    dims = kwargs.get("dim", args[place] if len(args) > place else None)
    every = list(range(args[0].dim()))
    if isinstance(dims, int) and not isinstance(dims, bool):
        dims = [dims]
    return [every[dim] for dim in dims] if isinstance(dims, list | tuple) and dims else every


def _sort(args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> Temporaries:
    """Radix sort's second buffers of keys and of indices (cuda/SortStable.cu)."""
    keys, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else -1)
    if keys.dim() == 0 or keys.size(dim) <= _SORTED_AT_ONCE:
        return ()
    return (keys.numel() * 8, keys.numel() * (keys.element_size() + 8))


def _topk(args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> Temporaries:
    """Counts of digits, for every block and summed for every slice (cuda/TensorTopK.cu)."""
    entered, dim = args[0], kwargs.get("dim", args[2] if len(args) > 2 else -1)
    if entered.dim() == 0 or entered.numel() == 0:
        return ()
    slices = entered.numel() // entered.size(dim)
    blocks = slices * -(-entered.size(dim) // _TOPK_BLOCK)
    return (blocks * _DIGITS * 2, slices * _DIGITS * 4)


def _embedding_gradient(args: tuple[Any, ...], _: dict[str, Any], result: Any) -> Temporaries:
    """Sorted indices and float32 sums of segments (cuda/EmbeddingBackwardKernel.cu)."""
    count, (rows, width) = args[1].numel(), result.shape
    if count <= _FEW_INDICES:
        return ()
    segments = count // _ROWS_PER_SEGMENT + min(count, rows)
    return (count * 8, count * 8, count * 16, segments * 8, segments * width * 4)


def _accumulating_put(args: tuple[Any, ...], _: dict[str, Any], __: Any) -> Temporaries:
    """Linear indices, sorted, with their order (cuda/Indexing.cu)."""
    accumulate = args[3] if len(args) > 3 else False
    indices = [index for index in args[1] if index is not None]
    if not accumulate or not indices:
        return ()
    count = math.prod(torch.broadcast_shapes(*(index.shape for index in indices)))  # type: ignore[no-untyped-call]
    return (count * 8, count * 8, count * 8, count * 16)


def _norms(args: tuple[Any, ...], _: dict[str, Any], __: Any) -> Temporaries:
    """Partial sums of squares of chunks of every tensor (cuda/ForeachReduceOp.cu)."""
    tensors = args[0]
    chunks = max((-(-tensor.numel() // _NORM_CHUNK) for tensor in tensors), default=0)
    return (len(tensors) * chunks * 4,)


def _norm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Temporaries:
    """Like a reduction, but cast only where a dtype was asked for."""
    dims = {"dim": kwargs.get("dim", args[2] if len(args) > 2 else None)}
    cast, scratch = (*_reduction(args[:1], dims, result), 0, 0)[:2]
    return (cast if kwargs.get("dtype") else 0, scratch)


def _bag(args: tuple[Any, ...], _: dict[str, Any], result: Any) -> Temporaries:
    """The bag of each index, which other devices may leave empty (cuda/EmbeddingBag.cu)."""
    made = sum(leaf.numel() for leaf in tree_leaves(result)[1:2])
    return (max(0, args[1].numel() - made) * args[1].element_size(),)


Rule = Callable[[tuple[Any, ...], dict[str, Any], Any], Temporaries]
_RULES: dict[Any, Rule] = {
    aten.sum: _reduction,
    aten.mean: _reduction,
    aten.prod: _reduction,
    aten.linalg_vector_norm: _norm,
    **dict.fromkeys((aten.amax, aten.amin, aten.max, aten.min), _selection),
    **dict.fromkeys((aten.argmax, aten.argmin, aten.any, aten.all), _selection),
    aten.topk: _topk,
    aten.sort: _sort,
    aten.argsort: _sort,
    aten.embedding_dense_backward: _embedding_gradient,
    aten.index_put_: _accumulating_put,
    aten._index_put_impl_: _accumulating_put,
    aten._foreach_norm: _norms,
    aten._embedding_bag: _bag,
    aten._embedding_bag_forward_only: _bag,
}
