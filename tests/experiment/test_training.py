"""Training against torch, and its promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from proplace.core.errors import InputError
from proplace.experiment.training import accuracy, train, train_further
from support.errors import raises


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.random((300, 4))
    y = (X[:, 0] + X[:, 1] > 1.0).astype(np.int64)
    return X, y


def test_steps_are_those_of_torch(table):
    """Same start, same batches, same loss: the same network as torch's Adam gives."""
    torch = pytest.importorskip("torch")
    X, y = table
    rows = np.arange(75)  # two full batches and a smaller one
    ours = train(X, y, [rows], widths=(5, 3), epochs=4, seeds=[3])[0]
    rng = np.random.default_rng(3)
    sizes = (4, 5, 3, 1)
    module = torch.nn.Sequential(
        *(torch.nn.Linear(a, b, dtype=torch.float64) for a, b in itertools.pairwise(sizes))
    )
    with torch.no_grad():
        for layer in module:
            a, b = layer.in_features, layer.out_features
            W = rng.uniform(-1.0, 1.0, size=a * b).reshape(a, b) / np.sqrt(a)
            layer.weight.copy_(torch.tensor(W.T))
            layer.bias.copy_(torch.tensor(rng.uniform(-1.0, 1.0, size=b) / np.sqrt(a)))
    by_torch(torch, module, X, y, rows, rng, rate=0.01, epochs=4)
    assert_same(ours, module)
    further = train_further(ours, X, y, [rows[:40]], epochs=2, rate=3e-4, seeds=[5])[0]
    by_torch(torch, module, X, y, rows[:40], np.random.default_rng(5), rate=3e-4, epochs=2)
    assert_same(further, module)


def by_torch(torch, module, X, y, rows, rng, *, rate, epochs):
    """Train a torch module by the recipe, with a new optimiser as at each retraining."""
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    loss_of = torch.nn.BCEWithLogitsLoss()
    for _ in range(epochs):
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), 32):
            batch = rows[order[start : start + 32]]
            h = torch.tensor(X[batch])
            for layer in module[:-1]:
                h = torch.relu(layer(h))
            loss = loss_of(module[-1](h)[:, 0], torch.tensor(y[batch], dtype=torch.float64))
            loss = loss + 1e-4 * sum((p**2).sum() for p in module.parameters())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def assert_same(ours, module):
    for mine, theirs in zip(ours.layers, module, strict=True):
        np.testing.assert_allclose(mine.W, theirs.weight.detach().numpy(), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(mine.b, theirs.bias.detach().numpy(), rtol=1e-7, atol=1e-9)


def test_networks_do_not_depend_on_their_company(table):
    X, y = table
    parts = [np.arange(100), np.arange(50, 150), np.arange(200, 300)]
    together = train(X, y, parts, widths=(6, 6), epochs=3, seeds=[1, 2, 3])
    for part, seed, net in zip(parts, [1, 2, 3], together, strict=True):
        alone = train(X, y, [part], widths=(6, 6), epochs=3, seeds=[seed])[0]
        assert net.distance(alone) < 1e-12


def test_it_learns_and_depends_on_seed(table):
    X, y = table
    a, b = train(X, y, [np.arange(300)] * 2, widths=(8, 8), epochs=60, seeds=[1, 2])
    assert a != b
    assert accuracy(a, X, y) > 0.95
    assert accuracy(a, X, 1 - y) == pytest.approx(1.0 - accuracy(a, X, y))
    assert a.widths == (8, 8)


def test_sets_of_different_size_are_refused(table):
    X, y = table
    with raises(InputError, name="generators", match="size"):
        train(X, y, [np.arange(10), np.arange(11)], widths=(2,), epochs=1, seeds=[0, 1])
    with raises(InputError, name="generators", match="seed"):
        train(X, y, [np.arange(10)], widths=(2,), epochs=1, seeds=[0, 1])
