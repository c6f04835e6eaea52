"""Values as people write them."""

import numpy as np
import pytest

import proplace as pp
from proplace.core.text import listing, short
from proplace.explain.claims import difference, format_pair, format_value
from proplace.schema.values import amount, number


def feature(unit=None, step=1, upper=1e6, lower=0):
    return pp.Continuous("f", lower, upper, step=step, unit=unit)


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.0, None, "0"),
        (-0.0, 2, "0"),
        (1998, None, "1998"),
        (9999.5, None, "9999.5"),
        (10_000, None, "10,000"),
        (1_234_567.0, None, "1,234,567"),
        (-12_000, 0, "-12,000"),
        (0.1, None, "0.1"),
        (1 / 3, None, "0.333333…"),
        (1e-7, None, "1e-07"),
        (0.8, 2, "0.80"),
        (np.float64(2.5), 1, "2.5"),
        (3e20, None, "3e+20"),
    ],
)
def test_numbers(value, decimals, text):
    assert number(value, decimals) == text


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (None, 31, "31"),
        ("years", 1, "1 year"),
        ("years", 2, "2 years"),
        ("years", 0, "0 years"),
        ("child|children", 1, "1 child"),
        ("child|children", 3, "3 children"),
        ("late payment|late payments", 1, "1 late payment"),
        ("thousand dollars", 1, "1 thousand dollars"),
        ("degrees Celsius", 1, "1 degrees Celsius"),
        ("Celsius", 1, "1 Celsius"),
        ("kg", 1, "1 kg"),
        ("%", 31, "31%"),
        ("% of income", 31, "31% of income"),
        ("$", 12_000, "$12,000"),
        ("€", 5, "€5"),
        ("°C", 20, "20°C"),
    ],
)
def test_units(unit, value, text):
    assert amount(feature(unit), value) == text


def test_currency_sign_follows_minus():
    assert amount(feature("$", lower=-1e6), -500) == "-$500"


@pytest.mark.parametrize(
    ("step", "value", "text"),
    [(0.01, 0.8, "0.80"), (0.5, 2, "2"), (100, 1200, "1200"), (1 / 3, 2 / 3, "0.666666…")],
)
def test_decimals_are_those_of_step(step, value, text):
    assert amount(feature(step=step, upper=1e4), value) == text


def test_grid_may_start_off_step():
    assert amount(pp.Continuous("f", 0.25, 10, step=1), 1.25) == "1.25"


@pytest.mark.parametrize(
    ("f", "before", "after", "texts"),
    [
        (feature("% of income"), 38, 31, ("31% of income", "38%")),
        (feature("years"), 2, 1, ("1 year", "2")),
        (feature("$"), 100, 90_000, ("$90,000", "$100")),
        (pp.Ordinal("o", ["C", "B", "A"]), "C", "A", ("“A”", "“C”")),
        (pp.Ordinal("o", [1, 2, 4], unit="rooms"), 1, 4, ("4 rooms", "1")),
        (pp.Categorical("c", ["cook", "clerk"]), "cook", "clerk", ("“clerk”", "“cook”")),
        (pp.Categorical("c", [10, 20]), 10, 20, ("20", "10")),
        (pp.Binary("b"), 0, 1, ("yes", "no")),
        (pp.Binary("b", [False, True]), np.True_, np.False_, ("no", "yes")),
        (pp.Binary("b", ["No", "Yes"]), "Yes", "No", ("no", "yes")),
        (pp.Binary("b", ["rents", "owns"]), "rents", "owns", ("“owns”", "“rents”")),
        (None, "a", "b", ("“b”", "“a”")),
        (None, 1.0, 2.5, ("2.5", "1")),
    ],
)
def test_pairs(f, before, after, texts):
    assert format_pair(f, before, after) == texts


def test_values_too_near_for_six_digits_are_written_out():
    free = pp.Continuous("f", 0, 1)
    assert format_pair(free, 0.1234561, 0.1234563) == ("0.1234563", "0.1234561")


@pytest.mark.parametrize(
    ("f", "before", "after", "text"),
    [
        (feature("% of income"), 38, 31, "7 percentage points lower"),
        (feature("%"), 30, 31, "1 percentage point higher"),
        (feature("dollars"), 0, 12_000, "12,000 dollars higher"),
        (feature("$"), 12_000, 0, "$12,000 lower"),
        (feature("years"), 3, 2, "1 year lower"),
        (feature(step=0.01), 0.3, 0.1, "0.20 lower"),
        (pp.Continuous("f", 0, 1), 0.3, 0.1, "0.2 lower"),
        (pp.Ordinal("o", [1, 2, 4]), 1, 4, "3 higher"),
        (pp.Ordinal("o", ["C", "B"]), "C", "B", ""),
        (pp.Categorical("c", ["a", "b"]), "a", "b", ""),
        (pp.Binary("b"), 0, 1, ""),
        (None, 1.0, 2.0, ""),
    ],
)
def test_differences(f, before, after, text):
    assert difference(f, before, after) == text


def test_value_alone_is_never_rounded():
    free = pp.Continuous("f", 0, 1e6, unit="dollars")
    assert format_value(free, 123456.789) == "123,456.789 dollars"
    assert format_value(pp.Continuous("f", 0, 1), 2 / 3) == "0.666666…"
    assert format_value(None, 1 / 3) == "0.333333…"


def test_value_alone():
    assert format_value(pp.Categorical("c", ["a", "b"]), "a") == "a"
    assert format_value(feature("years"), 1) == "1 year"
    assert format_value(pp.Ordinal("o", [True, False], values=[0, 1]), True) == "True"


def test_messages_write_numbers_as_people_do():
    assert short(np.int64(32)) == "32"
    assert short([np.float64(0.5), np.str_("cook")]) == "[0.5, 'cook']"
    assert listing(np.array([1, 2])) == "1, 2"
