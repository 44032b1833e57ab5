"""Attention, run as what it is made of: scores, a softmax of them, and a product with the values.

Heads keep an axis of their own, so that they can be asked for where the output projection receives them.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture.vocabulary.composed import composes


@composes("scaled_dot_product_attention")
def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if enable_gqa:
        key, value = (_repeated(t, query.shape[-3]) for t in (key, value))
    hidden = _later(query, key) if is_causal else None
    return _attend(query, key, value, None if is_causal else attn_mask, dropout_p, scale, hidden)[0]


def _repeated(shared: Tensor, heads: int) -> Tensor:
    """Keys or values that several query heads share, one copy for each."""
    copies = heads // shared.shape[-3]
    wide = shared.unsqueeze(-3).expand(*shared.shape[:-2], copies, *shared.shape[-2:])
    return wide.flatten(-4, -3) if copies > 1 else shared


_LATER: WeakValueDictionary[tuple[int, int, torch.device], Tensor] = WeakValueDictionary()
"""The masks that are in use: all layers of a network have one."""


def _later(query: Tensor, key: Tensor) -> Tensor:
    """Where a key lies behind a query, which must not look at it."""
    name = query.shape[-2], key.shape[-2], query.device
    found = _LATER.get(name)
    if type(found) is not type(query):  # none, or one without numbers
        found = torch.ones(*name[:2], dtype=torch.bool, device=query.device).triu(1)
        _LATER[name] = found
    return found


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The attended values, and the weights. A position that may look at nothing gets 0.

    ``hidden`` is a mask of what is not looked at, by which every position can look at something.
    """
    scores = torch.matmul(query * (query.shape[-1] ** -0.5 if scale is None else scale), key.mT)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    blind = None
    if mask is not None:
        allowed = mask if mask.dtype == torch.bool else mask > -math.inf
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        seen = allowed.any(-1, keepdim=True)
        if not bool(seen.all()):
            blind = ~seen
            scores = scores.masked_fill(blind, 0.0)
    weights = torch.softmax(scores, -1)
    if blind is not None:
        weights = weights * (~blind).to(weights.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.matmul(weights, value), weights


@composes("multi_head_attention_forward")
def _multi_head(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """``nn.MultiheadAttention`` on (positions, samples, channels), or (positions, channels) for one sample."""
    batched = query.ndim == 3
    if not batched:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)  # type: ignore[union-attr]
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    more = 0
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([t, b.expand(1, t.shape[1], -1)]) for t, b in ((k, bias_k), (v, bias_v)))
        more += 1
    q, k, v = (_by_head(t, num_heads) for t in (q, k, v))
    k = k if static_k is None else static_k.view(q.shape[0], num_heads, *static_k.shape[1:])
    v = v if static_v is None else static_v.view(q.shape[0], num_heads, *static_v.shape[1:])
    if add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(*t.shape[:2], 1, t.shape[3])], 2) for t in (k, v))
        more += 1
    mask = _mask(attn_mask, key_padding_mask, q, more, _later(q, k) if is_causal and attn_mask is None else None)
    out, attended = _attend(q, k, v, mask, dropout_p if training else 0.0)
    out = F.linear(out.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    shown: Any = None
    if need_weights:
        shown = attended.mean(1) if average_attn_weights else attended
        shown = shown if batched else shown.squeeze(0)
    return out if batched else out.squeeze(1), shown


def _by_head(t: Tensor, heads: int) -> Tensor:
    """(positions, samples, channels) as (samples, heads, positions, channels of a head)."""
    return t.view(*t.shape[:2], heads, t.shape[2] // heads).permute(1, 2, 0, 3)


def _mask(attn: Tensor | None, padding: Tensor | None, q: Tensor, more: int, causal: Tensor | None) -> Tensor | None:
    """All masks as one that is added to (samples, heads, queries, keys); what is to be ignored is true in torch's."""
    total: Tensor | None = None if causal is None else _added(causal, q)
    if attn is not None:
        attn = attn.view(q.shape[0], -1, *attn.shape[1:]) if attn.ndim == 3 else attn
        total = _added(attn, q)
    if padding is not None:
        own = _added(padding.view(-1, 1, 1, padding.shape[-1]), q)
        total = own if total is None else total + own
    return total if total is None or not more else F.pad(total, (0, more))


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
