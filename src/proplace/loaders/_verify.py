"""Comparison of a network that was read with the model it was read from.

A model can do more than its list of layers says (a custom ``forward``, a hook, a subclass), so both
are run on random rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.schema import Continuous

if TYPE_CHECKING:
    from collections.abc import Collection

    from proplace.core.network import Array, Network, Precision
    from proplace.schema import Schema

Form = Literal["logits", "sigmoid", "softmax", "log_softmax"]

# Rounding error of one forward pass, relative to the sum of absolute values that it adds up.
_ROUNDING = {"float64": 1e-9, "float32": 1e-5}


def probe_rows(network: Network, n: int = 64) -> Array:
    """Random rows of very different sizes around the centre of the input transform.

    Small rows show the biases, large ones switch every ReLU on and off.
    """
    U = _of_all_sizes(n, network.inputs)
    if network.shift is not None:
        U = U - network.shift
    if network.scale is not None:
        U = U / np.where(network.scale == 0.0, 1.0, network.scale)
    return U


def probe_table(schema: Schema, n: int = 64, integers: Collection[str] = ()) -> pd.DataFrame:
    """Make up such rows for a table: numbers of very different sizes, and every label.

    Columns of ``integers`` hold whole numbers.
    """
    rng = np.random.default_rng(1)
    U = _of_all_sizes(n, len(schema.features))
    cells: dict[str, Any] = {}
    for feature, column in zip(schema.features, U.T, strict=True):
        if isinstance(feature, Continuous):
            cells[feature.name] = feature.offset + feature.scale * column
            if feature.name in integers:
                cells[feature.name] = np.round(cells[feature.name])
        else:
            known = feature.labels
            cells[feature.name] = [known[i % len(known)] for i in rng.permutation(n)]
    return pd.DataFrame(cells)


def _of_all_sizes(n: int, columns: int) -> Array:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, columns)) * 10.0 ** rng.uniform(-2.0, 3.0, size=(n, 1))


def form_of(
    network: Network,
    X: Array,
    outputs: npt.ArrayLike,
    arithmetic: Precision = "float64",
    first: Form = "logits",
) -> Form | None:
    """Say what ``outputs`` of the original model on ``X`` are: logits or which function of them.

    None means that they are not what the network computes. Where several forms fit, as sigmoid and
    softmax do on rows with large logits alone, it is the ``first`` that was expected.
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
    for form, expected, bound in sorted(candidates, key=lambda entry: entry[0] != first):
        if form.endswith("softmax") and network.outputs == 1:
            continue  # constant, so it would agree with a constant model
        if bool((np.abs(Y - expected) <= bound).all()):
            return form
    return None


def probabilities_of(outputs: Array, form: Form) -> Array:
    """Return the probability of each class from what a model gives: logits, or a function of them."""
    P = np.asarray(outputs, dtype=np.float64)
    if form == "log_softmax":
        return np.asarray(np.exp(P))
    if P.shape[1] == 1:
        with np.errstate(over="ignore"):
            one = P if form == "sigmoid" else 1.0 / (1.0 + np.exp(-P))
        return np.hstack([1.0 - one, one])
    if form == "logits":
        P = np.exp(P - P.max(axis=1, keepdims=True))
        P = P / P.sum(axis=1, keepdims=True)
    return P


def allowance(network: Network, X: Array, arithmetic: Precision) -> Array:
    """How far rounding may take each row's logits, shape (n, 1)."""
    return _ROUNDING[arithmetic] * _magnitude(network, X)


def _magnitude(network: Network, X: Array) -> Array:
    """Sum of the absolute values of all terms behind each row's logits, shape (n, 1)."""
    m = network.input_transform.size(X)
    for layer in network.layers:
        m = m @ np.abs(layer.W).T + np.abs(layer.bias)
    largest: Array = m.max(axis=1, keepdims=True)
    return largest
