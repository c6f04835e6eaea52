"""Properties of certify, worst_case and output_range besides correctness."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proplace as pp
from oracles import (
    accepted_rows,
    milp_margin,
    pairs_of,
    radii_of,
    random_case,
    sampled_margins,
    scale_of,
)
from proplace.certification import (
    FULL,
    Budget,
    batched_bnb,
    bounds,
    lower_margins,
    lp_bnb,
    robustness,
)
from proplace.certification.bounds import Abstraction
from proplace.certification.node_program import NodeProgram
from proplace.core.errors import InputError, OptionError, SolverError
from proplace.solvers import LinearProgram
from support.errors import raises
from support.tiers import examples

CASES = [(hidden, seed) for hidden in range(5) for seed in range(6)]


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return random_case(np.random.default_rng([77, *request.param]), request.param[0], rows=6)


def exact(net, X, delta, target=1):
    return pp.certify(net, X, delta, target, exact_margin=True).upper


def near(one, two):
    np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-8)


def rebuilt(net, pairs):
    """The same network with other arrays. An absent bias stays absent."""
    kept = [
        (W, None if old.b is None else b) for (W, b), old in zip(pairs, net.layers, strict=True)
    ]
    return pp.Network(kept, scale=net.scale, shift=net.shift)


# -- laws ----------------------------------------------------------------------------------------


def test_no_shift_is_plain_margin(case):
    plain = case.net.margin(case.X, case.target)
    report = pp.certify(case.net, case.X, 0.0, case.target, exact_margin=True)
    np.testing.assert_allclose(report.lower, plain, atol=1e-9)
    np.testing.assert_allclose(report.upper, plain, atol=1e-9)
    quick = pp.certify(case.net, case.X, 0, case.target)
    clear = np.abs(plain) > 1e-9
    np.testing.assert_array_equal(quick.robust[clear], (plain >= 0.0)[clear])
    low, high = pp.output_range(case.net, case.X, 0.0)
    np.testing.assert_allclose(low, case.net.logits(case.X), atol=1e-9)
    np.testing.assert_allclose(high, case.net.logits(case.X), atol=1e-9)
    worst = pp.worst_case(case.net, case.X[0], 0.0, case.target)
    assert worst.network == case.net
    assert worst.margin == pytest.approx(plain[0], rel=1e-12)


def test_larger_delta_is_never_better(case):
    values, robust = [], []
    for delta in (0.0, 0.01, 0.03, 0.1, 0.3):
        values.append(exact(case.net, case.X, delta, case.target))
        robust.append(pp.certify(case.net, case.X, delta, case.target).robust)
    for small, large in itertools.pairwise(values):
        assert (large <= small + 1e-9 * np.maximum(1.0, np.abs(small))).all()
    for small, large in itertools.pairwise(robust):
        assert (small | ~large).all()


def test_one_number_is_pair_for_each_layer(case):
    pairs = [(0.07, 0.07)] * len(case.net.layers)
    shifts = pp.Shifts.of(case.net, 0.07)
    for delta in (pairs, shifts):
        np.testing.assert_array_equal(
            exact(case.net, case.X, 0.07, case.target), exact(case.net, case.X, delta, case.target)
        )


def test_order_of_neurons_does_not_matter(case):
    rng = np.random.default_rng(0)
    pairs = pairs_of(case.net)
    for i in range(len(pairs) - 1):
        order = rng.permutation(len(pairs[i][0]))
        pairs[i] = (pairs[i][0][order], pairs[i][1][order])
        pairs[i + 1] = (pairs[i + 1][0][:, order], pairs[i + 1][1])
    other = rebuilt(case.net, pairs)
    near(
        exact(case.net, case.X, case.delta, case.target),
        exact(other, case.X, case.delta, case.target),
    )


def test_order_and_signs_of_inputs_do_not_matter(case):
    rng = np.random.default_rng(1)
    order = rng.permutation(case.net.inputs)
    signs = rng.choice([-1.0, 1.0], case.net.inputs)
    U = case.net.transform(case.X)
    pairs = [(layer.W, layer.b) for layer in case.net.layers]
    bare = pp.Network(pairs)
    turned = pp.Network([((pairs[0][0] * signs)[:, order], pairs[0][1]), *pairs[1:]])
    expected = exact(case.net, case.X, case.delta, case.target)
    near(expected, exact(bare, U, case.delta, case.target))
    near(expected, exact(turned, (U * signs)[:, order], case.delta, case.target))


def test_order_of_classes_does_not_matter(case):
    if case.net.outputs == 1:  # the other class is the negated logit
        *front, (W, b) = pairs_of(case.net)
        other, target = rebuilt(case.net, [*front, (-W, -b)]), 1 - case.target
    else:
        order = np.array([2, 0, 1])
        *front, (W, b) = pairs_of(case.net)
        other = rebuilt(case.net, [*front, (W[order], b[order])])
        target = int(np.flatnonzero(order == case.target)[0])
    near(
        exact(case.net, case.X, case.delta, case.target),
        exact(other, case.X, case.delta, target),
    )


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e4])
def test_scaling_last_layer_scales_margin(case, factor):
    pairs, radii = pairs_of(case.net), radii_of(case.net, case.delta)
    pairs[-1] = (pairs[-1][0] * factor, pairs[-1][1] * factor)
    radii[-1] = (radii[-1][0] * factor, radii[-1][1] * factor)
    scaled = exact(rebuilt(case.net, pairs), case.X, radii, case.target)
    near(exact(case.net, case.X, case.delta, case.target), scaled / factor)


@pytest.mark.parametrize("factor", [1e-4, 1e3])
def test_scaling_hidden_layer_against_next_changes_nothing(case, factor):
    """relu(s z) = s relu(z): activations of any size give the same answer."""
    if not case.net.widths:
        return
    pairs, radii = pairs_of(case.net), radii_of(case.net, case.delta)
    pairs[0] = (pairs[0][0] * factor, pairs[0][1] * factor)
    radii[0] = (radii[0][0] * factor, radii[0][1] * factor)
    pairs[1] = (pairs[1][0] / factor, pairs[1][1])
    radii[1] = (radii[1][0] / factor, radii[1][1])
    near(
        exact(case.net, case.X, case.delta, case.target),
        exact(rebuilt(case.net, pairs), case.X, radii, case.target),
    )


def test_rows_do_not_see_each_other(case):
    order = np.random.default_rng(2).permutation(len(case.X))
    together = pp.certify(case.net, case.X, case.delta, case.target)
    shuffled = pp.certify(case.net, case.X[order], case.delta, case.target)
    np.testing.assert_array_equal(together.robust[order], shuffled.robust)
    alone = [pp.certify(case.net, x, case.delta, case.target).robust[0] for x in case.X]
    np.testing.assert_array_equal(together.robust, alone)


def test_chunks_change_nothing(case, monkeypatch):
    whole = pp.certify(case.net, case.X, case.delta, case.target)
    ends = pp.output_range(case.net, case.X, case.delta)
    monkeypatch.setattr(robustness, "_CHUNK_FLOATS", 1)
    assert len(list(robustness._chunks(case.net, 6))) == 6
    parts = pp.certify(case.net, case.X, case.delta, case.target)
    np.testing.assert_array_equal(whole.robust, parts.robust)
    np.testing.assert_allclose(whole.lower, parts.lower, atol=1e-9)
    np.testing.assert_allclose(whole.upper, parts.upper, atol=1e-9)
    np.testing.assert_allclose(ends, pp.output_range(case.net, case.X, case.delta), atol=1e-8)


@pytest.mark.parametrize("widths", [(3,), (1000, 10, 200), (10, 10, 10, 300), (50, 50), ()])
def test_chunks_cover_table_and_keep_to_budget(widths):
    sizes = [7, *widths, 1]
    net = pp.Network([(np.zeros((m, n)), None) for n, m in itertools.pairwise(sizes)])
    slices = list(robustness._chunks(net, 5000))
    rows = [i for part in slices for i in range(5000)[part]]
    assert rows == list(range(5000))
    largest = max(part.stop - part.start for part in slices)
    assert largest * 10 * sum(widths) <= robustness._CHUNK_FLOATS
    assert max(part.stop - part.start for part in robustness._chunks(net, 5000, 7)) == 7


# -- the report ----------------------------------------------------------------------------------


def test_empty_table():
    net = pp.Network([([[1.0, -1.0]], [0.0]), ([[1.0]], [0.0])])
    report = pp.certify(net, np.empty((0, 2)), 0.1)
    assert len(report) == 0
    assert report.lower.shape == (0,)
    assert repr(report) == "CertificationResult(0 of 0 rows robust)"
    assert pp.output_range(net, np.empty((0, 2)), 0.1)[0].shape == (0, 1)


def test_margin_is_required(case):
    """A row is robust at margin m iff its worst-case margin is at least m, ties included."""
    worst = exact(case.net, case.X, case.delta, case.target)
    for i, value in enumerate(worst):
        step = 1e-6 * scale_of(value)
        one = case.X[i]
        at = [
            pp.certify(case.net, one, case.delta, case.target, margin=value + d).robust[0]
            for d in (-step, step)
        ]
        assert at == [True, False]
    report = pp.certify(case.net, case.X, case.delta, case.target, margin=0.125)
    assert report.threshold == 0.125


def test_tie_is_robust():
    net = pp.Network([([[1.0]], [0.0]), ([[1.0]], [-0.25])])
    delta = [(0.0, 0.5), (0.0, 0.0)]
    assert pp.certify(net, [[0.75]], delta).robust[0]  # 0.75 - 0.5 - 0.25 = 0, in binary too
    assert not pp.certify(net, [[0.75]], delta, margin=1e-6).robust[0]
    assert pp.certify(pp.Network([(np.zeros((2, 1)), None)]), [[1.0]], 0.0, 0).robust[0]


@pytest.mark.parametrize("margin", [np.nan, np.inf, -np.inf, "float16", "bfloat16"])
def test_margins_that_are_not_numbers(margin):
    net = pp.Network([([[1.0]], [0.0])])
    with raises(OptionError, name="margin") as caught:
        pp.certify(net, [[1.0]], 0.1, margin=margin)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("limit", [0, 0.0, -1.0, np.nan])
def test_time_limits_that_are_none(limit):
    net = pp.Network([([[1.0]], [0.0])])
    with raises(OptionError, name="time_limit") as caught:
        pp.certify(net, [[1.0]], 0.1, time_limit=limit)
    assert isinstance(caught.value, ValueError)
    with raises(OptionError, name="time_limit"):
        pp.worst_case(net, [1.0], 0.1, time_limit=limit)


def test_worst_case_takes_one_row():
    net = pp.Network([([[1.0]], [0.0])])
    for X in ([[1.0], [2.0]], np.empty((0, 1))):
        with raises(InputError, name="X") as caught:
            pp.worst_case(net, X, 0.1)
        assert isinstance(caught.value, ValueError)


def test_inputs_stay_as_they_were(case):
    before = case.X.copy()
    pp.certify(case.net, case.X, case.delta, case.target)
    pp.output_range(case.net, case.X, case.delta)
    np.testing.assert_array_equal(case.X, before)


def test_smallest_of_deltas():
    rng = np.random.default_rng(8)
    case = random_case(rng, 2, outputs=1)
    plain = case.net.margin(case.X)
    for delta in (5e-324, 1e-300, 1e-17):
        np.testing.assert_allclose(exact(case.net, case.X, delta), plain, atol=1e-9)
        worst = pp.worst_case(case.net, case.X[0], delta)
        assert worst.margin == pytest.approx(plain[0], abs=1e-9)
        assert case.net.distance(worst.network) <= delta


def test_input_of_zeros_moves_only_biases():
    net = pp.Network([([[3.0, -2.0]], [1.0]), ([[1.0]], [0.0])])
    assert exact(net, [[0.0, 0.0]], [(5.0, 0.25), (0.0, 0.0)])[0] == pytest.approx(0.75)


# -- time ----------------------------------------------------------------------------------------


def hard_problem():
    return *accepted_rows(3, (8, 30, 30, 30, 1), 60), 0.012


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances each time it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    return ticks


@pytest.mark.parametrize("certificates", [False, True])
@pytest.mark.parametrize("chunk", [2_000_000, 9_000])
def test_time_limit_leaves_rows_undecided_and_states_nothing_wrong(
    clock, monkeypatch, certificates, chunk
):
    """Wherever it strikes: in a later chunk, in a tree, in a linear program, before a proof."""
    net, X, delta = hard_problem()
    full = pp.certify(net, X, delta)
    assert full.robust.any()
    assert not full.robust.all()
    assert not full.undecided.any()
    monkeypatch.setattr(robustness, "_CHUNK_FLOATS", chunk)
    counts = []
    for limit in (1.0, 2.0, 3.0, 5.0, 9.0, 20.0, 50.0):
        report = pp.certify(net, X, delta, time_limit=limit, certificates=certificates)
        assert (report.lower <= full.upper + 1e-9).all()
        assert (report.upper >= full.lower - 1e-9).all()
        assert not (report.robust & report.undecided).any()
        assert (full.robust | ~report.robust).all()
        assert (~full.robust | report.robust | report.undecided).all()
        open_rows = (report.lower < 0.0) & (report.upper >= 0.0)
        np.testing.assert_array_equal(report.undecided, open_rows)
        assert ("undecided" in repr(report)) == report.undecided.any()
        if certificates:
            missing = [certificate is None for certificate in report.certificates]
            np.testing.assert_array_equal(report.undecided, missing)
        counts.append(int(report.undecided.sum()))
    assert counts[0] > 0
    assert counts == sorted(counts, reverse=True)
    assert not pp.certify(net, X, delta, time_limit=1e9).undecided.any()


def test_hard_rows_do_not_keep_others_waiting(clock, monkeypatch):
    """The hardest rows come first in the table, and time is over in the middle of their trees."""
    net, X, delta = hard_problem()
    delta /= 2.0
    easy = lower_margins(net, pp.Shifts.of(net, delta), 1, X, X)
    X, easy = X[np.argsort(easy)], np.sort(easy)
    monkeypatch.setattr(robustness, "_CHUNK_FLOATS", 1)
    report = pp.certify(net, X, delta, time_limit=80.0)
    assert report.undecided.any()
    assert (easy >= 0.0).any()
    assert report.robust[easy >= 0.0].all()


@pytest.mark.every(3)
@pytest.mark.parametrize("stages", [(None,), (0, None), (0, 1, 3, 10, None)])
def test_rounds_of_larger_trees_change_no_verdict(monkeypatch, stages):
    net, X, delta = hard_problem()
    X = X[:20]
    full = pp.certify(net, X, delta)
    budgets = [FULL if nodes is None else Budget(nodes, 0) for nodes in stages]
    monkeypatch.setattr(robustness, "_STAGES", tuple(budgets))
    report = pp.certify(net, X, delta, time_limit=1e9, certificates=True, exact_margin=True)
    np.testing.assert_array_equal(report.robust, full.robust)
    assert not report.undecided.any()
    assert repr(report.certificates) == f"Certificates({len(X)} of {len(X)})"
    for i, certificate in enumerate(report.certificates):
        assert certificate.facts["input"] == X[i].tolist()
        assert certificate.check(net).accepted
        assert (certificate.verdict == "robust") == report.robust[i]


def test_ranges_are_tightened_no_longer_than_to_deadline(monkeypatch):
    """The clock counts the backward passes, each for one neuron. The remaining bounds are valid."""
    net, X, delta = hard_problem()
    abstraction = Abstraction(net, pp.Shifts.of(net, delta))
    wide = abstraction.interval_bounds(X)
    tight = abstraction.tighten(wide)
    passes, honest = [], Abstraction.backward
    monkeypatch.setattr(Abstraction, "backward", lambda *given: passes.append(1) or honest(*given))
    monkeypatch.setattr(time, "monotonic", lambda: float(len(passes)))
    monkeypatch.setattr(bounds, "_FLOATS_PER_PASS", 1)
    whole = abstraction.tighten(wide)
    needed = len(passes)
    for deadline in (0, 1, needed // 2, needed - 1, needed):
        passes.clear()
        found = abstraction.tighten(wide, float(deadline))
        assert len(passes) == deadline
        last = wide, found, whole
        for name, sign in (("L_min", 1), ("L_max", -1), ("U_min", 1), ("U_max", -1)):
            before, now, after = (sign * getattr(some.preactivations[-1], name) for some in last)
            assert (before <= now).all()
            assert (now <= after + 1e-12).all()
    assert wide.preactivations[-1].L_min.mean() < tight.preactivations[-1].L_min.mean()
    for mine, theirs in zip(whole.preactivations, tight.preactivations, strict=True):
        np.testing.assert_allclose(mine.U_max, theirs.U_max, atol=1e-12)
        np.testing.assert_allclose(mine.L_min, theirs.L_min, atol=1e-12)


def test_linear_program_that_cannot_be_built_in_time_is_not_begun(monkeypatch):
    net, X, delta = hard_problem()
    full = pp.worst_case(net, X[0], delta)
    monkeypatch.setattr(lp_bnb, "_SECONDS_PER_CELL", 1.0)
    monkeypatch.setattr(lp_bnb, "NodeProgram", None)  # to build one is an error
    worst = pp.worst_case(net, X[0], delta, time_limit=60.0)
    assert worst.lower <= full.margin + 1e-9
    assert worst.margin >= full.lower - 1e-9


def test_after_time_limit_no_chunk_is_looked_at(clock, monkeypatch):
    net, X, delta = hard_problem()
    monkeypatch.setattr(robustness, "_CHUNK_FLOATS", 1)
    seen = []
    honest = robustness.least_values
    monkeypatch.setattr(
        robustness, "least_values", lambda *given: seen.append(len(given[1].U)) or honest(*given)
    )
    report = pp.certify(net, X, delta, time_limit=1.0)
    assert seen == [1]
    assert report.undecided[1:].all()
    assert (report.lower[1:] == -np.inf).all()
    assert (report.upper[1:] == np.inf).all()


def test_proofs_are_not_checked_after_time_limit(clock, monkeypatch):
    """A tie needs the exact checker, which can take long."""
    net = pp.Network([([[1.0]], [0.0]), ([[1.0]], [-0.25])])
    delta = [(0.0, 0.5), (0.0, 0.0)]
    assert pp.certify(net, [[0.75]], delta, time_limit=1e9).robust[0]
    for certificates in (False, True):
        report = pp.certify(net, [[0.75]], delta, time_limit=1.0, certificates=certificates)
        assert report.undecided[0]


def test_linear_program_gets_time_that_is_left(clock, monkeypatch):
    """And none is solved when there is none: bounds that need no solver are returned."""
    net, X, delta = hard_problem()
    full = pp.certify(net, X[:1], 2 * delta)
    runs, honest = [], LinearProgram.run

    def watched(program, deadline):
        before = program.solver.getRunTime()
        verdict = honest(program, deadline)
        limit = program.solver.getOptionValue("time_limit")[1]
        runs.append((verdict != "late", limit - before))
        return verdict

    monkeypatch.setattr(LinearProgram, "run", watched)
    worst = pp.worst_case(net, X[0], 2 * delta, time_limit=14.0)
    times = [left for in_time, left in runs if in_time]
    assert runs[0][0]
    assert 0.0 < times[-1] <= times[0] < 14.0
    assert times == sorted(times, reverse=True)
    assert worst.lower <= full.upper[0] + 1e-9
    assert worst.margin >= full.lower[0] - 1e-9
    assert worst.margin == pytest.approx(float(worst.network.margin(X[0])[0]), abs=1e-9)
    assert worst.lower < worst.margin - 1e-6  # the gap is there to be seen


# -- numbers of very different sizes --------------------------------------------------------------


def test_tiny_last_layer_is_not_less_exact():
    """Margins of 1e-12 have as many exact digits as margins of 1."""
    factor = 2.0**-40
    for seed in range(12):
        case = random_case(np.random.default_rng([78, seed]), 2, outputs=1, width=8, rows=4)
        pairs, radii = pairs_of(case.net), radii_of(case.net, case.delta)
        pairs[-1] = (pairs[-1][0] * factor, pairs[-1][1] * factor)
        radii[-1] = (radii[-1][0] * factor, radii[-1][1] * factor)
        report = pp.certify(rebuilt(case.net, pairs), case.X, radii, case.target, exact_margin=True)
        expected = exact(case.net, case.X, case.delta, case.target)
        near(report.upper / factor, expected)
        near(report.lower / factor, expected)


def large_inner_weights(seed):
    """The next layer cancels weights of 3e7: worst-case margins of about 1000."""
    rng = np.random.default_rng([7, seed])
    w, f = int(rng.integers(4, 10)), 3e7
    layers = [
        (rng.normal(size=(w, 2)), rng.normal(size=w)),
        (rng.normal(size=(w, w)) * f, rng.normal(size=w) * f),
        (rng.normal(size=(w, w)) / f, rng.normal(size=w)),
        (rng.normal(size=(1, w)) * 1000.0, [1000.0]),
    ]
    delta = [(0.1, 0.1), (0.0, 0.0), (0.1 / f, 0.1), (0.1, 0.1)]
    return pp.Network(layers), rng.normal(size=(1, 2)), delta


def test_ranges_are_exact_where_inner_weights_are_large():
    """The same network with the factor taken out is easy: both must agree."""
    for seed in (0, 9, 58, 138, 141, 149):
        net, x, delta = large_inner_weights(seed)
        pairs = pairs_of(net)
        pairs[1] = (pairs[1][0] / 3e7, pairs[1][1] / 3e7)
        pairs[2] = (pairs[2][0] * 3e7, pairs[2][1])
        easy = pp.Network(pairs)
        low, high = pp.output_range(net, x, delta)
        expected = pp.output_range(easy, x, [(0.1, 0.1), (0.0, 0.0), (0.1, 0.1), (0.1, 0.1)])
        np.testing.assert_allclose((low, high), expected, rtol=1e-7, atol=1e-4)
        worst = pp.worst_case(net, x, delta)
        assert worst.margin == pytest.approx(low[0, 0], rel=1e-7)
        assert worst.lower == pytest.approx(worst.margin, rel=1e-7)


def test_range_that_is_known_only_roughly_is_refused(monkeypatch):
    """Without any optimum of the solver, the error names the rows and certify leaves them undecided."""
    net, X, delta = hard_problem()
    low, high = pp.output_range(net, X[:3], delta)
    assert (low <= high).all()
    monkeypatch.setattr(LinearProgram, "solve", lambda *_: "failed")
    monkeypatch.setattr(NodeProgram, "_emptiness_without_costs", lambda *_: None)
    monkeypatch.setattr(NodeProgram, "branch", lambda *_: None)
    with raises(SolverError, row=0) as caught:
        pp.output_range(net, X[:3], delta)
    assert "exact_margin=True" in str(caught.value)
    report = pp.certify(net, X[:3], delta, exact_margin=True)
    assert (report.upper - report.lower > 1e-3).any()
    worst = pp.worst_case(net, X[0], delta)
    assert worst.lower < worst.margin - 1e-3


# -- progress ------------------------------------------------------------------------------------


def test_silent_unless_requested(capfd):
    case = random_case(np.random.default_rng(1), 2)
    pp.certify(case.net, case.X, 0.1)
    pp.output_range(case.net, case.X, 0.1)
    pp.worst_case(case.net, case.X[0], 0.1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("call", [pp.certify, pp.output_range])
def test_progress_goes_to_standard_error(capfd, call, monkeypatch):
    monkeypatch.setattr("proplace.core.progress._SECONDS", 0.0)  # between two lines
    case = random_case(np.random.default_rng(1), 2, rows=7)
    call(case.net, case.X, 0.1, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "7 of 7" in err
    assert ("certify" if call is pp.certify else "output range") in err


# -- anything ------------------------------------------------------------------------------------

VALUES = st.floats(-4, 4, allow_subnormal=False) | st.sampled_from([0.0, 1.0, -1.0])


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))

    def array(*shape):
        count = int(np.prod(shape))
        return np.array(draw(st.lists(VALUES, min_size=count, max_size=count))).reshape(shape)

    net = pp.Network(
        [
            (array(m, n), array(m) if draw(st.booleans()) else None)
            for n, m in itertools.pairwise(sizes)
        ]
    )
    radius = st.sampled_from([0.0, 0.05, 0.5]) | st.floats(0, 1, allow_subnormal=False)
    delta = [(draw(radius), draw(radius)) for _ in net.layers]
    return net, array(sizes[0]), delta, draw(st.integers(0, net.classes - 1))


@examples(150)
@given(problems())
def test_random_networks_agree_with_milp(problem):
    net, x, delta, target = problem
    truth = milp_margin(net, x, delta, target)
    report = pp.certify(net, x, delta, target, exact_margin=True)
    slack = 1e-6 * scale_of(truth)
    assert report.upper[0] == pytest.approx(truth, abs=slack)
    assert report.lower[0] <= truth + slack
    quick = pp.certify(net, x, delta, target)
    if abs(truth) > 1e-6:
        assert quick.robust[0] == (truth > 0.0)
    worst = pp.worst_case(net, x, delta, target)
    assert worst.margin == pytest.approx(truth, abs=slack)
    rng = np.random.default_rng(0)
    assert sampled_margins(net, x, delta, target, rng, 200).min() >= report.lower[0] - 1e-9 * slack


def test_row_that_needs_many_nodes_is_left_to_linear_program(monkeypatch):
    """The batched tree stops at NODES_PER_ROW, and the verdict is the same."""
    net, X, delta = hard_problem()
    full = pp.certify(net, X, delta)
    for nodes in (1, 20):
        monkeypatch.setattr(batched_bnb, "NODES_PER_ROW", nodes)
        few = pp.certify(net, X, delta)
        np.testing.assert_array_equal(full.robust, few.robust)
        assert not few.undecided.any()
    monkeypatch.undo()
    monkeypatch.setattr(batched_bnb, "NODES_PER_BATCH", 3)
    np.testing.assert_array_equal(full.robust, pp.certify(net, X, delta).robust)


def test_verdicts_do_not_depend_on_size_of_output():
    """The last layer times a power of two: the same question, in exact arithmetic too."""
    rng = np.random.default_rng(1)
    small = 2.0**-40
    robust = 0
    for _ in range(15):
        sizes = ((8, 3), (8, 8), (8, 8), (1, 8))
        layers = [(rng.normal(size=size), rng.normal(size=size[0])) for size in sizes]
        W, b = layers[-1]
        tiny = pp.Network([*layers[:-1], (W * small, b * small)])
        X = rng.normal(size=(30, 3))
        delta = [(0.05, 0.05)] * 3 + [(0.05 * small, 0.05 * small)]
        report = pp.certify(tiny, X, delta)
        proved = pp.certify(pp.Network(layers), X, 0.05, certificates=True)
        assert not (report.robust & ~proved.robust).any()
        assert (report.lower[report.robust] >= 0.0).all()
        robust += int(report.robust.sum())
    assert robust > 10
