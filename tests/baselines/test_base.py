"""Common behaviour of all methods: interface, legal points, rows that fail alone, equal results."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.baselines import METHODS, Baseline, Candidate, RobustBaseline, published
from proplace.core.errors import OptionError, SolverError
from support.errors import raises

QUICK = {  # small sizes: what is tested here does not depend on them
    "WCE": {},
    "RBR": {"samples": 40, "iterations": 30},
    "RobX": {"samples": 100},
    "ROAR": {"samples": 500},
    "PROTO-R": {"iterations": 60, "c_steps": 4},
    "MILP-R": {},
    "RNCE": {"steps": 5},
}
NAMES = list(QUICK)


def build(name, net, **options):
    arguments = QUICK[name] | options
    if issubclass(METHODS[name], RobustBaseline):
        return METHODS[name](net, 0.01, **arguments)
    return METHODS[name](net, **arguments)


def test_every_method_of_paper_is_registered():
    assert set(METHODS) == set(QUICK), "the tests of all methods need sizes of each"
    for name in ("Wachter", "Roar", "Rbr", "RobX", "ProtoR", "MilpR", "Rnce"):
        assert getattr(pp.baselines, name) in METHODS.values()


@pytest.mark.parametrize("name", NAMES)
def test_end_to_end(name, case):
    result = build(name, case.net).fit(case.train).explain(case.refused)
    assert len(result) == len(case.refused)
    assert result.complete
    found = [e for e in result if e.found]
    assert len(found) >= 9
    for e in found:
        assert e.status in ("feasible", "valid")
        assert case.net.predict(e.encoded_counterfactual)[0] == 1
        assert e.distance == pytest.approx(
            np.abs(e.encoded_counterfactual - e.encoded_original).mean()
        )
        assert (e.encoded_counterfactual >= case.train.min(axis=0) - 1e-12).all()
        assert (e.encoded_counterfactual <= case.train.max(axis=0) + 1e-12).all()
        assert e.seconds > 0.0
        robust = pp.certify(case.net, e.encoded_counterfactual, 0.01).robust[0]
        if issubclass(METHODS[name], RobustBaseline):
            assert (e.status == "feasible") == robust
            assert e.margin <= case.net.margin(e.encoded_counterfactual)[0]
            assert (e.margin >= 0.0) == robust
        else:
            assert e.status == "valid"
            assert e.margin == case.net.margin(e.encoded_counterfactual)[0]


@pytest.mark.parametrize("name", NAMES)
def test_answers_do_not_depend_on_company_or_processes(name, case):
    method = build(name, case.net).fit(case.train)
    together = method.explain(case.refused[:6]).encoded_counterfactuals
    np.testing.assert_array_equal(
        method.explain(case.refused[:6][::-1]).encoded_counterfactuals[::-1], together
    )
    np.testing.assert_array_equal(
        method.explain(case.refused[2:3]).encoded_counterfactuals, together[2:3]
    )
    np.testing.assert_array_equal(
        method.explain(case.refused[3:6]).encoded_counterfactuals, together[3:6]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RBR", "ROAR"])
def test_same_answers_in_two_processes(name, case):
    one = build(name, case.net).fit(case.train).explain(case.refused[:6])
    two = build(name, case.net, n_jobs=2).fit(case.train).explain(case.refused[:6])
    np.testing.assert_array_equal(one.encoded_counterfactuals, two.encoded_counterfactuals)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["RBR", "RobX", "ROAR"])
def test_seed_matters_for_random_methods(name, case):
    one = (
        build(name, case.net, seed=1).fit(case.train).explain(case.refused).encoded_counterfactuals
    )
    two = (
        build(name, case.net, seed=2).fit(case.train).explain(case.refused).encoded_counterfactuals
    )
    same = (
        build(name, case.net, seed=1).fit(case.train).explain(case.refused).encoded_counterfactuals
    )
    np.testing.assert_array_equal(one, same)
    assert (one != two).any()


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_respected(name, frame_case):
    net, schema, frame = frame_case
    people = frame[net.predict(schema.encode(frame)) == 0].iloc[:8]
    method = build(name, net, schema=schema).fit(frame)
    result = method.explain(people)
    assert [e.index for e in result] == list(people.index)
    found = [e for e in result if e.found]
    assert len(found) >= 5
    for e in found:
        assert e.counterfactual["age"] == people.loc[e.index, "age"]
        assert schema.legal(e.encoded_counterfactual[None])[0]
        again = schema.encode(pd.DataFrame([e.counterfactual]))
        np.testing.assert_array_equal(again[0], e.encoded_counterfactual)
        assert net.predict(again)[0] == 1


@pytest.mark.parametrize("name", NAMES)
def test_other_targets(name, several_classes):
    case = several_classes
    result = build(name, case.net).fit(case.train).explain(case.refused, target=2)
    found = [e for e in result if e.found]
    assert len(found) >= 8
    assert (case.net.predict(np.array([e.encoded_counterfactual for e in found])) == 2).all()


@pytest.mark.parametrize("name", NAMES)
def test_class_zero_of_one_logit(name, case):
    accepted = case.train[case.net.predict(case.train) == 1][:4]
    result = build(name, case.net).fit(case.train).explain(accepted, target=0)
    found = [e for e in result if e.found]
    assert found
    assert (case.net.predict(np.array([e.encoded_counterfactual for e in found])) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_bad_and_accepted_rows_lose_no_others(name, case):
    rows = case.refused[:3].copy()
    accepted = case.train[case.net.predict(case.train) == 1][:1]
    broken = rows[:1].copy()
    broken[0, 1] = np.nan
    method = build(name, case.net).fit(case.train)
    result = method.explain(np.vstack([rows[:1], broken, accepted, rows[1:]]))
    assert result[1].status == "bad_input"
    assert result[1].reason == "column 'x1': nan is not finite"
    assert result[2].status == "already_valid"
    assert result[2].distance == 0.0
    np.testing.assert_array_equal(result[2].encoded_counterfactual, accepted[0])
    good = method.explain(rows).encoded_counterfactuals
    np.testing.assert_array_equal(result.encoded_counterfactuals[[0, 3, 4]], good)


class Fussy(Baseline):
    """Fails on rows whose first column is above a half, as a batch and alone."""

    def propose(self, X, target):
        if (X[:, 0] > 0.5).any():
            raise ArithmeticError("too large")
        return [Candidate(self.rows_[self.net_.predict(self.rows_) == target][0]) for _ in X]


def test_row_that_fails_in_batch_fails_alone(case):
    result = Fussy(case.net).fit(case.train).explain(case.refused)
    large = case.refused[:, 0] > 0.5
    assert large.any()
    assert not large.all()
    for e, bad in zip(result, large, strict=True):
        assert e.status == ("bad_input" if bad else "valid")
        if bad:
            assert "ArithmeticError: too large" in e.reason


class Stubborn(Baseline):
    """Gives the row back, or nothing."""

    def propose(self, X, target):
        return [Candidate(x if i % 2 else None) for i, x in enumerate(X)]


def test_points_of_wrong_class_are_not_answers(case):
    result = Stubborn(case.net).fit(case.train).explain(case.refused[:4])
    assert [e.status for e in result] == ["not_found"] * 4
    assert all(e.encoded_counterfactual is None and e.reason for e in result)
    assert not any(e.found for e in result)


class RuleBreaker(Baseline):
    """Moves the immutable feature."""

    def propose(self, X, target):
        rows = self.rows_[self.net_.predict(self.rows_) == target]
        return [Candidate(rows[np.flatnonzero(rows[:, 0] != x[0])[0]]) for x in X]


def test_points_that_break_rule_are_not_answers(frame_case):
    net, schema, frame = frame_case
    people = frame[net.predict(schema.encode(frame)) == 0].iloc[:2]
    result = RuleBreaker(net, schema=schema).fit(frame).explain(people)
    assert [e.status for e in result] == ["infeasible_rules"] * 2
    assert "age is immutable" in result[0].reason


def test_legal_points_are_within_bounds_of_person(frame_case):
    net, schema, frame = frame_case
    method = build("WCE", net, schema=schema).fit(frame)
    X = schema.encode(frame.iloc[:5])
    bounds = method.bounds(X)
    wild = np.random.default_rng(0).normal(0.5, 2.0, X.shape)
    points = method.legal(wild, bounds)
    np.testing.assert_array_equal(points[:, 0], X[:, 0])  # age is immutable
    assert schema.legal(points).all()
    free = build("WCE", net).fit(X)
    low, high = free.bounds(X[:1] + 9.0)
    np.testing.assert_array_equal(low[0], X.min(axis=0))
    np.testing.assert_array_equal(high[0], X[0] + 9.0)  # a person outside the range stays there
    np.testing.assert_array_equal(free.legal(X[:1] + 99.0, (low, high)), high)


def test_rules_between_features_hold(frame_case):
    net, schema, frame = frame_case
    rule = pp.schema.Linear(terms={"income": 1.0, "loans": 100.0}, upper=1000.0)
    ruled = pp.Schema(schema.features, rules=[rule])
    people = frame[net.predict(schema.encode(frame)) == 0].iloc[:6]
    for name in ("MILP-R", "RNCE"):
        result = build(name, net, schema=ruled).fit(frame).explain(people)
        found = [e for e in result if e.found]
        assert found
        for e in found:
            cells = e.counterfactual
            assert cells["income"] + 100.0 * cells["loans"] <= 1000.0 + 1e-6


def test_plain_table_keeps_its_index(case):
    frame = pd.DataFrame(case.refused[:3], index=["a", "b", "c"], columns=list("wxyz"))
    train = pd.DataFrame(case.train, columns=list("wxyz"))
    result = build("RNCE", case.net).fit(train).explain(frame)
    assert list(result.to_frame().index) == ["a", "b", "c"]
    assert list(result.to_frame().columns[:4]) == list("wxyz")


def test_unfitted_baseline_raises_not_fitted_error(case):
    with pytest.raises(pp.errors.NotFittedError):
        pp.baselines.Wachter(case.net).explain(case.refused)


def test_second_fit_forgets_first(case):
    method = build("RNCE", case.net).fit(case.train)
    first = method.explain(case.refused[:4]).encoded_counterfactuals
    half = case.train[::2]
    second = method.fit(half).explain(case.refused[:4]).encoded_counterfactuals
    np.testing.assert_array_equal(
        second, build("RNCE", case.net).fit(half).explain(case.refused[:4]).encoded_counterfactuals
    )
    assert (first != second).any()


@pytest.mark.every(2)
@pytest.mark.parametrize("name", NAMES)
def test_second_target_forgets_first(name, case):
    refused = case.refused[:3]
    accepted = case.train[case.net.predict(case.train) == 1][:3]
    method = build(name, case.net).fit(case.train)
    method.explain(refused)
    second = method.explain(accepted, target=0).encoded_counterfactuals
    fresh = (
        build(name, case.net).fit(case.train).explain(accepted, target=0).encoded_counterfactuals
    )
    np.testing.assert_array_equal(second, fresh)
    assert np.isfinite(second).any()


class OutOfLuck(Baseline):
    """Has a solver that fails."""

    def propose(self, X, target):
        raise SolverError("no answer")


def test_solver_that_fails_is_not_fault_of_row(case):
    result = OutOfLuck(case.net).fit(case.train).explain(case.refused[:2])
    assert [e.status for e in result] == ["solver_error"] * 2
    assert "no answer" in result[0].reason


@pytest.mark.parametrize(
    ("name", "options", "wrong"),
    [
        ("WCE", {"rate": 0.0}, "rate"),
        ("WCE", {"penalty": -1.0}, "penalty"),
        ("WCE", {"seed": -1}, "seed"),
        ("RBR", {"samples": 0}, "samples"),
        ("RBR", {"sigma": np.inf}, "sigma"),
        ("RobX", {"tau": 1.0}, "tau"),
        ("ROAR", {"delta_max": np.nan}, "delta_max"),
        ("PROTO-R", {"kappas": ()}, "kappas"),
        ("PROTO-R", {"kappas": (0.1, 1.2)}, "kappas"),
        ("MILP-R", {"step": 0.0}, "step"),
        ("RNCE", {"steps": 1.5}, "steps"),
    ],
)
def test_options_are_checked(name, options, wrong, case):
    with raises(OptionError, name=wrong):
        build(name, case.net, **options).fit(case.train)


@pytest.mark.parametrize("data", ["adult", "compas", "gmc", "HELOC"])
def test_published_options_build_methods(data, case):
    for name in NAMES:
        kind, options = METHODS[name], published(name, data)
        if issubclass(kind, RobustBaseline):
            options = {"delta": 0.02} | options
        method = kind(case.net, **options)
        for key, value in published(name, data).items():
            if key != "delta":
                assert getattr(method, key) == value


def test_published_options_are_those_of_paper_runs():
    assert published("WCE", "gmc") == {"rate": 0.1, "penalty": 0.001, "iterations": 100}
    assert published("WCE", "heloc") == {"rate": 0.01, "penalty": 0.01, "iterations": 100}
    assert published("ROAR", "gmc") == {"rate": 0.1, "penalty": 0.08, "delta_max": 0.2}
    assert published("RobX", "gmc")["tau"] == 0.6
    assert [published("MILP-R", d)["delta"] for d in ("compas", "heloc", "adult", "gmc")] == [
        0.03,
        0.04,
        0.05,
        0.08,
    ]
    with raises(OptionError, name="name", value="FACE"):
        published("FACE", "gmc")
    with raises(OptionError, name="dataset", value="iris"):
        published("WCE", "iris")
