"""What scaled dot-product attention keeps and takes on CUDA, without its values.

FlashAttention (Dao 2023, arXiv 2307.08691) for halves without a mask, the memory-efficient kernel
(Rabe and Staats 2021, arXiv 2112.05682) for float32 or with a mask, else plain operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LARGEST_HEAD = 256
_ROWS = 128


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as torch.nn.functional has it; [..., length, width of value's head]."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if not _is_fused(query, attn_mask):
        out: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
        return out
    made: Tensor = _Fused.apply(query, key, value)  # type: ignore[no-untyped-call]
    return made


def _is_fused(query: Tensor, mask: Tensor | None) -> bool:
    if query.dim() != 4 or query.size(-1) > _LARGEST_HEAD or query.dtype is torch.float64:
        return False
    return mask is None or not mask.requires_grad


class _Fused(torch.autograd.Function):
    """Keeps the inputs, the output and the rows' log-sums of exponentials."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, length, _ = query.shape
        out = query.new_empty(batch, length, heads, value.size(-1)).transpose(1, 2)
        log_sums = query.new_empty(batch, heads, length, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, ...]:
        query, key, value = ctx.saved_tensors[:3]
        batch, heads, length, width = query.shape
        rows = -(-length // _ROWS) * _ROWS
        if query.dtype is not torch.float32:  # sums of dq over blocks of keys
            query.new_empty(batch, heads, rows, -(-width // 32) * 32, dtype=torch.float32)
        delta = query.new_empty(batch, heads, rows, dtype=torch.float32)
        grads = tuple(
            part.new_empty(part.transpose(1, 2).shape).transpose(1, 2)
            for part in (query, key, value)
        )
        del delta
        return grads
