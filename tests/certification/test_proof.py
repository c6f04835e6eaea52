"""Certificates: everything proved is accepted, everything accepted is true."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import exactly
import proplace as pp
from changed_proofs import mutants
from oracles import accepted_rows, random_case, scale_of
from proplace.certification import batched_bnb, checker, proof
from proplace.certification.batched_bnb import Nodes
from proplace.certification.bounds import Abstraction, chords, start_slopes
from proplace.certification.certificates import Evidence
from proplace.certification.dual_bounds import DualBounds
from proplace.certification.engine import Rows, traced_least_values
from proplace.certification.rounding import Enclosure
from proplace.core.errors import CertificateError


def cases(seed, hidden, count, **options):
    for i in range(count):
        yield random_case(np.random.default_rng([seed, hidden, i]), hidden, **options)


# -- what the producer makes is accepted ---------------------------------------------------------


@pytest.mark.parametrize("hidden", range(5))
def test_every_verdict_has_a_certificate_that_is_accepted(hidden):
    robust = 0
    for case in cases(1, hidden, 120, rows=3):
        plain = pp.certify(case.net, case.X, case.delta, case.target)
        report = pp.certify(case.net, case.X, case.delta, case.target, certificates=True)
        np.testing.assert_array_equal(report.robust, plain.robust)
        assert not report.undecided.any()
        for i, certificate in enumerate(report.certificates):
            assert certificate.verdict == ("robust" if plain.robust[i] else "not robust")
            verdict = certificate.check(case.net)
            assert verdict.accepted, verdict.reason
            robust += plain.robust[i]
    assert robust > 40  # and not only in one way


@pytest.mark.parametrize(
    ("sizes", "delta"), [((6, 20, 20, 1), 0.03), ((6, 12, 12, 12, 1), 0.03), ((6, 15, 15, 3), 0.03)]
)
def test_rows_near_the_margin_need_trees_and_get_them(sizes, delta):
    """Margins just below each row's worst one: the bounds do not reach them without splits."""
    net, X = accepted_rows(5, sizes, 40)
    target = 1
    report = pp.certify(net, X, delta, target, exact_margin=True)
    splits = 0
    for x, lower in zip(X[:12], report.lower[:12], strict=True):
        below = float(lower) - 1e-6
        found = pp.certify(net, x, delta, target, margin=below, certificates=True)
        assert found.robust[0]
        certificate = found.certificates[0]
        verdict = certificate.check(net)
        assert verdict.accepted, verdict.reason
        splits += sum(isinstance(n, list) for t in certificate.facts["trees"] for n in t)
        above = pp.certify(net, x, delta, target, margin=float(lower) + 1e-6, certificates=True)
        assert above.certificates[0].verdict == "not robust"
        assert above.certificates[0].check(net).accepted
    assert splits >= 10


@pytest.mark.parametrize("sizes", [(5, 8, 8, 1), (5, 6, 6, 6, 1), (4, 6, 6, 6, 3)])
def test_trees_of_the_linear_program_become_certificates(sizes, monkeypatch):
    """With the batched tree switched off all splits, empty branches too, come from the LP's duals."""
    monkeypatch.setattr(batched_bnb, "NODES_PER_ROW", 0)
    leaf, empty = DualBounds.leaf, []

    def watching(bounds, node, threshold):
        empty.append(node.empty)
        return leaf(bounds, node, threshold)

    monkeypatch.setattr(DualBounds, "leaf", watching)
    rng = np.random.default_rng(3)
    proved = 0
    for seed in range(12):
        net = pp.Network(
            [
                (rng.normal(size=(m, n)), 0.3 * rng.normal(size=m))
                for n, m in itertools.pairwise(sizes)
            ]
        )
        x, delta = rng.normal(size=sizes[0]), 0.1
        target = int(net.predict(x)[0])
        lower = float(pp.certify(net, x, delta, target, exact_margin=True).lower[0])
        report = pp.certify(net, x, delta, target, margin=lower - 1e-7, certificates=True)
        verdict = report.certificates[0].check(net)
        assert verdict.accepted, (seed, verdict.reason)
        proved += len(report.certificates[0].facts["trees"][0]) > 1
    assert proved >= 3
    assert any(empty) or len(sizes) > 4


def test_ties_are_proved_where_the_arithmetic_allows():
    """The worst margin is exactly the wanted one: an exact checker can still say yes."""
    net = pp.Network([(np.eye(2), [0.0, 0.0]), ([[1.0, 1.0]], [-1.0])])
    report = pp.certify(net, [[0.75, 0.25], [0.5, 0.25]], 0.0, certificates=True)
    assert report.robust.tolist() == [True, False]
    assert all(certificate.check(net).accepted for certificate in report.certificates)


