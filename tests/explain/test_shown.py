"""Displayed values of a counterfactual are the certified ones, in numbers that people can read.

The pipelines on the paper's data sets have no schema: ranges and steps come from the training table.
Independent code reads each output (table, sentence, page, CSV, Parquet, JSON), encodes it again, and
compares it with the certified point bit for bit.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import proplace as pp
from proplace.batch import explain_file
from proplace.core.errors import DraftWarning, SchemaError
from proplace.explain.record import explanation_json
from proplace.schema.infer import readable_grid
from real_data import folder
from support.errors import raises
from support.tiers import only

TARGET = {
    "adult": "income",
    "compas": "score",
    "gmc": "SeriousDlqin2yrs",
    "heloc": "RiskPerformance",
}
STEPS = {
    "adult": {"age": 1.0, "hours-per-week": 1.0},
    "compas": {"priors_count": 1.0},
    "gmc": {"MonthlyIncome": 1.0, "DebtRatio": 0.01},
    "heloc": {"NumTotalTrades": 1.0},
}


def digits(value):
    """Significant digits that a number is written with."""
    return len(Decimal(repr(float(value))).normalize().as_tuple().digits) if value else 0


def network(rows, labels, *front):
    net = MLPClassifier((5,), solver="lbfgs", max_iter=60, alpha=1.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_pipeline(*front, net).fit(rows, labels)


@pytest.fixture(scope="module", params=only(["compas"], TARGET))
def case(request):
    """A fitted explainer, refused people, the target class, and the results."""
    name = request.param
    frame = pd.read_csv(folder() / f"{name}.csv.gz").sample(900, random_state=1)
    frame = frame.reset_index(drop=True)
    labels = frame.pop(TARGET[name]).astype(str)
    numbers = list(frame.select_dtypes("number"))
    others = [column for column in frame if column not in numbers]
    front = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(), others))
    pipe = network(frame, labels, front)
    said = pd.Series(pipe.predict(frame))
    target = said.value_counts().index[0]
    train = frame[:700]
    people = frame[700:][(said != target)[700:]][:5].copy()
    people[numbers] = people[numbers].astype(float)
    low, high = train[numbers].min(), train[numbers].max()
    first, second = people.index[:2]
    off = next(n for n in numbers if low[n] < people.loc[first, n] < high[n])
    people.loc[first, off] += 0.123456789012  # beside every grid
    out = numbers[-1]
    people.loc[second, out] = high[out] + 0.1 * (high[out] - low[out])  # a little outside
    people = people[pipe.predict(people) != target].reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DraftWarning)  # about a code in a column of adult
        explainer = pp.Proplace(pipe, 0.002, k=4).fit(train)
    return name, explainer, people, target, explainer.explain(people, target)


def test_every_number_has_range_and_readable_step(case):
    name, explainer, *_ = case
    for feature in explainer.schema_.features:
        if isinstance(feature, pp.Continuous):
            assert feature.step is not None, feature
            for end in (feature.lower, feature.upper):
                assert digits(end) <= 6
                assert Decimal(repr(end)) % Decimal(repr(feature.step)) == 0
    for column, step in STEPS[name].items():
        assert explainer.schema_.by_name[column].step == step


def test_answers_are_read_back_bit_for_bit(case):
    """Every changed number has at most six digits. Other numbers are the person's own."""
    _, explainer, people, target, result = case
    found = [e for e in result if e.found]
    assert len(found) >= 2
    assert not [e for e in result if e.status == "bad_input"]
    table = pd.DataFrame([e.counterfactual for e in found])
    again, problems = explainer.schema_.encode_people(table)
    assert not problems
    np.testing.assert_array_equal(again, [e.encoded_counterfactual for e in found])
    assert (explainer.model_.predict_original(table) == target).all()
    for e in found:
        assert e.certificate.check(explainer.net_).accepted
        assert e.certificate.facts["input"] == e.encoded_counterfactual.tolist()
        for feature in explainer.schema_.features:
            before, after = people.loc[e.index, feature.name], e.counterfactual[feature.name]
            if feature.name not in e.changes_by_feature:
                assert after == before
            elif isinstance(feature, pp.Continuous):
                assert digits(after) <= 6
                steps = Decimal(repr(float(after))) / Decimal(repr(feature.step))
                assert steps == int(steps)
                assert feature.lower <= after <= feature.upper


def read(path):
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    numbers = pd.read_csv(path, dtype=str, keep_default_na=False)
    return numbers.apply(lambda column: column.map(_cell))


