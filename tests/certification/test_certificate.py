"""Certificates of all kinds: everything proved is accepted, everything accepted is true."""

from __future__ import annotations

import itertools
import json
import math
import time
from fractions import Fraction as Q
from pathlib import Path

import numpy as np
import pytest

import exactly
import proplace as pp
from certification.problems import (
    KINDS,
    Problem,
    counted_work,
    full_tree,
    random_proof,
    whole_numbers,
)
from changed_proofs import mutants
from oracles import accepted_rows, random_case, scale_of
from proplace.certification import (
    Evidence,
    InputBoxes,
    PointRobustness,
    batched_bnb,
    checker,
    enclosure,
    proofs,
    robustness,
)
from proplace.certification import certificate as documents
from proplace.certification.bounds import Abstraction, chords, start_slopes
from proplace.certification.enclosure import Enclosure
from proplace.certification.engine import Rows, traced_least_values
from proplace.certification.node_program import DualBounds
from proplace.core.errors import CertificateError
from support.problems import dense

pytestmark = pytest.mark.usefixtures("any_margin")

OLD = json.loads((Path(__file__).parent / "files" / "certificates_0_1.json").read_text())
FORMATS = {"delta": checker.FORMAT, "shifts": checker.FORMAT_BOX, "inputs": checker.FORMAT_INPUTS}


# -- what the producer makes is accepted ---------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", range(5))
def test_every_verdict_has_certificate_that_is_accepted(hidden, kind):
    rng = np.random.default_rng([1, hidden, KINDS.index(kind)])
    boxed = kind.startswith("inputs")
    found = {"robust": 0, "not robust": 0}
    for _ in range(8 if boxed else 40):
        problem = Problem.random(rng, hidden, kind, rows=2, **({"width": 3} if boxed else {}))
        margin = float(2.0 * rng.normal()) - 0.5 if boxed else 0.0
        plain = problem.certify(margin=margin)
        report = problem.certify(margin=margin, certificates=True)
        np.testing.assert_array_equal(report.robust, plain.robust)
        assert not report.undecided.any()
        for i, certificate in enumerate(report.certificates):
            facts, ends = certificate.facts, problem.ends(i)
            assert facts["format"] == FORMATS[kind.split()[0]]
            assert facts["network"] == documents.digest(problem.net)
            assert facts["input"] == problem.X[i].tolist()
            assert facts.get("shifts") == (problem.given and problem.given.digest)
            assert ("delta" in facts) == (problem.given is None)
            low, high = (end.tolist() for end in ends) if boxed else (None, None)
            assert (facts.get("low"), facts.get("high")) == (low, high)
            verdict = problem.check(certificate)
            assert verdict.accepted, verdict.reason
            assert (verdict.statement.low, verdict.statement.high) == (low, high)
            assert certificate.verdict == ("robust" if plain.robust[i] else "not robust")
            assert problem.check(certificate, box=ends).accepted == (not boxed or report.robust[i])
            assert problem.is_true(facts, rng)
            found[certificate.verdict] += 1
    assert min(found.values()) >= (2 if boxed else 4)


def around(rng, net, X, kind):
    """A shift set around a network, and boxes around its rows if the kind has any."""
    if kind == "shifts":
        ends = [
            [(p.W + t * rng.uniform(0.0, 0.06, p.W.shape), p.b) for p in net.layers]
            for t in (-1, 1)
        ]
        return Problem(net, pp.Shifts(*(net.with_layers(pairs) for pairs in ends)), X, 1)
    if kind == "inputs":
        return Problem(net, pp.Shifts.of(net, 0.02), X, 1, (X - 0.1, X + 0.1))
    return Problem(net, pp.Shifts.of(net, 0.03), X, 1)


