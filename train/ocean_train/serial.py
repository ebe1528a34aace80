"""The oracle: one window of the ocean chain, forward and backward, by hand in NumPy float64.

Nothing here is fast and nothing is hidden: each forward line has its backward line, in reverse order.
`read_path` is the operator that carries the gradient from a token back to the ocean it read. Every other
way to train (ocean_train.regimes) is tested against this one, and the regime `serial` trains with it.

Weights and gradients are dicts keyed by the model's own parameter names, in PyTorch's layout: a matrix
is (out, in), so that y = x Wᵀ. Axes: B batch, T steps, D width, L layers, H heads, K = D/H, F = 4D.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ocean_train.model import LAYER_NORM_EPS, OceanConfig, time_constants

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]
Tape = dict[str, Any]
"""What one operation keeps of its forward pass for its backward pass."""

_erf = np.frompyfunc(math.erf, 1, 1)


class Window(NamedTuple):
    """One window's result."""

    loss: float
    """Mean over the valid steps."""
    ocean: Array
    """The ocean after the window, (B, D)."""
    gradients: Weights
    """∂loss/∂w for each parameter."""
    ocean_gradient: Array
    """∂loss/∂o₀, (B, D)."""


def read_path(dy: Array, q: Array, a: Array, v: Array, v_ocean: Array) -> tuple[Array, Array, Array]:
    """The read-path operator: what a token's gradient sends to the ocean's keys and values, per head.

        dvᵒ = a dy        ds = a (1 − a) ⟨dy, vᵒ − v⟩ / √K        dkᵒ = q ds

    The more the token read the ocean (a), the stronger the signal it sends back through the value.
    dy, q, v, v_ocean (B, H, K), a (B, H, 1) -> ds (B, H, 1), dk_ocean, dv_ocean (B, H, K).
    """
    dv_ocean = a * dy
    ds = a * (1 - a) * (dy * (v_ocean - v)).sum(-1, keepdims=True) / math.sqrt(q.shape[-1])
    return ds, q * ds, dv_ocean


@np.errstate(over="ignore", invalid="ignore")  # an exploding chain shows as inf and NaN, not as warnings
def run(
    config: OceanConfig,
    weights: Weights,
    inputs: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    ocean: Array | None = None,
    reset: npt.NDArray[np.bool_] | None = None,
    valid: npt.NDArray[np.bool_] | None = None,
    truncate: int | None = None,
) -> Window:
    """One window forward and backward.

    inputs (B, T) int or (B, T, M), targets (B, T) int or (B, T, outputs), ocean (B, D) or None for zeros,
    reset and valid (B, T) bool or None. `truncate` cuts the gradient of the ocean every so many steps.
    """
    B, T = inputs.shape[:2]
    o = np.zeros((B, config.width)) if ocean is None else np.array(ocean, np.float64)
    everywhere = np.ones((B, T), bool) if valid is None else valid
    count = max(int(everywhere.sum()), 1)
    tapes: list[Tape] = []
    loss = 0.0
    for t in range(T):
        if reset is not None:
            o = np.where(reset[:, t, None], 0.0, o)
        out, tape = step(config, weights, inputs[:, t], o)
        after, tape["leak"] = leak(config, weights, o, out)
        o = np.where(everywhere[:, t, None], after, o)
        losses, tape["readout"] = readout_loss(config, weights, o, targets[:, t])
        loss += float(losses[everywhere[:, t]].sum()) / count
        tapes.append(tape)

    gradients = {name: np.zeros_like(w) for name, w in weights.items()}
    do = np.zeros_like(o)
    for t in reversed(range(T)):
        live = everywhere[:, t, None]
        do = do + readout_loss_backward(config, weights, tapes[t]["readout"], live / count, gradients)
        kept, dx = leak_backward(tapes[t]["leak"], np.where(live, do, 0.0), gradients)
        through = kept + step_backward(config, weights, tapes[t], dx, gradients)
        do = np.where(live, through, do)  # a frozen ocean passes its gradient on untouched
        if reset is not None:
            do = np.where(reset[:, t, None], 0.0, do)
        if truncate is not None and t > 0 and t % truncate == 0:
            do = np.zeros_like(do)
    return Window(loss, o, gradients, do)