def _cell(text):
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_results_file_contains_certified_values(case, kind, tmp_path, monkeypatch):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    _, explainer, people, target, result = case
    people.to_csv(tmp_path / "people.csv", index=False)
    done = tmp_path / "done"
    # The search was made before: only what is written of it is of interest.
    monkeypatch.setattr(explainer, "stream", lambda tables, *_, **__: [result for _ in tables])
    request = explainer.request(target)
    explain_file(explainer, tmp_path / "people.csv", done, request, kind=kind)
    table = read(done / f"results.{kind}")
    assert table["status"].tolist() == [e.status for e in result]
    there = [i for i, e in enumerate(result) if e.found]
    names = list(explainer.schema_.by_name)
    again, problems = explainer.schema_.encode_people(table.loc[there, names])
    assert not problems
    np.testing.assert_array_equal(again, result.encoded_counterfactuals[there])
    own = table.loc[there, [f"original_{n}" for n in names]].set_axis(names, axis=1)
    np.testing.assert_array_equal(
        explainer.schema_.encode_people(own)[0], [result[i].encoded_original for i in there]
    )
    for e, other in zip(pp.read_results(done), result, strict=True):
        assert e.describe().sentence == other.describe().sentence
        assert (e.encoded_counterfactual is None) == (other.encoded_counterfactual is None)
        assert (
            e.encoded_counterfactual is None
            or e.encoded_counterfactual.tobytes() == other.encoded_counterfactual.tobytes()
        )
        if e.original is not None:
            assert e.original.to_dict() == other.original.to_dict()
    frame = result.to_frame()
    for n in there:
        assert frame.iloc[n][names].to_dict() == result[n].counterfactual.to_dict()


def assert_reads(text, value):
    """Check that a number is written with all its digits, or cut and marked."""
    bare = text.replace(",", "")
    if not bare.endswith("…"):
        assert float(bare) == value
        return
    shown = Decimal(bare.removesuffix("…"))
    assert (
        0
        < abs(Decimal(repr(float(value)))) - abs(shown)
        < Decimal(1).scaleb(shown.as_tuple().exponent)
    )


def test_sentence_page_and_json_contain_certified_values(case, tmp_path, monkeypatch):
    pytest.importorskip("jinja2")
    _, explainer, people, _, result = case
    features = explainer.schema_.by_name
    monkeypatch.setattr("proplace.report.geometry._SECONDS", 0.5)
    page = result.report(tmp_path / "page.html").read_text(encoding="utf-8")
    for e in result:
        if not e.found:
            continue
        words, changed = e.describe(), e.changes_by_feature
        facts = json.loads(json.dumps(explanation_json(e, result.provenance)))
        assert facts["counterfactual"] == e.counterfactual.to_dict()
        assert facts["original"] == e.original.to_dict()
        for (name, (before, after)), said in zip(changed.items(), words.claims, strict=True):
            if not isinstance(features[name], pp.Continuous):
                continue
            if said.low is None:
                assert_reads(said.goal, after)
            else:
                assert e.guaranteed_ranges[name][0] <= said.low < said.high
                assert said.high <= e.guaranteed_ranges[name][1]
            assert_reads(said.was, before)
            assert before == people.loc[e.index, name]
            assert said.goal in page
            assert len(changed) > 5 or said.phrase in words.sentence


# -- without data sets -----------------------------------------------------------------------------

RNG = np.random.default_rng(5)
TRAIN = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, 200).astype(float),
        "rate": RNG.uniform(0.0, 3.0, 200),
        "owner": RNG.integers(0, 2, 200).astype(float),
        "same": 4.0,
    }
)
LABELS = np.where(TRAIN["age"] / 60 + TRAIN["rate"] / 3 + 0.3 * TRAIN["owner"] > 1.4, "yes", "no")
PIPE = network(TRAIN, LABELS, StandardScaler())


def test_steps_are_drafted_only_without_schema():
    explainer = pp.Proplace(PIPE, 0.002, k=5).fit(TRAIN)
    ages, rates, owner, same = explainer.schema_.features
    assert (ages.lower, ages.upper, ages.step) == (TRAIN.age.min(), TRAIN.age.max(), 1.0)
    assert (rates.lower, rates.step) == (0.0, 0.02)
    assert rates.upper == pytest.approx(3.0, abs=0.021)
    assert (owner.lower, owner.upper, owner.step) == (0.0, 1.0, 1.0)
    assert (same.lower, same.upper, same.step) == (None, None, None)  # nothing to draft from
    refused = TRAIN[PIPE.predict(TRAIN) == "no"][:10]
    for e in explainer.explain(refused, "yes"):
        assert e.counterfactual["owner"] in (0.0, 1.0)
    own = pp.Schema([pp.Continuous(name) for name in TRAIN])
    for source, schema in ((PIPE, own), (pp.Model.of(PIPE).with_schema(own), None)):
        by_hand = pp.Proplace(source, 0.002, k=5, schema=schema).fit(TRAIN)
        assert [(f.lower, f.step) for f in by_hand.schema_.features] == [(None, None)] * 4
    renamed = pp.Proplace(pp.Model.of(PIPE), 0.002).fit(TRAIN.to_numpy())
    assert [f.step for f in renamed.schema_.features] == [1.0, 0.02, 1.0, None]


