"""Every status: its meaning, and the truth of results after timeouts and solver failures."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import KDTree

import proplace as pp
from proplace.certification import guarantee
from proplace.core.errors import (
    SolverError,
)
from proplace.explain import answer as answer_module
from proplace.region.neighbours import RobustRows
from proplace.schema import Schema
from proplace.search import SearchResult
from proplace.search.oracle import Oracle
from support.people import (
    LIMITS,
    World,
    check_promise,
    check_table,
    net_for,
    outside_hull,
    rules,
    two_columns,
)
from support.problems import Clock, ill_solver, problem_of


def test_already_valid():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    result = explainer.explain([[0.9, 0.9], [0.51, 0.5]])
    assert [e.status for e in result] == ["already_valid"] * 2
    assert "every network within delta" in result[0].reason
    assert "but not every network within delta" in result[1].reason
    assert result[1].margin < 0.0 < result[0].margin
    for answer in result:
        assert not answer.found
        assert answer.distance == answer.bound == 0.0
        np.testing.assert_array_equal(answer.encoded_counterfactual, answer.encoded_original)


def test_no_robust_neighbour():
    net, train = two_columns()
    for region in ("hull", "box"):
        answer = pp.Proplace(net, 5.0, k=3, region=region).fit(train).explain([[0.2, 0.3]])[0]
        assert answer.status == "no_robust_neighbour"
        assert answer.counterfactual is None
        assert np.isnan(answer.distance)
        assert "robust" in answer.reason
    answer = pp.Proplace(net, 5.0, k=3).fit(train).explain([[0.2, 0.3]])[0]
    assert "none of 4 training rows" in answer.reason
    smaller = float(re.search(r"lower delta, for example to ([0-9.]+) ", answer.reason)[1])
    assert pp.Proplace(net, smaller, k=3).fit(train).explain([[0.2, 0.3]])[0].found


def test_infeasible_rules_names_rule():
    net, train = two_columns()
    columns = [pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1)]
    rule = pp.schema.Linear({"a": 1.0, "b": 1.0}, upper=0.5, name="a small household")
    schema = Schema(columns, rules=[rule])
    answer = pp.Proplace(net, 0.05, k=3, schema=schema).fit(train).explain([[0.2, 0.1]])[0]
    assert answer.status == "infeasible_rules"
    assert "a small household" in answer.reason
    frozen = Schema([replace(c, immutable=True, label=c.name.upper()) for c in columns])
    answer = pp.Proplace(net, 0.05, k=3, schema=frozen).fit(train).explain([[0.2, 0.1]])[0]
    assert answer.status == "fixed_prediction"
    assert "who may change nothing" in answer.reason


def test_bad_input_never_loses_other_rows():
    world = World(0)
    frame = world.refused(5).astype({"age": float})
    good = world.explainer().explain(frame)
    bad = frame.copy()
    bad.iloc[0, 0] = np.nan
    bad.iloc[1, 3] = "clrek"
    bad.iloc[3, 0] = np.inf
    result = world.explainer().explain(bad)
    assert [e.status for e in result] == [
        *["bad_input"] * 2,
        "optimal",
        "bad_input",
        "optimal",
    ]
    assert "missing" in result[0].reason
    assert "did you mean 'clerk'" in result[1].reason
    assert "is not finite" in result[3].reason
    assert result[3].index == "p3"
    for i in (2, 4):
        assert result[i].distance == good[i].distance
        np.testing.assert_array_equal(
            result[i].encoded_counterfactual, good[i].encoded_counterfactual
        )
    table = result.to_frame()
    assert list(table.index) == list(frame.index)
    assert table.loc["p0", "status"] == "bad_input"
    check_table(world.schema, result)


def test_bad_rows_of_array():
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    result = explainer.explain([[0.2, np.nan], [0.2, 0.3], [np.inf, 0.1]])
    assert [e.status for e in result] == ["bad_input", "optimal", "bad_input"]
    assert result[0].reason == "column 'x1': nan is not finite"
    assert result.encoded_counterfactuals.shape == (3, 2)
    assert np.isnan(result.encoded_counterfactuals[[0, 2]]).all()
    world = World(0)
    X = world.schema.encode(world.refused(2))
    X[0, world.schema.span("job")] = 0.5
    result = world.explainer().explain(X)
    assert result[0].status == "bad_input"
    assert result[1].found
    assert "not a legal row of the schema" in result[0].reason


LOOKS = 12  # at the clock, between the end of the time and that of the call, at most


@pytest.mark.usefixtures("small_slack")
@pytest.mark.parametrize("search", ["tree", "bilevel"])
def test_time_limit(search, monkeypatch):
    """The best certified point so far, and a bound below the optimum, at any reading of the clock."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (400, 8))
    net = net_for(rng, 8, (16, 16), 1, X)
    refused = X[net.predict(X) == 0][:2]
    best = pp.Proplace(net, 0.003, k=20).fit(X).explain(refused, gap=0)
    assert all(e.status == "optimal" for e in best)
    statuses = set()
    for limit in (0.5, 5.0, 15.0, 50.0, 150.0, 1e6) if search == "tree" else (0.5, 5.0):
        options = {"k": 20, "time_limit": limit, "search": search}
        explainer = pp.Proplace(net, 0.003, **options).fit(X)
        explainer.robust_rows()
        for x, truth in zip(refused, best, strict=True):
            with monkeypatch.context() as patch:
                clock = Clock(patch)
                start = clock.now
                (answer,) = explainer.explain(x[None], gap=0)
                assert clock.now - start <= limit + LOOKS or answer.status == "optimal"
            statuses.add(answer.status)
            check_promise(explainer, Schema.encoded(8), answer, attacks=False)
            assert answer.certificate.check(net).accepted
            assert answer.bound <= truth.distance + 1e-6
            assert truth.distance - 1e-6 <= answer.distance
            assert answer.timed_out == (answer.status == "feasible")
            if answer.status == "feasible":
                assert "stopped at the time limit" in answer.reason
            else:
                assert answer.distance == pytest.approx(truth.distance, abs=1e-6)
    assert statuses == {"feasible", "optimal"} if search == "tree" else {"feasible"}


