"""From the source itself and a table to answers that the source accepts, every one of them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import polars
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import InputError, SchemaError
from support.errors import raises
from support.models import fitted, people

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def answers(source, frame, pipe, n=8, delta=0.003, **options):
    refused = frame[pipe.predict(frame) == "no"].iloc[:n]
    result = pp.Proplace(source, delta, k=5, **options).fit(frame).explain(refused, "yes")
    return refused, result


def changed(people, result):
    """The people with their counterfactual values, as the original model receives them."""
    found = [i for i, e in enumerate(result) if e.found]
    table = people.iloc[found].copy()
    for name in result[found[0]].counterfactual.index:
        table[name] = [result[i].counterfactual[name] for i in found]
    return table


def test_three_lines():
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, y)
    explainer = pp.Proplace(pipe, delta=0.003, k=5).fit(frame)
    person = frame[pipe.predict(frame) == "no"].iloc[0]
    (answer,) = explainer.explain(person, target="yes")
    assert answer.found
    for table in (person.to_dict(), polars.DataFrame(person.to_frame().T.to_dict("list"))):
        (same,) = explainer.explain(table, target="yes")
        assert (same.counterfactual == answer.counterfactual).all()


def test_distances_do_not_depend_on_scaler():
    """The same network behind two ways to write the same scaling."""
    frame, y = people()
    results = []
    for name in ("drop first", "two scalers"):
        pipe = fitted(name, "logistic", frame, y)
        _, result = answers(pipe, frame, pipe, n=3)
        numbers = [
            sum(
                abs(float(e.original[c]) - float(e.counterfactual[c])) / np.ptp(frame[c])
                for c in ("age", "income")
            )
            for e in result
        ]
        labels = [
            sum(a != b for a, b in zip(e.original[2:], e.counterfactual[2:], strict=True))
            for e in result
        ]
        for e, number, label in zip(result, numbers, labels, strict=True):
            width = e.setting.schema.width
            if label == 0:
                assert e.distance == pytest.approx(number / width, rel=1e-6)
        results.append(result)
    assert results[0][0].found


def owners(step="passthrough"):
    """A pipeline on a number and a column of true and false, and its table."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"income": rng.uniform(1, 9, 200).round(2), "owner": rng.random(200) < 0.5}
    )
    y = np.where(frame.income + 6 * frame.owner > 9, "yes", "no")
    columns = make_column_transformer((StandardScaler(), ["income"]), (step, ["owner"]))
    pipe = make_pipeline(columns, MLPClassifier((4,), max_iter=300, random_state=0))
    return pipe.fit(frame, y), frame


@pytest.mark.parametrize("step", ["passthrough", StandardScaler()])
@pytest.mark.parametrize("dtype", [bool, "boolean", object])
def test_true_and_false_need_no_schema(step, dtype):
    """They were refused: np.False_ is not a number. An answer is never half true."""
    pipe, frame = owners(step)
    frame = frame.astype({"owner": dtype})
    explainer = pp.Proplace(pipe, 0.001, k=5).fit(frame)
    assert explainer.schema_.by_name["owner"] == pp.Binary("owner", (False, True))
    refused = frame[pipe.predict(frame) == "no"].head(8)
    result = explainer.explain(refused, "yes")
    assert {e.status for e in result} <= {"optimal", "feasible"}  # income has a step
    assert {type(e.counterfactual["owner"]) for e in result} <= {bool, np.bool_}
    assert any("owner" in e.changes_by_feature for e in result)
    answers = pd.DataFrame([e.counterfactual for e in result]).astype(frame.dtypes)
    assert (pipe.predict(answers) == "yes").all()
    # Only the wording has changed.
    income = pp.Continuous("income", frame.income.min(), frame.income.max(), step=0.01)
    said = (
        pp.Proplace(
            pipe,
            0.001,
            k=5,
            schema=pp.Schema([income, pp.Binary("owner", (False, True))]),
        )
        .fit(frame)
        .explain(refused, "yes")
    )
    assert [e.certificate.digest for e in said] == [e.certificate.digest for e in result]
    report = pp.certify(pipe, frame[:50], 0.001, "yes")
    numbers = frame.astype({"owner": float})
    np.testing.assert_array_equal(
        report.robust, pp.certify(pipe, numbers[:50], 0.001, "yes").robust
    )
    assert 0 < report.robust.sum() < 50