def test_networks_without_preprocessing_have_no_steps():
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    rows = RNG.uniform(0, 1, (60, 2)).round(1)
    for table in (rows, pd.DataFrame(rows, columns=["a", "b"])):
        explainer = pp.Proplace(net, 0.01, k=5).fit(table)
        assert [f.step for f in explainer.schema_.features] == [None, None]
        assert [f.lower for f in explainer.schema_.features] == [None, None]


def test_person_little_outside_of_training_table():
    """The value is legal as it is."""
    explainer = pp.Proplace(PIPE, 0.002, k=5).fit(TRAIN)
    person = pd.DataFrame({"age": [85.5], "rate": [-0.1234567], "owner": [0.0], "same": [4.0]})
    assert PIPE.predict(person)[0] == "no"
    (e,) = explainer.explain(person, "yes")
    assert e.found, e.reason
    assert e.original.to_dict() == person.iloc[0].to_dict()
    for name, (_, after) in e.changes_by_feature.items():
        feature = explainer.schema_.by_name[name]
        assert min(feature.lower, person[name][0]) <= after <= max(feature.upper, person[name][0])
        assert digits(after) <= 6
    (two,) = explainer.explain(person.assign(owner=2.0), "yes")
    assert two.status != "bad_input"
    (three,) = explainer.explain(person.assign(owner=3.0), "yes")
    assert three.status != "bad_input"


def test_imputed_value_lies_in_drafted_range():
    gaps = TRAIN.copy()
    gaps.loc[3, "age"] = np.nan
    front = make_pipeline(SimpleImputer(strategy="constant", fill_value=-7.0), StandardScaler())
    for table in (gaps, TRAIN):
        pipe = network(table, LABELS, front)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            explainer = pp.Proplace(pipe, 0.001, k=3).fit(table)
        assert [f.lower for f in explainer.schema_.features] == [-7.0] * 4
        person = TRAIN[pipe.predict(TRAIN) == "no"][:1].assign(rate=np.nan)
        assert explainer.explain(person, "yes")[0].status != "bad_input"


def test_training_rows_in_array_lie_in_ranges():
    schema = pp.Schema([pp.Continuous("a", 0, 8, step=2), pp.Continuous("b", 0, 1)])
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    rows = np.array([[0.3, 0.4], [0.9, 0.8], [1.0, 1.0]])
    explainer = pp.Proplace(net, 0.01, k=2, schema=schema).fit(rows)
    np.testing.assert_array_equal(explainer.rows_, [[0.25, 0.4], [1.0, 0.8], [1.0, 1.0]])
    for bad in ([1.1, 0.5], [0.5, 1.1]):
        with raises(SchemaError, name="X", row=3):
            pp.Proplace(net, 0.01, schema=schema).fit([*rows, bad])


def test_own_values_off_grid_are_written_unchanged():
    schema = pp.Schema([pp.Continuous("debt", 0, 100, step=1, unit="% of income")])
    net = pp.Network([([[-1.0]], [0.4])])
    train = pd.DataFrame({"debt": [10.0, 20.0, 30.0]})
    people = pd.DataFrame({"debt": [60.125, 60.0 + 1 / 3]})
    result = pp.Proplace(net, 0.02, schema=schema, k=3).fit(train).explain(people)
    first, second = (e.describe() for e in result)
    assert first.table().to_numpy().tolist() == [["60.125% of income", "at most 37% of income", ""]]
    assert "debt of at most 37% of income (today: 60.125%)" in first.sentence
    assert "(today: 60.3333…%)" in second.sentence
    assert second.claims[0].was == "60.3333…% of income"
    alone = replace(result[1], guaranteed_ranges={}).describe().claims[0]
    assert alone.change == "23.3333 percentage points lower"
    assert result.to_frame()["original_debt"].tolist() == people["debt"].tolist()
    assert result.to_frame()["debt"].tolist() == [37, 37]


def test_numbers_that_were_held_in_float32_keep_their_resolution():
    for decimals, step in ((0, 1.0), (1, 0.1), (2, 0.01)):
        values = RNG.uniform(0.0, 500.0, 300).round(decimals).astype(np.float32)
        assert readable_grid(values.astype(np.float64))[2] == step
    fine = RNG.uniform(0.0, 500.0, 300).astype(np.float32)
    assert readable_grid(fine.astype(np.float64))[2] == 5.0


def test_functions_in_front_of_model_do_not_keep_steps_away():
    pipe = network(TRAIN, LABELS, FunctionTransformer(), StandardScaler())
    explainer = pp.Proplace(pipe, 0.002, k=5).fit(TRAIN)
    assert explainer.schema_.by_name["age"].step == 1.0
