"""Making features and schemas: what is accepted, and the words for what is not."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest

from proplace.core.errors import OptionError, SchemaError
from proplace.schema import Binary, Categorical, Continuous, IfThen, Linear, Ordinal, Schema, Then
from support.errors import raises


def fails(make, name, *words):
    with raises(SchemaError, name=name) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_positional_construction():
    assert Continuous("income", 0, 2e5, step=100).upper == 2e5
    assert Ordinal("grade", ["A", "B", "C"]).levels == ("A", "B", "C")
    assert Categorical("job", ["x", "y"]).categories == ("x", "y")
    assert Binary("married", immutable=True) == Binary("married", (0, 1), immutable=True)
    assert Categorical("job", np.array(["x", "y"])).categories == ("x", "y")
    assert Categorical("job", pd.Series(["x", "y", "x"]).unique()).categories == ("x", "y")
    assert [type(v) for v in Ordinal("n", np.array([1, 2])).levels] == [int, int]
    assert [type(v) for v in Categorical("n", ["a", 1, 2.5, True - 1]).categories] == [
        str,
        int,
        float,
        int,
    ]


def test_scalings():
    def code(feature, value):
        return Schema([feature]).encode(pd.DataFrame({"v": [value]}))[0, 0]

    assert code(Continuous("v", 10, 30), 15) == 0.25
    assert code(Continuous("v", 10, 30, scaling="none"), 15) == 15
    assert code(Continuous("v", scaling=(5, 4)), 15) == 2.5
    assert code(Continuous("v", lower=0, scaling=(5, 4)), 15) == 2.5
    assert code(Ordinal("v", [2, 4, 10]), 4) == 0.25
    assert code(Ordinal("v", ["a", "b", "c"]), "b") == 0.5
    assert code(Ordinal("v", ["a", "b", "c"], values=[0, 1, 10]), "b") == 0.1
    assert code(Ordinal("v", ["a", "b", "c"], scaling="none"), "c") == 2.0
    assert code(Ordinal("v", ["a", "b", "c"], scaling=(1, 2)), "c") == 0.5


def test_values_are_frozen_and_comparable():
    age = Continuous("age", 17, 90, step=1)
    assert age == Continuous("age", 17.0, 90.0, step=1)
    assert age != dataclasses.replace(age, immutable=True)
    assert hash(age) == hash(Continuous("age", 17, 90, step=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        age.lower = 3
    assert "step=1" in repr(age)
    assert repr(Continuous("v", upper=4, scaling="none")) == (
        "Continuous('v', upper=4, scaling='none')"
    )


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda: Continuous("a", 2, 1), "a", ["lower 2", "upper 1"]),
        (lambda: Continuous("a", 0, scaling="minmax"), "a", ["scaling", "upper"]),
        (lambda: Schema([Continuous("a", 0)]).encode(pd.DataFrame({"a": [1.0]})), "a", ["range"]),
        (lambda: Continuous("a", 0, step=1, scaling="none"), "a", ["step", "upper"]),
        (lambda: Continuous("a", 0, 1, step=2), "a", ["step 2", "0 to 1"]),
        (lambda: Continuous("a", 0, 1, step=0), "a", ["step", "0"]),
        (lambda: Continuous("a", 0, 1e9, step=1e-9), "a", ["step 1e-09", "1000000000"]),
        (lambda: Continuous("a", 0, 1, scaling="log"), "a", ["scaling", "'minmax'", "'log'"]),
        (lambda: Continuous("a", 0, 1, scaling=(0, 0)), "a", ["scaling", "(0, 0)"]),
        (lambda: Continuous("a", 0, float("nan")), "a", ["upper", "nan"]),
        (lambda: Continuous("a", "x", 1), "a", ["lower", "'x'"]),
        (lambda: Continuous("a", 0, "1_000"), "a", ["upper", "'1_000'"]),
        (lambda: Continuous("a", False, True), "a", ["lower", "False"]),
        (lambda: Continuous("a", 0, 10**400), "a", ["upper", "1e308", "1329 bits"]),
        (lambda: Linear({"a": "1"}, lower=0), None, ["terms 'a'", "'1'"]),
        (lambda: Continuous("a", 0, 1, direction="up"), "a", ["direction", "'increasing'", "'up'"]),
        (lambda: Continuous("a", 0, 1, max_increase=-1), "a", ["max_increase", "-1"]),
        (lambda: Continuous("", 0, 1), "", ["name"]),
        (lambda: Ordinal("a", "abc"), "a", ["levels", "'abc'"]),
        (lambda: Ordinal("a", ["x"]), "a", ["levels", "['x']"]),
        (lambda: Ordinal("a", [3, 1]), "a", ["levels", "3", "1"]),
        (lambda: Ordinal("a", ["x", "y"], values=[1, 1]), "a", ["values"]),
        (lambda: Ordinal("a", ["x", "y"], values=[1]), "a", ["2 levels"]),
        (lambda: Ordinal("a", ["x", "y"], values=["1", "2"]), "a", ["values", "'1'"]),
        (lambda: Categorical("a", ["x", "y", "x"]), "a", ["categories", "'x'"]),
        (lambda: Categorical("a", [1, True]), "a", ["categories", "True"]),
        (lambda: Binary("a", [1, "1"]), "a", ["values", "1 and '1'"]),
        (lambda: Categorical("a", ["x", None]), "a", ["categories 1", "None"]),
        (lambda: Categorical("a", ["x", float("nan")]), "a", ["categories 1", "nan"]),
        (lambda: Categorical("a", ["x", "y"], encoding="label"), "a", ["encoding", "'onehot'"]),
        (lambda: Binary("a", ["x", "y", "z"]), "a", ["values", "'z'"]),
        (lambda: Binary("a", 3), "a", ["values", "3"]),
        (lambda: Linear({}, lower=0), None, ["terms"]),
        (lambda: Linear({"a": 0}, lower=0), None, ["coefficient", "0"]),
        (lambda: Linear({"a": 1}), None, ["lower or upper"]),
        (lambda: Linear({"a": 1}, lower=2, upper=1), None, ["lower 2", "upper 1"]),
        (lambda: Then("a", change=True), "a", ["at_least or at_most"]),
        (lambda: Then("a", at_least=2, at_most=1), "a", ["at_least 2", "at_most 1"]),
        (lambda: Then("a", ["x", None]), "a", ["category", "None"]),
        (lambda: Then("a", "x", at_least=1), "a", ["category", "at_least"]),
        (lambda: IfThen({"a": 1}, []), None, ["then"]),
        (lambda: IfThen({}, [Then("a", 1)]), None, ["when"]),
        (lambda: IfThen({"a": 1}, [Binary("b")]), None, ["then 0", "Binary('b')", "consequence"]),
        (lambda: IfThen({"a": 1}, [3]), None, ["then 0", "3"]),
    ],
)
def test_bad_parts_are_named(make, name, words):
    fails(make, name, *words)


AGE, SEX = Continuous("age", 17, 90, step=1), Binary("sex", ["Female", "Male"])
JOB = Categorical("job", ["clerk", "cook"])


@pytest.mark.parametrize(
    ("features", "rules", "words"),
    [
        ([], [], ["features"]),
        (["age"], [], ["features 0", "'age'"]),
        ([AGE, AGE], [], ["features 1", "'age'"]),
        ([JOB, Binary("job", ["", "clerk"])], [], ["features 1", "'job'"]),
        (
            [Categorical("a", ["b_c", "d"]), Categorical("a_b", ["c", "e"])],
            [],
            ["columns", "'a_b_c'"],
        ),
        ([AGE], [Linear({"agee": 1}, lower=0)], ["rules 0", "'agee'", "'age'"]),
        ([AGE, JOB], [Linear({"job": 1}, lower=0)], ["rules 0", "'job'", "categorical"]),
        (
            [AGE, JOB],
            [IfThen({"job": "cooc"}, [Then("age", at_least=1, change=True)], name="R")],
            ["rules 0 ('R')", "'cooc'", "'job'", "'cook'", "'clerk'"],
        ),
        ([AGE, JOB], [IfThen({"age": 3}, [Then("job", "cook")])], ["'age'", "continuous"]),
        (
            [AGE, SEX, JOB],
            [IfThen({"sex": "Male"}, [Then("job", ["cook", "king"]), Then("jo", at_least=1)])],
            ["2 problems", "'king'", "'job'", "'jo'"],
        ),
        ([AGE, JOB], [IfThen({"job": []}, [Then("job", "cook")])], ["'job'", "empty"]),
        ([AGE], [AGE], ["rules 0", "Continuous", "not a rule"]),
    ],
)
def test_bad_schemas_are_named(features, rules, words):
    fails(lambda: Schema(features, rules=rules), None, *words)


def test_schemas_pickle_before_and_after_use():
    schema = Schema(
        [AGE, SEX, JOB, Continuous("money", 0, 1e6, step=1)],
        rules=[IfThen({"job": "cook"}, [Then("age", at_least=1, change=True)])],
    )
    fresh = pickle.loads(pickle.dumps(schema))
    frame = pd.DataFrame({"age": [20], "sex": ["Male"], "job": ["clerk"], "money": [7]})
    X = schema.encode(frame)
    person = schema.person(X[0])
    used = pickle.loads(pickle.dumps(schema))
    assert fresh == used == schema
    assert (used.encode(frame) == X).all()
    again = pickle.loads(pickle.dumps(person))
    assert (again.lower == person.lower).all()
    rows = np.array([[0.1, 1, 0, 1, 0.5], X[0]])
    assert again.allowed(rows).tolist() == person.allowed(rows).tolist()
    assert again.broken_rules(rows) == person.broken_rules(rows)


def test_restrict_narrows_and_keeps_encoding():
    schema = Schema([AGE, SEX, JOB])
    row = pd.DataFrame({"age": [40], "sex": ["Male"], "job": ["clerk"]})
    narrow = schema.restrict(immutable=["job"], decreasing=["sex"], ranges={"age": (20, None)})
    assert narrow.by_name["age"].lower == 20
    assert narrow.by_name["sex"].direction == "decreasing"
    assert narrow.by_name["job"].immutable
    assert (narrow.encode(row) == schema.encode(row)).all()
    assert schema.restrict() is schema
    with raises(OptionError, name="increasing", match="did you mean 'age'"):
        schema.restrict(increasing=["agee"])
    with raises(OptionError, name="decreasing", match="'age' is increasing already"):
        schema.restrict(increasing=["age"], decreasing=["age"])
    with raises(OptionError, name="ranges", match="beyond"):
        schema.restrict(ranges={"age": (0, 200)})


def test_schema_rejects_feature_with_encoding_of_its_own():
    class Logarithmic(Continuous):
        """A number whose limits would be read as affine."""

    with pytest.raises(SchemaError, match=r"features 0: .* is not a feature"):
        Schema([Logarithmic("income", 1, 100)])
