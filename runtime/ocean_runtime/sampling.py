"""From logits to a token: log-probabilities, and sampling that a restart does not change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Natural-log probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def sample(
    logits: NDArray[Any], *, step: int, seed: int = 0, temperature: float = 1.0, top_k: int | None = None
) -> int:
    """Draw a token from logits (V,).

    The draw depends on `seed` and `step` alone, not on how many were drawn before, so that a stream which
    was stopped and restored goes on as if it had not been. temperature 0 takes the most likely token;
    top_k draws among that many of the most likely. The unknown token (id 0) is never drawn.
    """
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be 0 or more and below 2^64, not {seed}")
    if temperature < 0:
        raise ValueError(f"temperature must be 0 or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be 1 or more, not {top_k}")
    scores = logits.astype(np.float64)
    scores[0] = -np.inf
    if temperature == 0:
        return int(scores.argmax())
    scores /= temperature
    if top_k is not None and top_k < scores.size - 1:
        scores[scores < np.partition(scores, -top_k)[-top_k]] = -np.inf
    # Gumbel's maximum: argmax(scores + noise) is distributed as softmax(scores).
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, step], np.uint64)))
    return int((scores + generator.gumbel(size=scores.size)).argmax())