DEEP = [(6, 20, 20, 1), (6, 12, 12, 12, 1), (6, 15, 15, 3)]


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("kind", "sizes", "rows", "least"),
    [
        *(("delta", sizes, 12, 10) for sizes in DEEP),
        *(("shifts", sizes, 8, 5) for sizes in DEEP),
        *(("inputs", sizes, 3, 1) for sizes in [(6, 12, 1), (5, 8, 8, 1), (5, 6, 6, 3)]),
    ],
)
def test_rows_near_margin_get_trees(kind, sizes, rows, least):
    """Margins just below each row's worst one: the bounds do not reach them without splits."""
    net, X = accepted_rows(5, sizes, 40)
    problem = around(np.random.default_rng([2, *sizes]), net, X[:rows], kind)
    splits = 0
    for i, worst in enumerate(problem.certify(exact_margin=True).lower):
        for away in (-1e-6, 1e-6):
            certificate = problem.row(i).certificate(float(worst) + away)
            assert certificate.verdict == ("robust" if away < 0 else "not robust")
            verdict = problem.check(certificate)
            assert verdict.accepted, verdict.reason
            trees = certificate.facts.get("trees", [])
            splits += sum(isinstance(node, list) for tree in trees for node in tree)
    assert splits >= least


@pytest.mark.parametrize("sizes", [(5, 8, 8, 1), (5, 6, 6, 6, 1), (4, 6, 6, 6, 3)])
def test_trees_of_linear_program_become_certificates(sizes, monkeypatch):
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
        net = dense(rng, sizes, bias=0.3)
        x, delta = rng.normal(size=sizes[0]), 0.1
        target = int(net.predict(x)[0])
        lower = float(pp.certify(net, x, delta, target, exact_margin=True).lower[0])
        report = pp.certify(net, x, delta, target, margin=lower - 1e-7, certificates=True)
        verdict = report.certificates[0].check(net)
        assert verdict.accepted, (seed, verdict.reason)
        proved += len(report.certificates[0].facts["trees"][0]) > 1
    assert proved >= 3
    assert any(empty) or len(sizes) > 4


def test_ties_are_proved_where_arithmetic_allows():
    """The worst-case margin equals the required one: an exact checker can still accept."""
    net = pp.Network([(np.eye(2), [0.0, 0.0]), ([[1.0, 1.0]], [-1.0])])
    report = pp.certify(net, [[0.75, 0.25], [0.5, 0.25]], 0.0, certificates=True)
    assert report.robust.tolist() == [True, False]
    assert all(certificate.check(net).accepted for certificate in report.certificates)


@pytest.mark.parametrize("kind", ["delta", "shifts"])
@pytest.mark.parametrize("hidden", [0, 1])
def test_ties_are_exact(hidden, kind):
    """A margin that is just kept is kept: one float more is not."""
    rng = np.random.default_rng([4, hidden])
    for _ in range(60):
        problem = whole_numbers(rng, hidden, kind)
        worst = float(problem.worst())
        assert Q(worst) == problem.worst()
        above, below = (math.nextafter(worst, way) for way in (math.inf, -math.inf))
        shifted = pp.worst_case(problem.net, problem.X[0], problem.shifts, problem.target).network
        for margin in (below, worst, above):
            assert problem.checked(problem.linear_proof(margin)).accepted == (margin <= worst)
            fields = {"shifted": documents.shifted_fields(shifted)}
            facts = problem.claim(margin, "not robust") | fields
            assert problem.checked(facts).accepted == (margin > worst)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("kind", "hidden"),
    [("delta", 0), ("delta", 1), ("shifts", 0), ("shifts", 1), ("inputs", 0), ("inputs shifts", 0)],
)
@pytest.mark.parametrize("certificates", [False, True])
def test_last_bit_is_decided_by_proof(kind, hidden, certificates):
    """The worst-case margin and its two neighbours among the floats."""
    rng = np.random.default_rng([3, hidden, len(kind)])
    decided = 0
    for _ in range(40):
        problem = Problem.random(rng, hidden, kind)
        worst = problem.worst()
        near = float(worst)
        for margin in (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf)):
            report = problem.certify(margin=margin, certificates=certificates)
            if not report.undecided[0]:
                decided += 1
                assert report.robust[0] == (worst >= Q(margin))
    assert decided >= 60


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


