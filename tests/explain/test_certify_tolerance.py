"""certify and worst_case with a tolerance in original units, for networks and pipelines."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from oracles import joint_attack, milp_box_margin, random_case
from proplace.core.errors import OptionError
from support.errors import raises
from support.people import debtors

TOLERANCE = {"income": 2.0, "debt": 1.5}


@pytest.fixture(scope="module")
def lender():
    return debtors()


def test_original_model_accepts_every_miss_of_robust_rows(lender):
    model, table = lender
    table = table[:120]
    report = pp.certify(model, table, 0.01, tolerance=TOLERANCE)
    plain = pp.certify(model, table, 0.01)
    assert 5 < report.robust.sum() < plain.robust.sum()
    assert not (report.robust & ~plain.robust).any()
    rng = np.random.default_rng(1)
    shares = [*itertools.product([-1.0, 1.0], repeat=2), *rng.uniform(-1.0, 1.0, (10, 2))]
    refused = np.zeros(len(table), dtype=bool)
    for share in shares:
        missed = table.astype(float)
        for name, s in zip(TOLERANCE, share, strict=True):
            missed[name] += s * TOLERANCE[name]
        refused |= model.predict(missed) == 0
    assert not (report.robust & refused).any()
    assert (plain.robust & refused).any()  # else nothing was tested


def test_verdicts_agree_with_mixed_integer_programs(lender):
    model, table = lender
    whole = pp.Model.of(model)
    rows = whole.encode(table[:25])
    report = pp.certify(model, table[:25], 0.01, tolerance=TOLERANCE, exact_margin=True)
    reach = np.zeros(3)
    for name, t in TOLERANCE.items():
        feature = whole.schema.by_name[name]
        reach[whole.schema.span(name)] = t / feature.scale
    for row, lower, robust in zip(rows, report.lower, report.robust, strict=True):
        worst = milp_box_margin(whole.network, row - reach, row + reach, 0.01, 1)
        assert lower == pytest.approx(worst, abs=1e-6)
        assert robust == (worst >= 0.0)


def test_certificates_name_box(lender):
    model, table = lender
    report = pp.certify(model, table[:20], 0.01, tolerance=TOLERANCE, certificates=True)
    whole = pp.Model.of(model)
    low, high = (
        whole.encode(table[:20].assign(**{n: table[n][:20] + s * t for n, t in TOLERANCE.items()}))
        for s in (-1, 1)
    )
    for i in np.flatnonzero(report.robust):
        certificate = report.certificates[i]
        assert certificate.check(whole.network, box=(low[i], high[i])).accepted


def test_worst_network_at_worst_miss():
    rng = np.random.default_rng(2)
    for hidden in range(4):
        case = random_case(rng, hidden, inputs=2, rows=1, width=3)
        t = {"x0": 0.5, "x1": 0.25}
        found = pp.worst_case(case.net, case.X[0], case.delta, case.target, tolerance=t)
        reach = np.array([*t.values()])
        low, high = case.X[0] - reach, case.X[0] + reach
        assert (np.abs(found.point - case.X[0]) <= reach + 1e-12).all()
        assert pp.Shifts.of(case.net, case.delta).contains(found.network)
        worst = milp_box_margin(case.net, low, high, case.delta, case.target)
        assert found.margin == pytest.approx(worst, abs=1e-6 * max(1.0, abs(worst)))
        assert found.margin == found.network.margin(found.point, case.target)[0]
        assert joint_attack(case.net, low, high, case.delta, case.target, rng) >= worst - 1e-6
        plain = pp.worst_case(case.net, case.X[0], case.delta, case.target)
        np.testing.assert_array_equal(plain.point, case.X[0])
        assert plain.margin >= found.margin - 1e-9


def test_float32_thresholds_cover_box(lender):
    net = pp.Network([([[1.0, -1.0]], [0.0])], precision="float32")
    schema = pp.Schema([pp.Continuous("a", 0, 1e6), pp.Continuous("b", 0, 1e6)])
    table = pd.DataFrame({"a": [2e5], "b": [1e5]})
    plain = pp.certify(net, table, 0.01, schema=schema)
    wide = pp.certify(net, table, 0.01, schema=schema, tolerance={"a": 7e5})
    assert wide.threshold[0] > 1.5 * plain.threshold[0]
    model, table = lender
    plain = pp.certify(model, table[:1], 0.01, margin="float32")
    wide = pp.certify(model, table[:1], 0.01, margin="float32", tolerance={"income": 5000.0})
    assert wide.threshold[0] > 2.0 * plain.threshold[0]


@pytest.mark.parametrize(
    ("tolerance", "words"),
    [
        ({"x9": 1.0}, "'x9' is not a feature"),
        ({"x0": -1.0}, "'x0'"),
        ([0.1, 0.1], "by feature name"),
        (0.1, "by feature name"),
    ],
)
def test_bad_tolerances_are_rejected(tolerance, words):
    net = pp.Network([([[1.0, -1.0]], [0.0])])
    for ask in (pp.certify, pp.worst_case):
        with raises(OptionError, name="tolerance", match=words):
            ask(net, [1.0, 0.0], 0.1, tolerance=tolerance)