def step(config: OceanConfig, weights: Weights, inputs: npt.NDArray[Any], o: Array) -> tuple[Array, Tape]:
    """Inputs (B,) or (B, M) and the previous ocean (B, D) through all layers -> the last layer's output (B, D)."""
    if config.kind == "tokens":
        x = weights["embed.weight"][inputs]
    else:
        x = inputs @ weights["embed.weight"].T + weights["embed.bias"]
    tape: Tape = {"inputs": inputs, "layers": []}
    for layer in range(config.layers):
        w = _of(weights, f"blocks.{layer}.")
        x, kept = block(config, w, x, o)
        tape["layers"].append(kept)
    return x, tape


def step_backward(config: OceanConfig, weights: Weights, tape: Tape, dx: Array, into: Weights) -> Array:
    """The gradient of the last layer's output, dx (B, D) -> what the read path sends to the previous ocean (B, D).

    Adds the weights' gradients `into`.
    """
    do = np.zeros_like(dx)
    for layer in reversed(range(config.layers)):
        w = _of(weights, f"blocks.{layer}.")
        dx, do_layer = block_backward(config, w, tape["layers"][layer], dx, _of(into, f"blocks.{layer}."))
        do += do_layer
    if config.kind == "tokens":
        np.add.at(into["embed.weight"], tape["inputs"], dx)
    else:
        into["embed.weight"] += dx.T @ tape["inputs"]
        into["embed.bias"] += dx.sum(0)
    return do


def leak(config: OceanConfig, weights: Weights, o: Array, out: Array) -> tuple[Array, Tape]:
    """oₜ = λ ⊙ oₜ₋₁ + (1 − λ) ⊙ out: (B, D), (B, D) -> (B, D); λ = 0 for the relay."""
    if "decay_logit" in weights:
        decay = 0.5 * (1 + np.tanh(weights["decay_logit"] / 2))
    else:  # a float32 number, as in the model
        decay = np.float32(1 - 1 / np.array(time_constants(config))).astype(np.float64)
    return decay * o + (1 - decay) * out, {"decay": decay, "change": o - out}


def leak_backward(tape: Tape, do: Array, into: Weights) -> tuple[Array, Array]:
    """doₜ (B, D) -> what passes to oₜ₋₁ along λ, and the gradient of the last layer's output."""
    decay = tape["decay"]
    if "decay_logit" in into:
        into["decay_logit"] += (do * tape["change"]).sum(0) * decay * (1 - decay)
    return decay * do, (1 - decay) * do


def block(config: OceanConfig, w: Weights, x: Array, o: Array) -> tuple[Array, Tape]:
    """One layer: (B, D), (B, D) -> (B, D)."""
    n, ln_n = layer_norm(x, w["norm1.weight"], w["norm1.bias"])
    m, ln_m = layer_norm(o, w["norm1.weight"], w["norm1.bias"])
    heads = (len(x), config.heads, -1)
    q, k, v = (np.reshape(n @ w[f"w{i}.weight"].T, heads) for i in "qkv")  # (B, H, K)
    k_ocean, v_ocean = (np.reshape(m @ w[f"w{i}.weight"].T, heads) for i in "kv")
    s = (q * (k_ocean - k)).sum(-1, keepdims=True) / math.sqrt(q.shape[-1])
    a = 0.5 * (1 + np.tanh(s / 2))  # σ(s), which cannot overflow in this form
    y = np.reshape(a * v_ocean + (1 - a) * v, x.shape)
    x = x + y @ w["wo.weight"].T
    n2, ln_n2 = layer_norm(x, w["norm2.weight"], w["norm2.bias"])
    h = n2 @ w["w1.weight"].T + w["w1.bias"]
    cdf = 0.5 * (1 + _erf(h / math.sqrt(2)).astype(np.float64))
    g = h * cdf
    x = x + g @ w["w2.weight"].T + w["w2.bias"]
    tape = {"n": n, "m": m, "q": q, "k": k, "v": v, "k_ocean": k_ocean, "v_ocean": v_ocean, "a": a, "y": y}
    return x, tape | {"n2": n2, "h": h, "cdf": cdf, "g": g, "ln_n": ln_n, "ln_m": ln_m, "ln_n2": ln_n2}


