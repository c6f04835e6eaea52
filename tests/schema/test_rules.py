"""Rules and bounds, against a check of decoded tables written without looking at the package."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import SchemaError
from proplace.schema import Binary, Categorical, Continuous, IfThen, Linear, Ordinal, Schema, Then
from support.errors import raises

EDUCATION = ["School", "Bachelor", "Doctorate"]
GRADES = {"A": 0.0, "B": 1.0, "C": 4.0}
NUMERIC = ["age", "income", "debt", "grade", "owner"]


def random_schema(rng):
    """A schema with random flags and rules, always with the same six features."""

    def flags(unit):
        return {
            "immutable": bool(rng.random() < 0.15),
            "direction": [None, None, "increasing", "decreasing"][rng.integers(4)],
            "max_increase": [None, 2 * unit, 5 * unit][rng.integers(3)],
            "max_decrease": [None, 3 * unit][rng.integers(2)],
        }

    def pick(options):
        chosen = [option for option in options if rng.random() < 0.4] or [options[-1]]
        return chosen if rng.random() < 0.7 else chosen[0]

    def condition():
        choices = {"education": EDUCATION, "town": ["x", "y", "z"], "owner": ["no", "yes"]}
        names = rng.permutation(list(choices))[: rng.integers(1, 3)]
        return {str(name): pick(choices[str(name)]) for name in names}

    def consequence():
        kind, name = rng.integers(3), str(rng.choice(NUMERIC))
        if kind == 0:
            return Then(name, at_least=int(rng.integers(-2, 3)), change=True)
        if kind == 1:
            low = int(rng.integers(0, 30))
            return Then(name, at_least=low, at_most=low + int(rng.integers(5, 40)))
        return Then("town", pick(["x", "y", "z"]))

    rules = []
    for _ in range(rng.integers(0, 4)):
        if rng.random() < 0.5:
            names = rng.choice(NUMERIC, 2, replace=False)
            terms = {str(name): float(rng.choice([-2, -1, 0.5, 1, 3])) for name in names}
            low = float(rng.integers(-60, 20))
            rules.append(Linear(terms, lower=low, upper=low + 100 if rng.random() < 0.5 else None))
        else:
            then = [consequence() for _ in range(rng.integers(1, 3))]
            rules.append(IfThen(condition(), then, becomes=bool(rng.random() < 0.5)))
    encoding = ["onehot", "dropfirst"]
    return Schema(
        [
            Continuous("age", 20, 60, step=1, **flags(1)),
            Categorical(
                "education",
                EDUCATION,
                encoding=encoding[rng.integers(2)],
                immutable=bool(rng.random() < 0.2),
            ),
            Continuous("income", 0, 50, step=0.5, scaling=(12.0, 7.0), **flags(2)),
            Continuous("debt", -10, 30, **flags(3)),
            Ordinal("grade", list(GRADES), values=list(GRADES.values()), **flags(1)),
            Categorical("town", ["x", "y", "z"], encoding=encoding[rng.integers(2)]),
            Binary(
                "owner",
                ["no", "yes"],
                immutable=bool(rng.random() < 0.2),
                direction=[None, "increasing", "decreasing"][rng.integers(3)],
            ),
        ],
        rules=rules,
    )


def random_frame(rng, n):
    return pd.DataFrame(
        {
            "age": rng.integers(20, 61, n),
            "education": rng.choice(EDUCATION, n),
            "income": rng.integers(0, 101, n) / 2,
            "debt": rng.integers(-100, 301, n) / 10,
            "grade": rng.choice(list(GRADES), n),
            "town": rng.choice(["x", "y", "z"], n),
            "owner": rng.choice(["no", "yes"], n),
        }
    )


def near(rng, person, n):
    """Rows that differ from a person in few cells, so that many of them are allowed."""
    other = random_frame(rng, n)
    keep = rng.random((n, other.shape[1])) < 0.6
    for j, name in enumerate(other.columns):
        other.loc[keep[:, j], name] = person[name]
    return other


def drawn(seed):
    """Random numbers, a schema, a person as a table row, and the person."""
    rng = np.random.default_rng(seed)
    schema = random_schema(rng)
    old = random_frame(rng, 1).iloc[0]
    return rng, schema, old, schema.person(schema.encode(pd.DataFrame([old]))[0])


# -- the independent check -------------------------------------------------------------------------

EPS = 1e-6


def value(row, name):
    cell = row[name]
    if name == "grade":
        return GRADES[cell]
    return float(cell == "yes") if name == "owner" else float(cell)


def in_labels(cell, labels):
    return cell in labels if isinstance(labels, (list, tuple)) else cell == labels


def between(v, low, high):
    return (low is None or v >= low - EPS) and (high is None or v <= high + EPS)


def flags_hold(feature, old, new):
    if feature.immutable and old[feature.name] != new[feature.name]:
        return False
    if feature.kind == "categorical":
        return True
    change = value(new, feature.name) - value(old, feature.name)
    if feature.direction == "increasing" and change < -EPS:
        return False
    if feature.direction == "decreasing" and change > EPS:
        return False
    if feature.kind == "binary":
        return True
    return between(
        change,
        None if feature.max_decrease is None else -feature.max_decrease,
        feature.max_increase,
    )


def rule_holds(rule, old, new):
    if isinstance(rule, Linear):
        total = sum(c * value(new, name) for name, c in rule.terms.items())
        return between(total, rule.lower, rule.upper)
    now = all(in_labels(new[name], labels) for name, labels in rule.when.items())
    before = all(in_labels(old[name], labels) for name, labels in rule.when.items())
    if not now or (rule.becomes and before):
        return True
    for part in rule.then:
        if part.category is not None:
            good = in_labels(new[part.feature], part.category)
        else:
            v = value(new, part.feature)
            if part.change:
                v -= value(old, part.feature)
            good = between(v, part.at_least, part.at_most)
        if not good:
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_allowed_and_broken_rules_agree_with_table(seed):
    rng, schema, old, person = drawn(seed)
    frame = near(rng, old, 60)
    X = schema.encode(frame)
    rows = [row for _, row in frame.iterrows()]
    expected = [
        all(flags_hold(f, old, row) for f in schema.features)
        and all(rule_holds(r, old, row) for r in schema.rules)
        for row in rows
    ]
    assert person.allowed(X).tolist() == expected
    counted = person.broken_rules(X)
    assert bool(counted) == (not all(expected))
    counts = list(counted.values())
    assert counts == sorted(counts, reverse=True)
    for feature in schema.features:
        if feature.immutable:
            broken = sum(old[feature.name] != row[feature.name] for row in rows)
            assert counted.get(f"{feature.name} is immutable", 0) == broken
    words = [rule.words(schema.by_name) for rule in schema.rules]
    for rule, label in zip(schema.rules, words, strict=True):
        if words.count(label) == 1:
            broken = sum(not rule_holds(rule, old, row) for row in rows)
            assert counted.get(label, 0) == broken


@pytest.mark.parametrize("seed", range(60))
def test_bounds_profiles_and_inequalities_together_are_allowed(seed):
    """The pieces of the search agree with ``allowed`` on whole rows."""
    rng, schema, old, person = drawn(1000 + seed)
    X = schema.encode(near(rng, old, 50))
    for row, allowed in zip(X, person.allowed(X), strict=True):
        inside = ((row >= person.lower - 1e-9) & (row <= person.upper + 1e-9)).all()
        profile = np.full(schema.width, 0.123)
        profile[schema.profile_columns] = row[schema.profile_columns]
        A, lower, upper, labels = person.linear(profile)
        assert A.shape == (len(labels), schema.width)
        assert lower.shape == upper.shape == (len(labels),)
        assert np.allclose(np.abs(A).sum(axis=1), 1.0)
        sums = A @ row
        fits = ((sums >= lower - 1e-9) & (sums <= upper + 1e-9)).all()
        assert allowed == (inside and fits and person.profile_allowed(profile))


@pytest.mark.parametrize("seed", range(30))
def test_bounds_are_tight_and_legal(seed):
    _, schema, old, person = drawn(2000 + seed)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if feature.name not in ("age", "income", "grade"):
            continue
        legal = {
            "age": np.arange(20, 61),
            "income": np.arange(0, 101) / 2,
            "grade": list(GRADES),
        }[feature.name]
        rows = pd.DataFrame([old] * len(legal)).assign(**{feature.name: legal})
        codes = schema.encode(rows)[:, span.start]
        good = [flags_hold(feature, old, row) for _, row in rows.iterrows()]
        assert person.lower[span.start] == codes[good].min()
        assert person.upper[span.start] == codes[good].max()
    assert (person.lower <= person.x).all()
    assert (person.x <= person.upper).all()


@pytest.mark.parametrize("seed", range(30))
def test_adapted_rows_are_legal_and_meet_bounds(seed):
    rng, schema, _, person = drawn(3000 + seed)
    X = schema.encode(random_frame(rng, 40))
    before = X.copy()
    Y = person.adapt(X)
    assert np.array_equal(before, X)
    assert schema.legal(Y).all()
    profile = schema.profile_columns
    numeric = np.setdiff1d(np.arange(schema.width), profile)
    assert (Y[:, profile] == X[:, profile]).all()
    assert (Y[:, numeric] >= person.lower[numeric]).all()
    assert (Y[:, numeric] <= person.upper[numeric]).all()
    fits = np.clip(X, person.lower, person.upper) == X
    assert (Y[:, numeric] == X[:, numeric])[fits[:, numeric]].all()
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if feature.immutable and feature.name in ("age", "income", "debt", "grade"):
            assert (Y[:, span] == person.x[span]).all()


def test_adapt_leaves_free_columns_alone():
    schema = Schema([Continuous("a", 0, 1), Continuous("b", 0, 1, immutable=True), Binary("c")])
    person = schema.person([0.5, 0.5, 1.0])
    assert person.adapt([[0.1, 0.2, 0.0]]).tolist() == [[0.1, 0.5, 0.0]]
    assert person.adapt([7.0, 0.2, 1.0]).tolist() == [[1.0, 0.5, 1.0]]  # to the end of its range


# -- words and corners -----------------------------------------------------------------------------


def test_labels_are_sentences():
    schema = Schema(
        [
            Continuous("age", 20, 70, step=1, direction="increasing", max_increase=5, unit="years"),
            Continuous("inc", 0, 9, direction="decreasing", max_decrease=2, label="income"),
            Binary("sex", ["F", "M"], immutable=True),
            Categorical("education", EDUCATION),
        ],
        rules=[
            Linear({"inc": 1, "age": -2}, upper=-40),
            IfThen({"education": "Doctorate"}, [Then("age", at_least=4, change=True)]),
            IfThen({"sex": ["M"]}, [Then("inc", at_most=1)], becomes=False, name="men"),
        ],
    )
    start = {"age": 30, "inc": 5.0, "sex": "F", "education": "School"}
    frame = pd.DataFrame(
        [
            {**start, "age": 29},
            {**start, "age": 36},
            {**start, "inc": 6.0},
            {**start, "inc": 2.0},
            {**start, "sex": "M"},
            {**start, "education": "Doctorate", "age": 33},
            {**start, "age": 22},
            start,
        ]
    )
    person = schema.person(schema.encode(frame)[-1])
    outside = schema.encode(frame)
    outside[-1, 0] = 1.5
    assert person.broken_rules(outside) == {
        "age may only increase": 2,
        "age may rise by at most 5 years": 2,
        "income may only decrease": 1,
        "income may fall by at most 2": 1,
        "sex is immutable": 1,
        "age stays in its range": 1,
        "income - 2*age is at most -40": 1,
        "if education becomes Doctorate then age rises by at least 4": 1,
        "men": 1,
    }
    assert person.allowed(outside).tolist() == [False] * 8
    assert person.broken_rules(schema.encode(frame)[-1:]) == {}


@pytest.mark.parametrize(
    ("unit", "limit", "said"),
    [
        ("$", 9402, "$9402"),
        ("$", 12_500.5, "$12,500.5"),
        ("% of income", 1, "1 percentage point"),
        ("dollars", 2.5, "2.5 dollars"),
        ("child|children", 1, "1 child"),
    ],
)
def test_limits_are_written_like_values_of_answers(unit, limit, said):
    feature = Continuous("a", 0, 1e5, step=1, unit=unit, max_increase=limit, max_decrease=limit)
    person = Schema([feature]).person([0.5])
    assert list(person.broken_rules([[1.0]])) == [f"a may rise by at most {said}"]
    assert list(person.broken_rules([[0.0]])) == [f"a may fall by at most {said}"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Then("a", at_least=0, change=True), "a does not fall"),
        (Then("a", at_most=0, change=True), "a does not rise"),
        (
            Then("a", at_least=-2, at_most=3, change=True),
            "a falls by at most 2 and rises by at most 3",
        ),
        (Then("a", at_most=-2, change=True), "a falls by at least 2"),
        (Then("a", at_least=1, at_most=2), "a is from 1 to 2"),
        (Then("a", at_least=1, at_most=1), "a is exactly 1"),
        (Then("a", at_most=0), "a is at most 0"),
        (Linear({"a": -1, "b": 0.5}, lower=0.25), "-a + 0.5*b is at least 0.25"),
        (
            IfThen({"a": [1, 2], "b": "x"}, [Then("c", "y"), Then("d", ["p", "q"])], becomes=False),
            "if a is 1 or 2 and b is x then c is y and d is p or q",
        ),
    ],
)
def test_words(rule, words):
    assert rule.words({}) == words


def test_becomes_is_about_whole_condition():
    schema = Schema(
        [Binary("a"), Binary("b"), Continuous("n", 0, 10, step=1)],
        rules=[IfThen({"a": 1, "b": 1}, [Then("n", at_least=2, change=True)])],
    )
    half = schema.person([1.0, 0.0, 0.5])
    assert half.allowed([[1, 1, 0.5], [1, 1, 0.7], [1, 0, 0.5]]).tolist() == [False, True, True]
    whole = schema.person([1.0, 1.0, 0.5])
    assert whole.allowed([[1, 1, 0.5]]).tolist() == [True]
    assert whole.linear([1, 1, 0]).labels == ()
    A, lower, upper, labels = half.linear([1, 1, 0])
    assert A.tolist() == [[0, 0, 1]]
    assert lower == pytest.approx([0.7])
    assert upper.tolist() == [np.inf]
    assert labels == ("if a becomes 1 and b becomes 1 then n rises by at least 2",)


def test_person_may_break_rule_that_candidates_must_keep():
    schema = Schema([Continuous("n", 0, 10)], rules=[Linear({"n": 1}, lower=5)])
    person = schema.person([0.1])
    assert person.allowed([[0.1], [0.5], [0.4999]]).tolist() == [False, True, False]
    assert person.linear([0.1]).lower.tolist() == [0.5]


def test_immutable_is_exact():
    schema = Schema([Continuous("n", 0, 10, immutable=True)])
    person = schema.person([0.1])
    assert person.allowed([[0.1], [np.nextafter(0.1, 1)]]).tolist() == [True, False]


def test_rows_of_wrong_shape():
    schema = Schema([Continuous("n", 0, 10), Binary("b")])
    with raises(SchemaError, name="X", match="shape"):
        schema.person([[1, 2, 3]])
    with raises(SchemaError, name="n", row=0):
        schema.person([np.nan, 0])
    with raises(SchemaError, name="X", match="shape"):
        schema.person([0.5, 0]).allowed([[1, 2, 3]])


def test_every_consequence_about_categories_counts():
    """A rule with several consequences: one that is broken is enough."""
    schema = Schema(
        [
            Categorical("job", ["none", "clerk"]),
            Binary("owner"),
            Binary("married"),
            Continuous("age", 0, 1),
        ],
        rules=[
            IfThen(
                {"job": "clerk"},
                [
                    Then("owner", at_least=1),
                    Then("married", at_most=0),
                    Then("age", at_most=0.5),
                ],
            )
        ],
    )
    person = schema.person([1.0, 0.0, 0.0, 1.0, 0.9])
    for owner, married in itertools.product((0.0, 1.0), repeat=2):
        clerk, none = [0.0, 1.0, owner, married, 0.9], [1.0, 0.0, owner, married, 0.9]
        assert person.profile_allowed(clerk) == (owner == 1.0 and married == 0.0)
        assert person.profile_allowed(none)
