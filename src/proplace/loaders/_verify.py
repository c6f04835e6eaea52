"""Comparison of a network that was read with the model it was read from.

A model can do more than its list of layers says (a custom ``forward``, a hook, a subclass), so both
are run on random rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from proplace.network import Array, Network

Form = Literal["logits", "sigmoid", "softmax", "log_softmax"]
Arithmetic = Literal["float64", "float32", "half"]

# Rounding error of one forward pass, relative to the sum of absolute values that it adds up.
_ROUNDING = {"float64": 1e-9, "float32": 1e-5, "half": 2e-2}


def probe_rows(network: Network, n: int = 64) -> Array:
    """Random rows of very different sizes around the centre of the input transform.

    Small rows show the biases, large ones switch every ReLU on and off.
    """
    rng = np.random.default_rng(0)
    U = rng.standard_normal((n, network.inputs)) * 10.0 ** rng.uniform(-2.0, 3.0, size=(n, 1))
    if network.shift is not None:
        U = U - network.shift
    if network.scale is not None:
        U = U / np.where(network.scale == 0.0, 1.0, network.scale)
    return U


def form_of(
    network: Network, X: Array, outputs: npt.ArrayLike, arithmetic: Arithmetic = "float64"
) -> Form | None:
    """Say what ``outputs`` of the original model on ``X`` are: logits or which function of them.

    None means that they are not what the network computes.
    """
    Y = np.asarray(outputs, dtype=np.float64)
    logits = network.logits(X)
    if Y.shape == (len(X),) and network.outputs == 1:
        Y = Y[:, None]
    if Y.shape != logits.shape:
        return None
    tolerance = allowance(network, X, arithmetic)
    # Functions of the logits round once more, and their values are near 1.
    slack = 2.0 * tolerance + _ROUNDING[arithmetic] * 0.1
    log_softmax = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-logits))
    candidates: list[tuple[Form, Array, Array]] = [
        ("logits", logits, tolerance),
        ("sigmoid", sigmoid, slack),
        ("softmax", np.exp(log_softmax), slack),
        ("log_softmax", log_softmax, slack),
    ]
    for form, expected, bound in candidates:
        if form.endswith("softmax") and network.outputs == 1:
            continue  # constant, so it would agree with a constant model
        if bool((np.abs(Y - expected) <= bound).all()):
            return form
    return None


def allowance(network: Network, X: Array, arithmetic: Arithmetic) -> Array:
    """How far rounding may take each row's logits, shape (n, 1)."""
    return _ROUNDING[arithmetic] * _magnitude(network, X)


def _magnitude(network: Network, X: Array) -> Array:
    """Sum of the absolute values of all terms behind each row's logits, shape (n, 1)."""
    m = np.abs(X)
    if network.scale is not None:
        m = m * np.abs(network.scale)
    if network.shift is not None:
        m = m + np.abs(network.shift)
    for layer in network.layers:
        m = m @ np.abs(layer.W).T + np.abs(layer.bias)
    largest: Array = m.max(axis=1, keepdims=True)
    return largest
