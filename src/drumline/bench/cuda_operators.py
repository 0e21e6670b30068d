"""CUDA's choice of operators, for tensors that say they are on the CPU.

Fake CUDA tensors cannot run a backward where torch is built without CUDA, so a trace runs on fake
CPU tensors. Where torch picks other operators on the CPU than on CUDA, kernels registered here
pick CUDA's: fused attention without its matrix of scores, dropout with a mask of booleans, cuDNN's
LSTM and GRU, the fused LSTM cell, and autocast's list of operators that run in float32. They give
tensors of the right sizes and no values, so they serve fake tensors only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from drumline.bench.cuda_attention import attention
from drumline.bench.cuda_recurrent import (
    fused_cell,
    fused_cell_backward,
    gru,
    lstm,
    lstm_cell,
    packed_lstm,
)

aten = torch.ops.aten

IN_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor"),
    *("pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm"),
    *("cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss"),
    *("nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("mse_loss", "margin_ranking_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("binary_cross_entropy_with_logits", "dist", "cdist", "renorm", "logsumexp", "norm.Scalar"),
    *("norm.ScalarOpt_dim", "linalg_vector_norm", "linalg_matrix_norm", "rms_norm", "pdist"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
)
"""Operators that torch.autocast("cuda") runs on inputs cast to float32 (ATen/autocast_mode.h)."""

GIVEN_FLOAT32 = ("prod", "prod.dim_int", "cumprod", "cumsum", "sum", "sum.dim_IntList")
"""Those that it asks for a float32 result instead."""

SOFTMAX = ("softmax.int", "log_softmax.int")
_ON_CUDA = "AutocastCUDA"
_REDUCED = (torch.float16, torch.bfloat16)
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_NO_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


@contextmanager
def cuda_operators() -> Iterator[None]:
    """Within it, operators on CPU tensors are chosen as on CUDA."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    passed = _cast_on_cpus_only()  # as torch has it, before anything is registered here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that its own kernels are replaced
            for name, function in _AUTOGRAD.items():
                library.impl(name, function, "AutogradCPU")  # type: ignore[no-untyped-call]
            for name in filter(_is_cast_on_cuda, IN_FLOAT32):  # rms_norm is from torch 2.12 on
                library.impl(name, _in_float32(_operator(name)), "AutocastCPU")  # type: ignore[no-untyped-call]
            for name in GIVEN_FLOAT32:
                library.impl(name, _given_float32(_operator(name)), "AutocastCPU")  # type: ignore[no-untyped-call]
            for name in SOFTMAX:
                library.impl(name, _softmax(_operator(name)), "AutocastCPU")  # type: ignore[no-untyped-call]
            for name in passed:
                library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _dropout(entered: Tensor, p: float, train: bool) -> Tensor:
    """The fused kernel, which keeps a mask of booleans; identity where nothing is dropped."""
    if not train or p == 0:
        return entered
    dropped: Tensor = torch.native_dropout(entered, p, train)[0]
    return dropped


_AUTOGRAD: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "dropout": _dropout,
    "lstm.input": lstm,
    "lstm.data": packed_lstm,
    "gru.input": gru,
    "lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell": fused_cell,
    "_thnn_fused_lstm_cell_backward_impl": fused_cell_backward,
}


def _cast_on_cpus_only() -> list[str]:
    """Operators that autocast knows on the CPU and passes on CUDA: cross_entropy_loss, say, whose
    log-softmax keeps halves on CUDA and only the loss itself is taken in float32.
    """
    names = torch._C._dispatch_get_all_op_names()
    cast = (n for n in names if n.startswith("aten::") and _has_kernel(n, "AutocastCPU"))
    return [name.removeprefix("aten::") for name in cast if not _has_kernel(name, _ON_CUDA)]


def _is_cast_on_cuda(name: str) -> bool:
    return bool(_has_kernel(f"aten::{name}", _ON_CUDA))


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _in_float32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_NO_AUTOCAST):
            return operator(*map(_raised, args), **kwargs)

    return run


def _given_float32(operator: Any) -> Callable[..., Any]:
    def run(entered: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
        if dtype is None and entered.dtype in _REDUCED:
            dtype = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_NO_AUTOCAST):
            return operator(entered, *args, dtype=dtype)

    return run


def _softmax(operator: Any) -> Callable[..., Any]:
    """Halves go in as they are and come out as float32 in one kernel; bfloat16 is cast first."""
    fused = aten._softmax if operator is aten.softmax.int else aten._log_softmax

    def run(entered: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if dtype is None and entered.dtype in _REDUCED:
            dtype = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_NO_AUTOCAST):
            if entered.dtype is torch.float16 and dtype is torch.float32:
                return fused(entered, dim, True)
            return operator(entered, dim, dtype)

    return run


def _raised(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _REDUCED:
        return value.to(torch.float32)
    return [_raised(item) for item in value] if _is_list_of_tensors(value) else value


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Tensor)