def test_booleans_as_numbers_leave_network_unchanged():
    """A certificate is checked against the network of the model."""
    pipe, frame = owners()
    explainer = pp.Proplace(pipe, 0.001, k=5).fit(frame)
    refused = frame[pipe.predict(frame) == "no"].head(1)
    (answer,) = explainer.explain(refused, "yes")
    assert explainer.net_ == pp.Model.of(pipe).network
    assert answer.certificate.check(pp.Model.of(pipe).network).accepted


def test_network_takes_true_and_false_by_name():
    net = pp.Network([([[1.0, 1.0]], [-1.5])])
    frame = pd.DataFrame({"x": [0.0, 0.2, 0.9, 1.0], "owner": [False, True, True, True]})
    (answer,) = pp.Proplace(net, 0.01, k=2).fit(frame).explain(frame[:1])
    assert answer.counterfactual["owner"] is True or answer.counterfactual["owner"] == np.True_


def test_true_in_feature_that_is_described_as_number():
    pipe, frame = owners()
    schema = pp.Schema([pp.Continuous("income"), pp.Continuous("owner", 0, 1)])
    with pytest.raises(SchemaError) as caught:
        pp.Proplace(pipe, 0.001, schema=schema).fit(frame)
    assert "np." not in str(caught.value)
    step = "is not a number: describe the feature as Binary('owner', [False, True])"
    assert step in str(caught.value)
    feature = eval(re.search(r"as (Binary\(.*?\))", str(caught.value))[1], {"Binary": pp.Binary})
    schema = pp.Schema([pp.Continuous("income"), feature])
    assert pp.Proplace(pipe, 0.001, schema=schema).fit(frame).schema_.by_name["owner"] == feature


def test_restricted_schema_of_model_takes_true_and_false():
    pipe, frame = owners()
    schema = pp.Model.of(pipe).schema.restrict(immutable=["owner"])
    explainer = pp.Proplace(pipe, 0.001, k=5, schema=schema).fit(frame)
    assert explainer.schema_.by_name["owner"] == pp.Binary("owner", (False, True), immutable=True)


def test_user_s_rules_hold():
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, y)
    schema = pp.Schema(
        [
            pp.Continuous("age", 18, 90, step=1, direction="increasing"),
            pp.Continuous("income", 0, 200_000, step=10),
            pp.Categorical("job", ["clerk", "cook", "poet", "smith"], immutable=True),
            pp.Binary("sex", ["f", "m"], immutable=True),
        ]
    )
    refused, result = answers(pipe, frame, pipe, schema=schema)
    found = [e for e in result if e.found]
    assert found
    for e in found:
        assert e.counterfactual["age"] >= e.original["age"]
        assert e.counterfactual["income"] % 10 == 0
        assert (e.counterfactual[["job", "sex"]] == e.original[["job", "sex"]]).all()
    assert (pipe.predict(changed(refused, result)) == "yes").all()


@pytest.mark.slow
def test_workers_need_no_source():
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, y)
    _, one = answers(pipe, frame, pipe, n=4)
    _, two = answers(pipe, frame, pipe, n=4, n_jobs=2)
    np.testing.assert_array_equal(one.encoded_counterfactuals, two.encoded_counterfactuals)


def test_scaling_twice_is_required_by_name():
    rng = np.random.default_rng(0)
    net = pp.Network([([[1.0, 1.0]], [-1.0])], scale=[2.0, 2.0], shift=[0.0, 0.0])
    schema = pp.Schema([pp.Continuous("a", 0, 10), pp.Continuous("b", 0, 10)])
    with raises(SchemaError, name="a", match="scaled_twice"):
        pp.Proplace(net, 0.01, schema=schema).fit([[1.0, 2.0]])
    model = pp.Model.of(net).with_schema(schema, scaled_twice=True)
    table = pd.DataFrame(rng.uniform(0, 10, (50, 2)), columns=["a", "b"])
    assert (model.predict(table) == net.predict(table.to_numpy() / 10)).all()
    raw = pp.Schema([pp.Continuous(n, 0, 10, scaling="none") for n in "ab"])
    assert pp.Model.of(net).with_schema(raw).predict(table).tolist() == net.predict(table).tolist()