def test_each_certificate_is_that_of_its_row(monkeypatch):
    """Also of a table that is decided in several parts."""
    case = random_case(np.random.default_rng(5), 2, rows=8)
    whole = pp.certify(case.net, case.X, 0.01, case.target, certificates=True)
    monkeypatch.setattr(robustness, "_CHUNK_FLOATS", 1)
    assert len(list(robustness._chunks(case.net, len(case.X)))) == len(case.X)
    report = pp.certify(case.net, case.X, 0.01, case.target, certificates=True)
    assert len(report.certificates) == len(case.X)
    for i, (x, certificate) in enumerate(zip(case.X, report.certificates, strict=True)):
        assert certificate.facts["input"] == x.tolist()
        assert certificate.check(case.net).accepted
        assert (certificate.verdict == "robust") == report.robust[i] == whole.robust[i]
    assert report.certificates[-1].text == report.certificates[len(case.X) - 1].text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", range(4))
def test_evidence_of_search_becomes_certificate(kind, hidden):
    rng = np.random.default_rng([6, hidden, len(kind)])
    problem = Problem.random(rng, hidden, kind)
    net, shifts = problem.net, problem.shifts
    seen = net.transform(problem.X)
    if problem.box is not None:
        larger = InputBoxes(net, shifts)
        net, shifts, seen = larger.net, larger.shifts, larger.rows(*problem.box)
    objectives = problem.net.objectives(problem.target)
    rows = Rows(seen, np.array([-np.inf]))
    found, trace = traced_least_values(Abstraction(net, shifts), rows, objectives)
    low, high = float(found.lower[0]), float(found.upper[0])
    evidence = Evidence(problem.X[0], low, high, trace, problem.ends())
    made = evidence.certificate(problem.net, problem.shifts, problem.target, low - 1.0)
    assert problem.check(made, box=problem.ends()).accepted
    assert evidence.certificate(problem.net, problem.shifts, problem.target, low + 1.0) is None


def test_evidence_of_verdict_that_rounding_turned_gives_no_certificate():
    """The sum is 0 in floats and negative in truth: there is a proof, but of the opposite."""
    net = pp.Network([([[0.1]], [-0.30000000000000004])])
    shifts, point = pp.Shifts.of(net, 0.0), np.array([3.0])
    rows = Rows(point[None], np.zeros(1))
    found, trace = traced_least_values(Abstraction(net, shifts), rows, net.objectives(1))
    assert found.lower[0] == 0.0
    evidence = Evidence(point, float(found.lower[0]), float(found.upper[0]), trace)
    assert evidence.certificate(net, shifts, 1, 0.0) is None
    assert evidence.certificate(net, shifts, 1, -1.0).check(net).accepted