@functools.cache
def hard_to_decide():
    """A network, and a row that it accepts robustly, but not by the fast bounds."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (300, 6))
    net = net_for(rng, 6, (16, 16, 16), 1, X)
    x = X[net.margin(X).argmax()]
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2.0
        robust = pp.certify(net, x, middle, margin=1e-6).robust[0]
        low, high = (middle, high) if robust else (low, middle)
    delta = 0.99 * low
    assert Oracle(problem_of(net, x, delta, margin=1e-6)).test(x, -np.inf)[:2] == (False, None)
    return net, X, x, delta


def test_time_limit_holds_for_people_who_are_accepted():
    net, X, x, delta = hard_to_decide()
    explainer = pp.Proplace(net, delta).fit(X)
    (answer,) = explainer.explain(x[None])
    assert answer.status == "already_valid"
    assert "every network" in answer.reason
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        explainer.time_limit = 0.5
        (answer,) = explainer.explain(x[None])
        assert clock.looks <= LOOKS
    assert answer.status == "already_valid"
    assert (
        "it is not decided in the time limit whether every network within delta does"
        in answer.reason
    )
    assert answer.certificate is None
    assert answer.margin < 1e-6


def test_no_time_for_proof_is_not_answer(monkeypatch):
    """Without a point that is proved at once there is none, and it is not called bad or impossible."""
    net, X, x, delta = hard_to_decide()
    explainer = pp.Proplace(net, delta, k=3, time_limit=0.5).fit(X)
    robust = explainer._robust_rows(1)
    robust.robust = robust.rows = x[None]  # the only neighbour is the one that takes long
    robust._tree = KDTree(x[None] * robust.distance.weights)
    refused = X[net.predict(X) == 0][:1]
    Clock(monkeypatch)
    (answer,) = explainer.explain(refused)
    assert (answer.status, answer.encoded_counterfactual) == ("not_found", None)
    assert "time limit" in answer.reason


def test_fallback_is_nearest_neighbour_that_is_proved_in_time(monkeypatch):
    world = World(1)
    explainer = world.explainer(time_limit=0.5)
    nearest = explainer.explain(world.refused(1))[0].neighbours[0]
    plain_certify = guarantee.certify

    def slow(net, rows, *args, **options):  # the nearest one is not proved in time
        report = plain_certify(net, rows, *args, **options)
        return replace(report, robust=report.robust & (rows != nearest).any(axis=1))

    monkeypatch.setattr(guarantee, "certify", slow)
    Clock(monkeypatch)
    (answer,) = explainer.explain(world.refused(1))
    assert answer.status == "feasible"
    assert "stopped at the time limit" in answer.reason
    np.testing.assert_array_equal(answer.encoded_counterfactual, answer.neighbours[1])
    assert answer.certificate.check(world.net).accepted


def test_neighbours_under_rules_respect_limit(monkeypatch):
    """Rows that could not be looked at in time: nothing is claimed of the region without them."""
    world = World(0, rules=rules(), rows=700, **LIMITS)
    explainer = world.explainer(delta=0.004, time_limit=0.5)
    explainer.robust_rows()
    frame = world.refused(3)
    Clock(monkeypatch)
    for answer in explainer.explain(frame):
        assert answer.status in ("feasible", "not_found")
        assert "time limit" in answer.reason
        assert "exist" not in answer.reason
        if answer.found:
            assert answer.bound == 0.0
            check_promise(explainer, world.schema, answer, attacks=False)


def test_no_neighbour_in_time_is_not_fault_of_rules(monkeypatch):
    world = World(0, rules=rules(), **LIMITS)
    explainer = world.explainer(delta=0.004, time_limit=0.5)
    explainer.robust_rows()
    monkeypatch.setattr(RobustRows, "test", lambda self, rows, deadline: np.zeros(len(rows), bool))
    Clock(monkeypatch)
    for answer in explainer.explain(world.refused(3)):
        assert answer.status == "not_found"
        assert "time limit" in answer.reason


def test_more_answers_do_not_take_more_than_limit(monkeypatch):
    world = World(0)
    explainer = world.explainer(time_limit=0.5)
    explainer.robust_rows()
    clock = Clock(monkeypatch)
    result = explainer.explain(world.refused(1), count=4)
    assert clock.looks <= 2 * LOOKS
    assert [answer.status for answer in result] == ["feasible"]


@pytest.mark.parametrize("status", ["kUnknown", "kSolveError", "kUnboundedOrInfeasible"])
def test_solver_in_trouble_still_gives_answer(status, monkeypatch):
    world = World(1, hidden=(6, 6))
    frame = world.refused(3)
    truth = world.explainer().explain(frame)
    explainer = world.explainer()
    explainer.robust_rows()
    ill_solver(monkeypatch, status, lambda n: True)
    for answer, best in zip(explainer.explain(frame), truth, strict=True):
        check_promise(explainer, world.schema, answer)
        if answer.status == "optimal":  # found without a linear program
            assert answer.distance == pytest.approx(best.distance, abs=1e-6)
            continue
        assert answer.status == "feasible"
        assert "the solver failed (HiGHS did not solve" in answer.reason
        assert answer.bound <= best.distance + 1e-6


def in_trouble(problem, pieces, **options):
    return SearchResult(None, np.inf, 0.0, "unknown", solver_failure="out of luck")


def test_search_without_point_gives_neighbour(monkeypatch):
    world = World(1)
    monkeypatch.setattr(answer_module, "search", in_trouble)
    explainer = world.explainer()
    for answer in explainer.explain(world.refused(2)):
        assert answer.status == "feasible"
        assert "out of luck" in answer.reason
        assert answer.bound == 0.0
        check_promise(explainer, world.schema, answer)
        np.testing.assert_array_equal(answer.encoded_counterfactual, answer.neighbours[0])
    for answer in world.explainer(region="box").explain(world.refused(1)):
        assert answer.status == "solver_error"  # no neighbour to fall back on
        assert "out of luck" in answer.reason
        assert "the row is valid" in answer.reason
        assert answer.encoded_counterfactual is None


def test_bound_of_search_without_point_is_kept(monkeypatch):
    """The proofs about the region stay true if only a neighbour is known in it."""
    world = World(1)

    def stopped(problem, pieces, **options):
        return SearchResult(None, np.inf, 1e-3, "unknown")

    monkeypatch.setattr(answer_module, "search", stopped)
    (answer,) = world.explainer().explain(world.refused(1))
    assert (answer.status, answer.bound) == ("feasible", 1e-3)

    def wrong(problem, pieces, **options):
        return SearchResult(None, np.inf, np.inf, "infeasible")

    monkeypatch.setattr(answer_module, "search", wrong)  # though there is a neighbour
    (answer,) = world.explainer().explain(world.refused(1))
    assert (answer.status, answer.bound) == ("feasible", 0.0)
    assert "no point in a region that holds one" in answer.reason


def test_row_error_has_type_and_message(monkeypatch):
    net, train = two_columns()
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    for error, status in (
        (SolverError("no luck"), "solver_error"),
        (ArithmeticError(), "bad_input"),
    ):

        def fails(*args, error=error, **options):
            raise error

        monkeypatch.setattr(answer_module, "search", fails)
        result = explainer.explain([[0.2, 0.3], [0.9, 0.9]])
        assert [e.status for e in result] == [status, "already_valid"]
        assert type(error).__name__ in result[0].reason


def test_point_that_breaks_rule_is_not_returned(monkeypatch):
    """The last guard: robust, but not allowed for this person."""
    net, train = two_columns()
    columns = [pp.Continuous("a", 0, 1, max_increase=0.6), pp.Continuous("b", 0, 1)]
    schema = Schema(columns)

    def wrong(problem, pieces, **options):
        point = np.array([1.0, 1.0])
        return SearchResult(point, 0.75, 0.75, "optimal")

    monkeypatch.setattr(answer_module, "search", wrong)
    explainer = pp.Proplace(net, 0.05, k=3, schema=schema).fit(train)
    (answer,) = explainer.explain([[0.2, 0.3]])
    assert answer.status == "feasible"
    assert answer.encoded_counterfactual[0] <= 0.8 + 1e-9
    check_promise(explainer, schema, answer)


@pytest.mark.parametrize("forged", [False, True])
def test_point_that_fails_exact_test_is_not_returned(forged, monkeypatch):
    """An answer of the search that is not robust after all must not be passed on.

    Nor with evidence that is another point's: what it proves is tested on the answer itself.
    """
    net, train = two_columns()

    def wrong(problem, pieces, **options):
        point, evidence = problem.x + 0.01, ()
        if forged:
            oracle = Oracle(problem)
            good = train[pp.certify(net, train, 0.05, margin=0.1).robust][0]
            assert oracle.test(good)[0]
            evidence = tuple(replace(each, point=point) for each in oracle.evidence(good))
        return SearchResult(point, 0.01, 0.01, "optimal", evidence=evidence)

    monkeypatch.setattr(answer_module, "search", wrong)
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    answer = explainer.explain([[0.2, 0.3]])[0]
    assert answer.status == "feasible"
    check_promise(explainer, Schema.encoded(2), answer)
    answer = pp.Proplace(net, 0.05, k=3, region="box").fit(train).explain([[0.2, 0.3]])[0]
    assert not answer.found
    assert answer.encoded_counterfactual is None
    assert answer.reason


def test_answer_that_fails_narrowly_is_moved_into_hull(monkeypatch):
    """The solver's point misses the margin by 1e-7: a step towards a neighbour makes up for it."""
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    explainer = pp.Proplace(net, 0.05, k=3).fit(train)
    right = explainer.explain([[0.2, 0.3]])[0]
    search, cut = answer_module.search, []

    def short(problem, pieces, **options):
        outcome = search(problem, pieces, **options)
        goal = outcome.point - problem.x
        worst = pp.worst_case(net, outcome.point, 0.05).margin
        low, high = 0.0, 1.0
        for _ in range(60):  # towards the person until the margin is narrowly missed
            middle = (low + high) / 2
            margin = pp.worst_case(net, outcome.point - middle * goal, 0.05).margin
            low, high = (middle, high) if margin > problem.margin - 1e-7 else (low, middle)
        assert worst > problem.margin
        point = outcome.point - high * goal
        cut.append(float(problem.distance.between(problem.x, point)))
        return replace(outcome, point=point)

    monkeypatch.setattr(answer_module, "search", short)
    moved = explainer.explain([[0.2, 0.3]])[0]
    assert moved.status == "feasible"
    assert "narrowly failed the exact test" in moved.reason
    assert moved.certificate.check(net).accepted
    # a millionth of the way to a neighbour is enough
    assert moved.distance == pytest.approx(cut[0], abs=2e-6)
    assert moved.distance < right.distance
    assert (
        outside_hull(moved.encoded_counterfactual, moved.neighbours, moved.encoded_original) < 1e-9
    )