def test_certificates_of_slices_and_undecided_rows():
    net, X = accepted_rows(5, (6, 20, 20, 20, 1), 30)
    report = pp.certify(net, X, 0.02, certificates=True, time_limit=1e-9)
    certificates = report.certificates
    assert len(certificates) == len(X)
    for i, undecided in enumerate(report.undecided):
        assert (certificates[i] is None) == undecided
    assert certificates[-1:] == [certificates[-1]]
    with pytest.raises(IndexError):
        certificates[len(X)]
    assert pp.certify(net, X, 0.02).certificates is None


def test_evidence_of_a_verdict_that_rounding_turned_gives_no_certificate():
    """The sum is 0 in floats and negative in truth: there is a proof, but of the opposite."""
    net = pp.Network([([[0.1]], [-0.30000000000000004])])
    shifts, point = pp.Shifts.of(net, 0.0), np.array([3.0])
    rows = Rows(point[None], np.zeros(1))
    found, trace = traced_least_values(Abstraction(net, shifts), rows, net.objectives(1))
    assert found.lower[0] == 0.0
    evidence = Evidence(point, float(found.lower[0]), float(found.upper[0]), trace)
    assert evidence.certificate(net, shifts, 1, 0.0) is None
    assert evidence.certificate(net, shifts, 1, -1.0).check(net).accepted


# -- the fast bound is never above the exact one -------------------------------------------------


def random_nodes(root, rng, split):
    """Leaves of a small random tree with random multipliers."""
    widths = [level.L_min.shape[1] for level in root.preactivations]
    picks = []
    if split and widths:
        i = int(rng.integers(len(widths)))
        picks = [(i, int(rng.integers(widths[i])))]
    leaves = []
    for sign in (-1, 1) if picks else (0,):
        splits = [np.zeros((1, n), np.int8) for n in widths]
        for i, k in picks:
            splits[i][0, k] = sign
        alpha = [rng.choice([0.0, 1.0, rng.uniform()], size=(1, n)) for n in widths]
        gamma = [rng.normal(size=(1, n)) * 0.3 * (rng.random((1, n)) < 0.4) for n in widths]
        leaves.append(Nodes(np.zeros(1, np.intp), splits, alpha, gamma))
    return Nodes(
        np.zeros(len(leaves), np.intp),
        *(
            [
                np.concatenate(parts)
                for parts in zip(*(getattr(leaf, name) for leaf in leaves), strict=True)
            ]
            for name in ("splits", "alpha", "gamma")
        ),
    )


@pytest.mark.parametrize("hidden", range(5))
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e6])
def test_the_fast_bound_is_proved_by_the_exact_checker_and_nearly_as_good(hidden, scale):
    """Random multipliers, random trees: exact arithmetic proves the very float that the pass gave."""
    rng = np.random.default_rng([9, hidden])
    for n, case in enumerate(cases(2, hidden, 25, rows=1)):
        net = pp.Network(
            [
                (layer.W * (scale if i == 0 else 1.0), layer.b)
                for i, layer in enumerate(case.net.layers)
            ],
            scale=case.net.scale,
            shift=case.net.shift,
        )
        shifts = pp.Shifts.of(net, case.delta)
        abstraction = Abstraction(net, shifts)
        lower, upper, nodes, tighten = [], [], None, bool(n % 2)
        if net.widths:
            root = abstraction.interval_bounds(net.transform(case.X))
            lower = start_slopes(root)
            upper = [np.round(chords(level, None)[0], 6) for level in root.preactivations]
            nodes = random_nodes(root, rng, split=n % 3 > 0)
        enclosure = Enclosure.of(net, shifts, case.X, lower, upper, tighten=tighten)
        values, trees = [], []
        for c in net.objectives(case.target):
            values.append(enclosure.bounds(c, nodes)[0].min())
            trees.append(
                [{}] if nodes is None else proof.tree(nodes, [layer[0] for layer in lower])
            )
        facts = proof.claim(
            proof.digest(net), shifts, case.X[0], case.target, float(min(values)), "robust"
        )
        facts |= {
            "tighten": tighten,
            "lower": [layer[0].tolist() for layer in lower],
            "upper": [layer[0].tolist() for layer in upper],
            "trees": trees,
        }
        verdict = pp.Certificate.of(facts).check(net)
        assert verdict.accepted, verdict.reason
        size = scale_of(min(values)) * max(1.0, scale)
        facts["margin"] = float(min(values)) + 1e-9 * size
        assert not pp.Certificate.of(facts).check(net).accepted