@pytest.mark.every(2)
@pytest.mark.parametrize("hidden", [2, 3])
def test_evidence_makes_no_pass_after_its_deadline(monkeypatch, hidden):
    """The clock counts the passes, each for one leaf or one neuron."""
    net, X = accepted_rows(12, (6, *[12] * hidden, 1), 20)
    shifts = pp.Shifts.of(net, 0.04)
    exact = pp.certify(net, X, shifts, exact_margin=True).upper
    tested = [
        PointRobustness(net, shifts, 1).test(x, value - 1e-4)
        for x, value in zip(X, exact, strict=True)
    ]
    evidence = max(tested, key=lambda each: sum(map(len, each.trace.leaves[0])))
    assert sum(map(len, evidence.trace.leaves[0])) >= 8
    plain = evidence.certificate(net, shifts, 1, evidence.lower - 1e-3)
    passes, honest = [], Enclosure._pass
    monkeypatch.setattr(Enclosure, "_pass", lambda *given: passes.append(1) or honest(*given))
    monkeypatch.setattr(time, "monotonic", lambda: float(len(passes)))
    for module in (proofs, enclosure):
        monkeypatch.setattr(module, "FLOATS_PER_PASS", 1)
    assert evidence.certificate(net, shifts, 1, evidence.lower - 1e-3).text == plain.text
    needed = len(passes)
    assert needed >= 8
    for deadline in (0, 1, needed // 2, needed - 1, needed):
        passes.clear()
        made = evidence.certificate(net, shifts, 1, evidence.lower - 1e-3, float(deadline))
        assert deadline <= len(passes) <= max(deadline, 1)  # a first pass may be made in any case
        assert (made is None) == (deadline < needed)


def test_exact_check_that_would_outlast_deadline_is_not_begun(monkeypatch):
    """A tie needs the checker, which estimates its work beforehand."""
    net = pp.Network([([[1.0]], [0.0]), ([[1.0]], [-0.25])])
    problem = net, [[0.75]], [(0.0, 0.5), (0.0, 0.0)]
    assert pp.certify(*problem, certificates=True, time_limit=60.0).robust[0]
    monkeypatch.setattr(checker._Claim, "exact", None)  # to call it is an error
    assert pp.certify(*problem, certificates=True, time_limit=1e-4).undecided[0]


def test_certificates_of_first_release_are_accepted():
    """Files written by version 0.1 keep their meaning."""
    assert len(OLD) >= 10
    for item in OLD:
        given = item["network"]
        network = checker.Parameters(
            [(W, b) for W, b in given["layers"]], given["scale"], given["shift"]
        )
        net = pp.Network(given["layers"], scale=given["scale"], shift=given["shift"])
        for text in item["certificates"]:
            facts = json.loads(text)
            verdict = checker.check(text, network)
            assert verdict.accepted, verdict.reason
            assert verdict == pp.Certificate(text).check(net)
            said = facts["verdict"], facts["target"], facts["delta"], facts["input"]
            about = None, True, facts["network"], None, None, None
            assert verdict.statement == (*said, facts["margin"], *about)
            assert exactly.is_true(net, facts, np.random.default_rng(0))
            for margin in (facts["margin"] + 100.0, facts["margin"] - 100.0):
                wrong = (margin > facts["margin"]) == (facts["verdict"] == "robust")
                mutant = json.dumps({**facts, "margin": margin})
                assert checker.check(mutant, network).accepted != wrong


# -- the fast bound is never above the exact one -------------------------------------------------


@pytest.mark.parametrize("hidden", range(5))
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e6])
def test_fast_bound_is_proved_by_exact_checker_and_nearly_as_good(hidden, scale):
    """Random multipliers, random trees: exact arithmetic proves the very float that the pass gave."""
    rng = np.random.default_rng([9, hidden])
    for _ in range(25):
        case = random_case(rng, hidden, rows=1)
        first, *rest = ((layer.W, layer.b) for layer in case.net.layers)
        net = pp.Network(
            [(first[0] * scale, first[1]), *rest], scale=case.net.scale, shift=case.net.shift
        )
        problem = Problem(net, pp.Shifts.of(net, case.delta), case.X, case.target)
        facts = random_proof(rng, problem, lambda rng, shape: 0.3)
        verdict = problem.checked(facts)
        assert verdict.accepted, verdict.reason
        facts["margin"] += 1e-9 * scale_of(facts["margin"]) * max(1.0, scale)
        assert not problem.checked(facts).accepted


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", range(5))
def test_fast_bound_never_states_more_than_checker(hidden, kind):
    rng = np.random.default_rng([13, hidden, len(kind)])
    for _ in range(12):
        problem = Problem.random(rng, hidden, kind)
        facts = random_proof(rng, problem)
        verdict = problem.checked(facts)
        assert verdict.accepted, verdict.reason
        facts["margin"] += 1e-3 * max(1.0, abs(facts["margin"]))
        assert not problem.checked(facts).accepted


@pytest.mark.parametrize("sizes", [(400, 1), (400, 3, 1), (40, 200, 3, 1)])
def test_fast_bound_covers_rounding_of_long_sums(sizes):
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
            lower = start_slopes(root)
            upper = [chords(level, None)[0] for level in root.preactivations]
            nodes = batched_bnb.root_nodes(root, np.arange(1))
        for target in (0, 1):
            enclosure = Enclosure.of(net, shifts, x, lower, upper, tighten=False)
            value = float(enclosure.bounds(net.objectives(target)[0], nodes)[0][0])
            facts = Problem(net, shifts, x, target).linear_proof(value) | {
                "lower": [v[0].tolist() for v in lower],
                "upper": [v[0].tolist() for v in upper],
            }
            assert pp.Certificate.of(facts).check(net).accepted


# -- the work is counted before it is done -------------------------------------------------------


