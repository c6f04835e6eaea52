r"""Training and retraining of small ReLU networks, several at once.

The recipe of the published runs: Adam with learning rate 0.01 on batches of 32 (shuffled each epoch,
the last one may be smaller), minimising

.. math::
    \frac{1}{|B|} \sum_{i \in B} \log\!\big(1 + e^{-(2 y_i - 1) f_\theta(x_i)}\big)
        + 10^{-4} \, \|\theta\|_2^2

over all weights and biases :math:`\theta`, which start uniformly in
:math:`\pm 1/\sqrt{\text{inputs of the layer}}`. Networks that are trained on the same number of rows
go through the batches side by side, as stacked matrices. Each has its own generator, so the result
for one does not depend on the others.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import InputError
from proplace.core.network import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from proplace.core.network import Array

    Rows = npt.NDArray[np.int64]

RATE, BATCH, DECAY = 0.01, 32, 1e-4
_BETA = (0.9, 0.999)
_TINY = 1e-8


def train(
    X: Array,
    y: Rows,
    rows: Sequence[Rows],
    *,
    widths: tuple[int, ...],
    epochs: int,
    seeds: Sequence[int],
) -> list[Network]:
    """Train one network per entry of ``rows`` (row positions, all of the same number) and ``seeds``."""
    generators = [np.random.default_rng(seed) for seed in seeds]
    shapes = _shapes((X.shape[1], *widths, 1))
    starts = [_start(rng, shapes) for rng in generators]
    return _descend(X, y, rows, starts, shapes, epochs=epochs, rate=RATE, generators=generators)


def train_further(
    net: Network,
    X: Array,
    y: Rows,
    rows: Sequence[Rows],
    *,
    epochs: int,
    rate: float,
    seeds: Sequence[int],
) -> list[Network]:
    """Train a network further, once per entry of ``rows`` and ``seeds``: incremental retraining."""
    generators = [np.random.default_rng(seed) for seed in seeds]
    shapes = _shapes((net.inputs, *net.widths, 1))
    start = np.concatenate([part for n in net.layers for part in (n.W.T.ravel(), n.bias)])
    starts = [start] * len(generators)
    return _descend(X, y, rows, starts, shapes, epochs=epochs, rate=rate, generators=generators)


def accuracy(net: Network, X: Array, y: Rows) -> float:
    """Share of rows whose class is the label."""
    return float((net.predict(X) == y).mean())


def _descend(
    X: Array,
    y: Rows,
    rows: Sequence[Rows],
    starts: list[Array],
    shapes: list[tuple[int, int]],
    *,
    epochs: int,
    rate: float,
    generators: list[np.random.Generator],
) -> list[Network]:
    """Adam from given parameters, for all networks side by side."""
    if len({len(part) for part in rows}) != 1 or len(rows) != len(generators):
        raise InputError(
            "give one seed per set of rows, and sets of the same size", name="generators"
        )
    theta, parts = np.stack(starts), np.stack(rows)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    step = 0
    for _ in range(epochs):
        order = np.stack([rng.permutation(parts.shape[1]) for rng in generators])
        shuffled = np.take_along_axis(parts, order, axis=1)
        for start in range(0, parts.shape[1], BATCH):
            batch = shuffled[:, start : start + BATCH]
            step += 1
            gradient = _gradient(_matrices(theta, shapes), X[batch], y[batch])
            gradient += 2.0 * DECAY * theta
            first += (1.0 - _BETA[0]) * (gradient - first)
            second += (1.0 - _BETA[1]) * (gradient * gradient - second)
            size = rate * np.sqrt(1.0 - _BETA[1] ** step) / (1.0 - _BETA[0] ** step)
            theta -= size * first / (np.sqrt(second) + _TINY * np.sqrt(1.0 - _BETA[1] ** step))
    matrices = _matrices(theta, shapes)
    return [
        Network([(W[m].T, b[m, 0]) for W, b in zip(matrices[::2], matrices[1::2], strict=True)])
        for m in range(len(generators))
    ]


def _shapes(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Shapes of the weights (in, out) and biases (1, out), in turn."""
    return [shape for a, b in itertools.pairwise(sizes) for shape in ((a, b), (1, b))]


def _start(rng: np.random.Generator, shapes: list[tuple[int, int]]) -> Array:
    """Draw the parameters of one network. A bias (1, out) has the range of its weights (in, out)."""
    inputs = [shapes[i - i % 2][0] for i in range(len(shapes))]
    return np.concatenate(
        [
            rng.uniform(-1.0, 1.0, size=a * b) / np.sqrt(n)
            for (a, b), n in zip(shapes, inputs, strict=True)
        ]
    )


def _matrices(theta: Array, shapes: list[tuple[int, int]]) -> list[Array]:
    """Views of the parameters: weights (networks, in, out) and biases (networks, 1, out) in turn."""
    ends = np.cumsum([a * b for a, b in shapes])
    return [
        theta[:, end - a * b : end].reshape(-1, a, b)
        for (a, b), end in zip(shapes, ends, strict=True)
    ]


def _gradient(matrices: list[Array], X: Array, y: Rows) -> Array:
    """Gradient of the mean logistic loss, one row per network."""
    hidden = [X]
    for W, b in zip(matrices[:-2:2], matrices[1:-2:2], strict=True):
        hidden.append(np.maximum(hidden[-1] @ W + b, 0.0))
    logits = hidden[-1] @ matrices[-2] + matrices[-1]
    back = (1.0 / (1.0 + np.exp(-np.clip(logits, -500.0, 500.0))) - y[:, :, None]) / X.shape[1]
    parts: list[Array] = []
    for layer in range(len(hidden) - 1, -1, -1):
        h, W = hidden[layer], matrices[2 * layer]
        parts += [back.sum(axis=1), (h.transpose(0, 2, 1) @ back).reshape(len(X), -1)]
        if layer:
            back = (back @ W.transpose(0, 2, 1)) * (h > 0.0)
    return np.concatenate(parts[::-1], axis=1)