def block_backward(
    config: OceanConfig, w: Weights, tape: Tape, dx: Array, into: Weights
) -> tuple[Array, Array]:
    """dx (B, D) of the layer's output -> those of its input and of the ocean it read."""
    # x ← x + W2 gelu(W1 LN2(x) + b1) + b2
    into["w2.weight"] += dx.T @ tape["g"]
    into["w2.bias"] += dx.sum(0)
    h = tape["h"]
    density = np.exp(-0.5 * h * h) / math.sqrt(2 * math.pi)
    dh = (dx @ w["w2.weight"]) * (tape["cdf"] + h * density)
    into["w1.weight"] += dh.T @ tape["n2"]
    into["w1.bias"] += dh.sum(0)
    dx = dx + layer_norm_backward(dh @ w["w1.weight"], tape["ln_n2"], w, into, "norm2")
    # x ← x + y Wo
    into["wo.weight"] += dx.T @ tape["y"]
    q, k, v, k_ocean, v_ocean, a = (tape[i] for i in ("q", "k", "v", "k_ocean", "v_ocean", "a"))
    dy = np.reshape(dx @ w["wo.weight"], q.shape)
    # y = a vᵒ + (1 − a) v,  a = σ(q·(kᵒ − k)/√K): first what goes to the ocean, then to the token itself
    ds, dk_ocean, dv_ocean = read_path(dy, q, a, v, v_ocean)
    dq, dk, dv = ds * (k_ocean - k), -ds * q, (1 - a) * dy
    dn, dm = np.zeros_like(dx), np.zeros_like(dx)
    for i, d_token, d_ocean in (("q", dq, None), ("k", dk, dk_ocean), ("v", dv, dv_ocean)):
        flat = np.reshape(d_token, dx.shape)
        into[f"w{i}.weight"] += flat.T @ tape["n"]
        dn += flat @ w[f"w{i}.weight"]
        if d_ocean is not None:
            flat = np.reshape(d_ocean, dx.shape)
            into[f"w{i}.weight"] += flat.T @ tape["m"]
            dm += flat @ w[f"w{i}.weight"]
    do = layer_norm_backward(dm, tape["ln_m"], w, into, "norm1")
    return dx + layer_norm_backward(dn, tape["ln_n"], w, into, "norm1"), do


def readout_loss(
    config: OceanConfig, weights: Weights, o: Array, targets: npt.NDArray[Any]
) -> tuple[Array, Tape]:
    """head(LNf(o)) and its loss at each row, (B,): cross-entropy in nats, or the mean squared error."""
    n, ln = layer_norm(o, weights["norm.weight"], weights["norm.bias"])
    outputs = n @ weights["head.weight"].T
    if config.head == "regression":
        error = outputs - targets
        return (error**2).mean(-1), {"n": n, "ln": ln, "d": 2 * error / error.shape[-1]}
    z = outputs - outputs.max(-1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    rows = np.arange(len(o))
    losses = np.log(np.exp(z).sum(-1)) - z[rows, targets]
    p[rows, targets] -= 1
    return losses, {"n": n, "ln": ln, "d": p}


def readout_loss_backward(
    config: OceanConfig, weights: Weights, tape: Tape, scale: Array, into: Weights
) -> Array:
    """Each row's share of the loss, scale (B, 1) -> the gradient of its ocean (B, D)."""
    d_outputs = tape["d"] * scale
    into["head.weight"] += d_outputs.T @ tape["n"]
    return layer_norm_backward(d_outputs @ weights["head.weight"], tape["ln"], weights, into, "norm")


def layer_norm(x: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    """LayerNorm over the last axis; keeps x̂ and 1/σ."""
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS)
    return centred * inverse * weight + bias, (centred * inverse, inverse)


def layer_norm_backward(dn: Array, kept: tuple[Array, Array], w: Weights, into: Weights, name: str) -> Array:
    """dx = (dx̂ − mean(dx̂) − x̂ mean(dx̂ x̂)) / σ with dx̂ = g dn."""
    hat, inverse = kept
    into[f"{name}.weight"] += (dn * hat).sum(0)
    into[f"{name}.bias"] += dn.sum(0)
    d = dn * w[f"{name}.weight"]
    dx: Array = (d - d.mean(-1, keepdims=True) - hat * (d * hat).mean(-1, keepdims=True)) * inverse
    return dx


def _of(weights: Weights, prefix: str) -> Weights:
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
