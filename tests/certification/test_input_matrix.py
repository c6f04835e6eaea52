"""A fixed matrix in front of the trained layers: every claim holds as without it."""

from __future__ import annotations

import sys
from fractions import Fraction as Q

import numpy as np
import pytest

import exactly
import oracles
import proplace as pp
from proplace.certification import checker
from proplace.certification.roundoff import float32_margin
from proplace.core.errors import NetworkError
from proplace.region.pieces import ConvexPiece
from proplace.search import bilevel, tree
from support.errors import raises
from support.problems import dense, problem_of


def mixed(rng, hidden, *, outputs=1, columns=4, inputs=3, width=4):
    """A network of ``inputs`` mixtures of ``columns`` columns."""
    net = dense(rng, [inputs, *([width] * hidden), outputs], bias=0.5)
    parts = {"matrix": rng.normal(size=(inputs, columns))}
    parts["matrix"][rng.random((inputs, columns)) < 0.3] = 0.0
    if rng.random() < 0.7:
        parts |= {"scale": rng.normal(size=columns), "shift": rng.normal(size=columns)}
    if rng.random() < 0.7:
        parts["offset"] = rng.normal(size=inputs)
    return pp.Network([(layer.W, layer.b) for layer in net.layers], **parts)


@pytest.mark.parametrize("hidden", [0, 1, 2])
@pytest.mark.parametrize("outputs", [1, 3])
def test_worst_case_margin_is_that_of_all_corners(hidden, outputs):
    rng = np.random.default_rng(hidden * 10 + outputs)
    for _ in range(6):
        net = mixed(rng, hidden, outputs=outputs, inputs=2, width=2)
        x, delta = rng.normal(size=net.inputs), float(rng.choice([0.0, 0.05, 0.2]))
        found = pp.worst_case(net, x, delta, target=int(outputs > 1))
        expected = oracles.milp_margin(net, x, delta, int(outputs > 1))
        assert found.margin == pytest.approx(expected, abs=1e-6)
        assert net.distance(found.network) <= delta
        assert found.network.margin(x, int(outputs > 1))[0] == found.margin


@pytest.mark.parametrize("hidden", [0, 1, 2, 3])
def test_certificates_are_true_and_accepted(hidden, tmp_path, monkeypatch):
    rng = np.random.default_rng(hidden)
    for n in range(8):
        net = mixed(rng, hidden, outputs=int(rng.choice([1, 3])))
        X, delta = rng.normal(size=(6, net.inputs)), float(rng.choice([0.01, 0.1]))
        report = pp.certify(net, X, delta, certificates=True)
        assert not report.undecided.any()
        for certificate in report.certificates:
            assert certificate.check(net).accepted
            assert exactly.is_true(net, checker.parse(certificate.text), rng)
        if n:
            continue
        net.save(tmp_path / "net.npz")
        report.certificates[0].save(tmp_path / "proof.json")
        files = [str(tmp_path / "proof.json"), str(tmp_path / "net.npz")]
        monkeypatch.setattr(sys, "argv", ["checker.py", *files])
        assert checker.main() == 0
        assert pp.Network.load(tmp_path / "net.npz") == net


def test_proof_covers_matrix():
    rng = np.random.default_rng(5)
    net = mixed(rng, 1)
    proof = pp.certify(net, rng.normal(size=net.inputs), 0.01, certificates=True).certificates[0]
    parts = dict(net.input_transform.parts)
    layers = [(layer.W, layer.b) for layer in net.layers]
    for name in ("matrix", "offset"):
        other = parts | {name: parts.get(name, np.zeros(3)) + 1e-9}
        verdict = proof.check(pp.Network(layers, **other))
        assert not verdict.accepted
        assert "another network" in verdict.reason