@pytest.mark.parametrize("sizes", [(400, 1), (400, 3, 1), (40, 200, 3, 1)])
def test_the_fast_bound_knows_how_sums_of_many_terms_round(sizes):
    """Large terms that cancel: what the float sum has too much is more than its own last bit."""
    rng = np.random.default_rng(8)
    for _ in range(10):
        layers = []
        for n, m in itertools.pairwise(sizes):
            half = rng.normal(size=(m, n // 2)) * 1e6 if n > 10 else rng.normal(size=(m, n))
            W = np.hstack([half, -half]) if n > 10 else half
            layers.append((W[:, rng.permutation(n)] if n > 10 else W, np.ones(m)))
        net = pp.Network(layers)
        x = np.full((1, sizes[0]), 1.0 / 3.0)
        shifts = pp.Shifts.of(net, 0.0)
        lower, upper, nodes = [], [], None
        if net.widths:
            root = Abstraction(net, shifts).interval_bounds(x)
            lower, upper = (
                start_slopes(root),
                [chords(level, None)[0] for level in root.preactivations],
            )
            nodes = batched_bnb.root_nodes(root, np.arange(1))
        for target in (0, 1):
            enclosure = Enclosure.of(net, shifts, x, lower, upper, tighten=False)
            value = float(enclosure.bounds(net.objectives(target)[0], nodes)[0][0])
            facts = proof.claim(proof.digest(net), shifts, x[0], target, value, "robust")
            facts |= {"tighten": False, "trees": [[{}]]}
            facts |= {
                "lower": [v[0].tolist() for v in lower],
                "upper": [v[0].tolist() for v in upper],
            }
            assert pp.Certificate.of(facts).check(net).accepted


# -- what is changed is rejected, or still true --------------------------------------------------


@pytest.mark.parametrize(("hidden", "seed"), [(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6)])
def test_a_changed_certificate_is_rejected_or_still_true(hidden, seed):
    rng = np.random.default_rng(seed)
    tried = accepted = 0
    for case in cases(30 + seed, hidden, 4 - hidden, rows=1, width=3, inputs=2):
        worst = pp.certify(case.net, case.X, case.delta, case.target, exact_margin=True).lower
        for row, worst_margin in enumerate(worst):
            for margin in (float(worst_margin) - 0.01, float(worst_margin) + 0.01):
                report = pp.certify(
                    case.net, case.X[row], case.delta, case.target, margin=margin, certificates=True
                )
                facts = report.certificates[0].facts
                for path, mutant in mutants(facts):
                    tried += 1
                    verdict = checker.check(json.dumps(mutant), proof.parameters(case.net))
                    if verdict.accepted:
                        accepted += 1
                        assert path[0] not in ("network", "format", "verdict"), path
                        assert exactly.is_true(case.net, mutant, rng), (path, mutant)
    assert tried > 200
    assert accepted  # some changes are harmless: a smaller margin, another slope


def test_what_must_be_rejected_is_rejected():
    net, X = accepted_rows(5, (4, 6, 6, 1), 30)
    report = pp.certify(net, X, 0.02, certificates=True)
    row = int(np.flatnonzero(report.robust)[0])
    facts = report.certificates[row].facts

    def verdict(**new):
        return checker.check(json.dumps({**facts, **new}), proof.parameters(net))

    assert verdict().accepted
    assert "digests differ" in verdict(network="0" * 64).reason
    assert "margin" in verdict(margin=float(report.upper[row]) + 1.0).reason
    assert "margin" in verdict(delta=[[0.5, 0.5]] * 3).reason
    assert "outside [0, 1]" in verdict(lower=[[1.5] * 6]).reason
    assert "outside [0, 1]" in verdict(trees=[[{"lower": [[1, 0, -0.1]]}]]).reason
    assert "ends before" in verdict(trees=[[[1, 0], {}]]).reason
    assert "ends before" in verdict(trees=[[]]).reason
    assert "goes on" in verdict(trees=[[{}, {}]]).reason
    assert "twice" in verdict(trees=[[[1, 0], [1, 0], {}, {}, {}]]).reason
    assert "layer 0" in verdict(trees=[[[0, 0], {}, {}]]).reason
    assert "neuron" in verdict(trees=[[[1, 6], {}, {}]]).reason
    assert "negative" in verdict(delta=[[0.02, -0.02]] * 3).reason
    assert "unknown" in verdict(more=1).reason
    other = pp.Network([(layer.W, layer.b) for layer in net.layers], scale=np.ones(4))
    assert "digests differ" in report.certificates[row].check(other).reason


# -- values, files -------------------------------------------------------------------------------


def test_a_certificate_is_a_value_and_a_file(tmp_path):
    net, X = accepted_rows(5, (4, 6, 6, 1), 30)
    report = pp.certify(net, X, 0.02, certificates=True)
    certificate = report.certificates[0]
    certificate.save(tmp_path / "proof.json")
    again = pp.Certificate.load(tmp_path / "proof.json")
    assert again == certificate
    assert again.digest == certificate.digest
    assert len(certificate.digest) == 64
    assert again.digest != report.certificates[1].digest
    (tmp_path / "spaced.json").write_text(json.dumps(certificate.facts, indent=3))
    assert pp.Certificate.load(tmp_path / "spaced.json").digest == certificate.digest
    assert json.loads(certificate.to_json())["input"] == X[0].tolist()
    for name, text in [("a", "["), ("b", "[]"), ("c", '{"verdict": 3}'), ("d", '{"a":1,"a":2}')]:
        (tmp_path / name).write_text(text)
        with pytest.raises(CertificateError):
            pp.Certificate.load(tmp_path / name)
    with pytest.raises(CertificateError):
        pp.Certificate.load(tmp_path / "missing.json")