def test_bare_classifier_takes_any_encoding():
    frame, y = people()
    schema = pp.Schema.infer(frame[["age", "income", "job", "sex"]], immutable=["age", "sex"])
    X = schema.encode(frame)
    mlp = MLPClassifier((5,), solver="lbfgs", max_iter=50, random_state=0).fit(X, y)
    explainer = pp.Proplace(mlp, 0.003, schema=schema, k=5).fit(frame)
    refused = frame[mlp.predict(X) == "no"].iloc[:3]
    result = explainer.explain(refused, "yes")
    assert (mlp.predict(schema.encode(changed(refused, result))) == "yes").all()


@pytest.mark.parametrize("method", [pp.baselines.Rnce, pp.baselines.MilpR])
def test_baselines_take_models(method):
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, y)
    refused = frame[pipe.predict(frame) == "no"].iloc[:3]
    result = method(pipe, 0.003).fit(frame).explain(refused, "yes")
    assert any(e.found for e in result)
    assert (pipe.predict(changed(refused, result)) == "yes").all()


# -- certify -------------------------------------------------------------------------------------


def test_certify_takes_model_and_table_by_names():
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, y)
    model = pp.Model.of(pipe)
    report = pp.certify(pipe, frame, 0.003, "yes")
    assert 0 < report.robust.sum() < len(frame)
    assert (pipe.predict(frame)[report.robust] == "yes").all()
    shuffled = frame.sample(frac=1.0, axis=1, random_state=0)
    np.testing.assert_array_equal(pp.certify(pipe, shuffled, 0.003, "yes").robust, report.robust)
    plain = pp.certify(model.network, model.encode(frame), 0.003, 1)
    np.testing.assert_array_equal(plain.robust, report.robust)
    person = frame.iloc[0]
    assert pp.worst_case(pipe, person, 0.003, "yes").margin == pytest.approx(
        pp.worst_case(model.network, model.encode(frame[:1]), 0.003).margin
    )
    low, high = pp.output_range(pipe, frame[:3], 0.003)
    assert (low < high).all()


def test_certify_matches_schema_by_names():
    rng = np.random.default_rng(0)
    net = pp.Network([([[1.0, -2.0]], [0.3])])
    schema = pp.Schema([pp.Continuous("a", 0, 10), pp.Continuous("b", 0, 10)])
    table = pd.DataFrame(rng.uniform(0, 10, (40, 2)), columns=["a", "b"])
    by_rows = pp.certify(net, schema.encode(table), 0.01).robust
    turned = table[["b", "a"]]
    np.testing.assert_array_equal(pp.certify(net, turned, 0.01, schema=schema).robust, by_rows)
    with raises(InputError, name="X", match="to_numpy"):
        pp.certify(net, turned, 0.01)


@pytest.mark.parametrize("step", ["passthrough", StandardScaler()])
def test_required_model_takes_true_and_false_without_schema(step):
    pipe, frame = owners(step)
    later = clone(pipe).set_params(mlpclassifier__alpha=0.01).fit(frame, pipe.predict(frame))
    refused = frame[pipe.predict(frame) == "no"].head(8)
    result = (
        pp.Proplace(pipe, 0.001, required_models=[later], k=5).fit(frame).explain(refused, "yes")
    )
    assert all(e.found for e in result)
    answers = pd.DataFrame([e.counterfactual for e in result]).astype(frame.dtypes)
    for model in (pipe, later):
        assert (model.predict(answers) == "yes").all()


def test_boolean_labels_are_targets_and_calibrate():
    pipe, frame = owners("passthrough")
    accepted = pipe.predict(frame) == "yes"
    pipe = clone(pipe).fit(frame, accepted)
    explainer = pp.Proplace(pipe, 0.001, k=5).fit(frame)
    refused = frame[~pipe.predict(frame)].head(4)
    found = [explainer.explain(refused, target) for target in (True, 1, np.True_)]
    assert all(e.found for e in found[0])
    assert len({tuple(result.encoded_counterfactuals.ravel()) for result in found}) == 1
    back = explainer.explain(frame[pipe.predict(frame)].head(4), False)
    assert {e.target for e in back} == {0}
    calibrated = pp.calibrate_delta(pipe, frame, retrained=[pipe], people=refused, deltas=[0.001])
    assert calibrated.curve["validity"].tolist() == [1.0]