@pytest.mark.parametrize("sizes", [(3, 4, 4, 1), (2, 3, 5, 4, 1), (2, 2, 3, 2, 3, 3), (30, 9, 1)])
@pytest.mark.parametrize("kind", ["delta", "shifts"])
@pytest.mark.parametrize("tighten", [False, True])
@pytest.mark.parametrize("multipliers", [False, True])
def test_work_is_counted_before_it_is_done(monkeypatch, sizes, kind, tighten, multipliers):
    """The number of products is at most the estimate of the limit, and not much less."""
    rng = np.random.default_rng(sum(sizes))
    net = dense(rng, sizes)
    shifts = pp.Shifts.of(net, 0.1)
    shifts = pp.Shifts(shifts.low, shifts.high) if kind == "shifts" else shifts
    problem = Problem(net, shifts, rng.normal(size=(1, sizes[0])), 1)
    inner = sizes[2:-1]
    leaf = {"gamma": [[i + 1, k, 0.5] for i, n in enumerate(inner) for k in range(n)]}
    tree = full_tree(min(sum(inner), 5), [(i + 1, n) for i, n in enumerate(inner)])
    tree = [leaf if multipliers and node == {} and inner else node for node in tree]
    facts = problem.linear_proof(-1e9) | {"tighten": tighten}
    facts |= {"trees": [tree] * max(1, sizes[-1] - 1)}
    facts |= {name: [[0.5] * n for n in inner] for name in ("lower", "upper")}
    told, done = counted_work(monkeypatch)
    assert problem.checked(facts).accepted
    assert sum(done) <= told[0] <= 20 * sum(done)


# -- what is changed is rejected, or still true --------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "fold" not in kind])
@pytest.mark.parametrize("hidden", range(4))
def test_changed_certificate_is_rejected_or_still_true(hidden, kind):
    rng = np.random.default_rng([7, hidden, len(kind)])
    tried = accepted = 0
    truths = {}  # many proofs are proofs of one claim
    options = {"width": 2, "inputs": 2, "outputs": 1 + 2 * (hidden % 2)}
    for _ in range(1 if kind.startswith("inputs") or hidden > 2 else 3):
        problem = Problem.random(rng, hidden, kind, **options)
        worst = problem.least
        for margin in (worst - 0.01, worst + 0.01):
            for path, mutant in mutants(problem.certificate(margin).facts):
                tried += 1
                if not problem.checked(mutant).accepted:
                    continue
                accepted += 1
                assert path[0] not in ("network", "shifts", "format", "verdict"), path
                proofs = ("tighten", "lower", "upper", "trees")
                claim = json.dumps({k: v for k, v in mutant.items() if k not in proofs})
                if claim not in truths:
                    truths[claim] = problem.is_true(mutant, rng)
                assert truths[claim], (path, mutant)
    assert tried > 120
    assert accepted  # some changes are harmless: a smaller margin, another slope


def test_invalid_certificates_are_rejected():
    net, X = accepted_rows(5, (4, 6, 6, 1), 30)
    report = pp.certify(net, X, 0.02, certificates=True)
    row = int(np.flatnonzero(report.robust)[0])
    facts = report.certificates[row].facts

    def verdict(**new):
        return checker.check(json.dumps({**facts, **new}), documents.parameters(net))

    assert verdict().accepted
    assert "digests differ" in verdict(network="0" * 64).reason
    assert "margin" in verdict(margin=float(report.upper[row]) + 1.0).reason
    assert "margin" in verdict(delta=[[0.5, 0.5]] * 3).reason
    assert "outside [0, 1]" in verdict(lower=[[1.5] * 6]).reason
    assert "outside [0, 1]" in verdict(trees=[[{"lower": [[1, 0, -0.1]]}]]).reason
    assert "is incomplete" in verdict(trees=[[[1, 0], {}]]).reason
    assert "is incomplete" in verdict(trees=[[]]).reason
    assert "after its last leaf" in verdict(trees=[[{}, {}]]).reason
    assert "twice" in verdict(trees=[[[1, 0], [1, 0], {}, {}, {}]]).reason
    assert "layer 0" in verdict(trees=[[[0, 0], {}, {}]]).reason
    assert "neuron" in verdict(trees=[[[1, 6], {}, {}]]).reason
    assert "negative" in verdict(delta=[[0.02, -0.02]] * 3).reason
    assert "unknown" in verdict(more=1).reason
    other = pp.Network([(layer.W, layer.b) for layer in net.layers], scale=np.ones(4))
    assert "digests differ" in report.certificates[row].check(other).reason


# -- values, files -------------------------------------------------------------------------------


def test_certificate_is_value_and_file(tmp_path):
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
