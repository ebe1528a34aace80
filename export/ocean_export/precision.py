"""Weights in fewer bits: how a matrix is rounded, per block for onnxruntime's operator, per column for ONNX's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PRECISIONS = ("fp32", "int8", "int4")
BITS = {"int8": 8, "int4": 4}
BLOCK = {8: 256, 4: 32}
"""Weights that share a scale: few enough that one outlier spoils little, and cheap enough to read."""


def per_block(W: Array, bits: int) -> tuple[Array, Array, int]:
    """Round W (in, out) as MatMulNBits reads it: blocks along `in`, symmetric about the middle code.

    Returns the codes (out, blocks, bytes) uint8, two to a byte at 4 bits, the scales (out * blocks,)
    float32, and the block's size.
    """
    K, N = W.shape
    size = min(BLOCK[bits], max(16, 1 << (K - 1).bit_length()))
    count = -(-K // size)
    w = np.zeros((N, count * size))
    w[:, :K] = W.T
    w = w.reshape(N, count, size)
    middle = 1 << (bits - 1)
    scale = _nonzero(_scale(w, bits))
    codes: Array = (np.clip(np.rint(w / scale), -middle, middle - 1) + middle).astype(np.uint8)
    if bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
    return codes, scale.astype(np.float32).reshape(-1), size


def per_column(W: Array) -> tuple[Array, Array]:
    """Round W (in, out) as MatMulInteger reads it: codes (in, out) uint8 about 128, scales (out,) float32."""
    scale = _nonzero(np.abs(W).max(0) / 127)
    return (np.rint(W / scale) + 128).astype(np.uint8), scale.astype(np.float32)


def dequantise(codes: Array, scales: Array, rows: int, bits: int) -> Array:
    """The float32 matrix (in, out) that `per_block`'s result stands for."""
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1)
    N, count, _ = codes.shape
    w = (codes.astype(np.float32) - (1 << (bits - 1))) * scales.reshape(N, count, 1)
    matrix: Array = w.reshape(N, -1)[:, :rows].T
    return matrix


def _scale(w: Array, bits: int) -> Array:
    """The scale of each block, (..., 1): the largest weight takes the code that has the most room.

    At 4 bits the codes are -8 … 7; using -8 for the largest magnitude, whatever its sign, is worth a
    sixteenth of a step. Of a few scales around it the one with the smallest squared error is taken.
    """
    if bits == 8:
        peak: Array = np.abs(w).max(-1, keepdims=True) / 127
        return peak
    largest = np.take_along_axis(w, np.abs(w).argmax(-1)[..., None], -1)
    best, error = largest / -8, np.full((*w.shape[:-1], 1), np.inf)
    for shrink in np.linspace(0.7, 1.05, 15):
        scale = _nonzero(largest / -8 * shrink)
        missed = ((np.clip(np.rint(w / scale), -8, 7) * scale - w) ** 2).sum(-1, keepdims=True)
        best, error = np.where(missed < error, scale, best), np.minimum(error, missed)
    return best


def _nonzero(scale: Array) -> Array:
    return np.where(scale == 0, 1.0, scale)
