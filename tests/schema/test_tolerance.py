"""Tolerances in original units: every cell that misses by no more has its code in the box."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction as Q

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import proplace as pp
from proplace.core.errors import OptionError
from proplace.core.guarantee import around
from support.errors import raises

FEATURES = [
    pp.Continuous("plain", 0, 1),
    pp.Continuous("income", 0, 2e5, step=100),
    pp.Continuous("year", 1990, 2030, step=1),
    pp.Continuous("share", 0, 1, step=0.01),
    pp.Continuous("as_is", -1000, 1000, scaling="none"),
    pp.Continuous("far", 1e6, 1e6 + 1, scaling=(1e6 + 0.3, 0.1)),
    pp.Continuous("thin", 0, 100, scaling=(50.0, 1e-7)),
    pp.Continuous("wide", 0, 1, scaling=(0.1, 1e7)),
    pp.Continuous("unbounded", scaling=(3.0, 7.0)),
]


def decimals(rng, low, high, digits):
    """A number as people write it."""
    return Decimal(repr(round(float(rng.uniform(low, high)), digits)))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_values_within_tolerance_have_codes_in_box(feature):
    """Ends included, as decimal numbers: 0.7 plus 0.1 is 0.8, unlike their floats."""
    rng = np.random.default_rng(0)
    schema = pp.Schema([feature])
    low = -50.0 if feature.lower is None else feature.lower
    high = 50.0 if feature.upper is None else feature.upper
    tight = 0
    for _ in range(300):
        digits = int(rng.integers(0, 9))
        v = decimals(rng, low, high, digits)
        reach = (high - low) * 10.0 ** float(rng.uniform(-9, -0.5))
        t = Decimal(repr(float(f"{reach:.{int(rng.integers(1, 5))}g}")))
        shares = [Decimal(1), Decimal(-1), Decimal(repr(round(float(rng.uniform(-1, 1)), 3)))]
        missed = [w for share in shares if low <= (w := v + share * t) <= high]
        if not low <= v <= high or not missed or not t:
            continue
        encoded = schema.encode_tolerance(schema.check_tolerance({feature.name: float(t)}))
        rows = schema.encode(pd.DataFrame({feature.name: [float(v)]}))
        (box_low,), (box_high,) = (end[0] for end in around(rows, encoded))
        codes = schema.encode(pd.DataFrame({feature.name: [float(w) for w in missed]}))[:, 0]
        assert ((codes >= box_low) & (codes <= box_high)).all()
        for w in missed:  # as real numbers too: a model that scales in more digits
            exact = (Q(w) - Q(feature.offset)) / Q(feature.scale)
            assert Q(box_low) <= exact <= Q(box_high)
        snapped = 2e-6 * (feature.step or 0.0) / feature.scale
        roundings = 1e-12 * (abs(box_low) + abs(feature.offset / feature.scale))
        tight += box_high - box_low <= 2.0001 * float(t) / feature.scale + snapped + roundings
    assert tight >= 50


def test_cell_that_is_snapped_to_step_stays_in_box():
    schema = pp.Schema([pp.Continuous("a", 0, 10, step=1)])
    t = 1.0 - 1e-7
    code = schema.encode(pd.DataFrame({"a": [5.0, 5.0 + t]}))
    assert code[1] == 0.6
    low, high = around(code[:1], schema.encode_tolerance({"a": (t, t)}))
    assert low[0] <= code[1] <= high[0]


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler()])
def test_scaler_of_model_itself_stays_in_box(scaler):
    rng = np.random.default_rng(1)
    cells = np.round(rng.uniform(1e3, 1e5, (50, 1)), 2)
    scaler.fit(cells)
    standard = isinstance(scaler, StandardScaler)
    offset = float((scaler.mean_ if standard else scaler.data_min_)[0])
    scale = float(scaler.scale_[0] if standard else scaler.data_range_[0])
    schema = pp.Schema([pp.Continuous("x", 0, 2e5, scaling=(offset, scale))])
    for t in (1e-6, 0.01, 7.0, 12345.0):
        encoded = schema.encode_tolerance({"x": (t, t)})
        rows = schema.encode(pd.DataFrame({"x": cells[:, 0]}))
        low, high = around(rows, encoded)
        for share in (-1.0, -0.3, 1.0):
            codes = scaler.transform(cells + share * t)
            assert (codes >= low).all()
            assert (codes <= high).all()


def test_other_columns_are_met_exactly():
    schema = pp.Schema([pp.Continuous("a", 0, 1), pp.Categorical("b", ["x", "y", "z"])])
    encoded = schema.encode_tolerance(schema.check_tolerance({"a": 0.25}))
    rows = np.array([[0.5, 0.0, 1.0, 0.0]])
    low, high = around(rows, encoded)
    np.testing.assert_array_equal(low[:, 1:], rows[:, 1:])
    np.testing.assert_array_equal(high[:, 1:], rows[:, 1:])
    assert low[0, 0] == pytest.approx(0.25)
    assert schema.encode_tolerance(schema.check_tolerance(None)) is None
    assert schema.encode_tolerance(schema.check_tolerance({"a": 0})) is None


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "much", True, None])
def test_bad_numbers_are_refused(bad):
    schema = pp.Schema([pp.Continuous("a", 0, 1)])
    for given in (bad, (0, bad), (bad, 0, 0)):
        with raises(OptionError, name="tolerance", match="'a'"):
            schema.check_tolerance({"a": given})


def test_impossible_tolerance_is_rejected():
    schema = pp.Schema(
        [
            pp.Continuous("age", 18, 90, immutable=True),
            pp.Categorical("job", ["x", "y", "z"]),
            pp.Ordinal("grade", ["low", "high"]),
            pp.Binary("home"),
        ]
    )
    for name, word in (
        ("job", "not a number"),
        ("grade", "not a number"),
        ("home", "not a number"),
        ("ages", "did you mean 'age'"),
    ):
        with raises(OptionError, name="tolerance", value=name, match=word):
            schema.check_tolerance({name: 1.0})


def test_immutable_feature_may_be_missed():
    schema = pp.Schema([pp.Continuous("age", 18, 90, immutable=True)])
    assert schema.check_tolerance({"age": 1}) == {"age": (1.0, 1.0)}


def test_pair_opens_box_on_its_own_sides():
    schema = pp.Schema([pp.Continuous("age", 0, 10), pp.Continuous("debt", 0, 10)])
    encoded = schema.encode_tolerance(schema.check_tolerance({"age": (0, 1), "debt": (2, 0.5)}))
    low, high = around(np.array([[0.5, 0.5]]), encoded)
    assert low[0].tolist() == pytest.approx([0.5, 0.3])
    assert high[0].tolist() == pytest.approx([0.6, 0.55])
    assert low[0, 0] == 0.5