def test_ties_that_rounding_hides_are_never_decided_wrongly():
    """Terms that cancel inside the matrix: what is left is all rounding."""
    rng = np.random.default_rng(0)
    decided = 0
    for _ in range(300):
        columns = int(rng.integers(2, 5))
        M = rng.normal(size=(1, columns)) * 10.0 ** rng.integers(0, 9, size=columns)
        x = rng.normal(size=columns)
        x[-1] = -float(M[0, :-1] @ x[:-1]) / M[0, -1]  # the sum is nearly 0
        net = pp.Network([([[1.0]], [0.0])], matrix=M)
        report = pp.certify(net, x, 0.0)
        (exact,) = exactly.seen(net, x)
        assert report.undecided[0] or report.robust[0] == (exact >= 0)
        decided += not report.undecided[0]
    assert decided > 100


@pytest.mark.parametrize("seed", [2, 4, 5, 8, 9, 10])  # some vertices are robust
def test_both_searches_find_same_answer(seed):
    rng = np.random.default_rng(seed)
    net = mixed(rng, 2, columns=3)
    vertices = rng.normal(size=(6, 3)) * 1.5
    robust = pp.certify(net, vertices, 0.01, margin=0.01).robust
    assert robust.any()
    x = vertices[np.argmin(net.margin(vertices))]
    low, high = np.full(3, -9.0), np.full(3, 9.0)
    none = np.zeros((0, 3)), np.zeros(0), np.zeros(0)
    piece = ConvexPiece(np.vstack([vertices[robust], x]), low, high, *none)
    problem = problem_of(net, x, 0.01)
    ours, theirs = tree.solve(problem, piece), bilevel.solve(problem, piece)
    assert ours.status == theirs.status == "optimal"
    assert ours.distance == pytest.approx(theirs.distance, abs=1e-6)
    assert pp.certify(net, ours.point, 0.01).robust[0]


def test_gradients_pass_matrix():
    rng = np.random.default_rng(3)
    net, X = mixed(rng, 2), rng.normal(size=(5, 4))
    g = net.gradient(X)
    for j in range(4):
        step = np.zeros(4)
        step[j] = 1e-6
        slope = (net.margin(X + step) - net.margin(X - step)) / 2e-6
        np.testing.assert_allclose(g[:, j], slope, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_float32_margins_cover_float32_runs(seed):
    """Scaling, a matrix and layers in float32, against the exact logits."""
    rng = np.random.default_rng(seed)
    columns, inputs = 5, 3
    parts = {
        "scale": rng.uniform(0.01, 3.0, columns).astype(np.float32),
        "shift": (rng.normal(size=columns) * 50).astype(np.float32),
        "matrix": rng.normal(size=(inputs, columns)).astype(np.float32),
        "offset": rng.normal(size=inputs).astype(np.float32),
    }
    layers = [
        (rng.normal(size=(m, n)).astype(np.float32), rng.normal(size=m).astype(np.float32))
        for n, m in ((inputs, 4), (4, 1))
    ]
    net = pp.Network(layers, **parts, precision="float32")
    shifts = pp.Shifts.of(net, 0.0)
    shares = []
    for x in rng.normal(size=(40, columns)) * 100:
        bound = float32_margin(net, shifts, x[None])[0]
        h = x.astype(np.float32) * parts["scale"] + parts["shift"]
        h = parts["matrix"] @ h + parts["offset"]
        h = np.maximum(layers[0][0] @ h + layers[0][1], np.float32(0))
        z = float((layers[1][0] @ h + layers[1][1])[0])
        rational = [(exactly.rational(W), exactly.rational(b)) for W, b in layers]
        exact = exactly.margin(rational, exactly.seen(net, x), 1)
        shares.append(float(abs(Q(z) - exact)) / bound)
    assert max(shares) <= 1.0
    assert max(shares) > 1e-3


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"matrix": np.ones((2, 4))}, "input matrix"),
        ({"matrix": np.ones(3)}, "input matrix"),
        ({"matrix": np.ones((3, 4)), "scale": np.ones(3)}, "input scale"),
        ({"matrix": np.ones((3, 4)), "offset": np.ones(4)}, "input offset"),
        ({"offset": np.ones(3)}, "input offset"),
        ({"matrix": [[np.inf] * 4] * 3}, "input matrix"),
    ],
)
def test_matrix_that_does_not_fit_is_refused(parts, name):
    with raises(NetworkError, name=name):
        pp.Network([(np.ones((1, 3)), [0.0])], **parts)
