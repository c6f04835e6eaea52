"""scikit-learn models: the table goes in, the model's own class comes out."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC

from proplace import Continuous, Model, Schema
from proplace.core.errors import InputError, ModelNotSupportedError, SchemaError, TargetError
from proplace.schema import Binary, Categorical, IfThen, Ordinal, Then
from support.models import CLASSIFIERS, NUMBERS, PREPROCESSING, fitted, people, scaled
from support.networks import NetworkOf
from support.tiers import examples

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def mlp(**options):
    options = {"hidden_layer_sizes": (8, 6), "max_iter": 40, "random_state": 0} | options
    return MLPClassifier(**options)


def fit(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def assert_same(network, model, X):
    np.testing.assert_allclose(network.predict_proba(X), model.predict_proba(X), atol=1e-9)
    assert (model.classes_[network.predict(X)] == model.predict(X)).all()


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize("name", PREPROCESSING)
def test_every_prediction_is_source_s_own(name, classifier):
    frame, y = people(missing="imputer" in name)
    pipe = fitted(name, classifier, frame, y)
    model = Model.of(pipe)
    assert model.classes == ("no", "yes")
    assert model.has_preprocessing
    others = people(seed=1, missing="imputer" in name)[0]
    if name == "number as category too":
        others = frame.sample(frac=1.0, random_state=0)
    for table in (frame, others.sample(frac=1.0, axis=1, random_state=1)):
        ours, theirs = model.predict(table), pipe.predict(table[frame.columns])
        # On raw incomes this network learns nothing.
        assert set(theirs) == {"no", "yes"} or (name, classifier) == ("untouched numbers", "mlp")
        assert (ours == theirs).all()
        np.testing.assert_array_equal(model.predict_original(table[frame.columns]), theirs)
        z = model.network.logits(model.encode(table))[:, 0]
        P = pipe.predict_proba(table[frame.columns])[:, 1]
        np.testing.assert_allclose(expit(z), P, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["scaler and one-hot", "drop first", "drop chosen", "ordinal"])
def test_plain_pipeline_needs_no_matrix(name):
    """Delta then refers to the trained weights on exactly their inputs."""
    frame, y = people()
    model = Model.of(fitted(name, "mlp", frame, y))
    assert model.network.input_transform.matrix is None
    assert not model.network.input_transform


def test_trained_weights_are_never_changed():
    frame, y = people()
    for name in ("pca", "scaled one-hot", "infrequent"):
        pipe = fitted(name, "mlp", frame, y)
        layers = NetworkOf(pipe).layers
        for layer, W, b in zip(layers, pipe[-1].coefs_, pipe[-1].intercepts_, strict=True):
            np.testing.assert_array_equal(layer.W, W.T)
            np.testing.assert_array_equal(layer.b, b)


def test_schema_describes_table():
    frame, y = people()
    schema = Model.of(fitted("drop chosen", "mlp", frame, y)).schema
    assert list(schema.by_name) == ["age", "income", "job", "sex"]
    assert schema.by_name["job"] == Categorical(
        "job", ["cook", "clerk", "poet", "smith"], encoding="dropfirst"
    )
    assert schema.by_name["sex"] == Binary("sex", ["m", "f"])
    graded = Model.of(fitted("ordinal", "mlp", frame, y)).schema.by_name["grade"]
    assert isinstance(graded, Ordinal)
    assert graded.levels == ("low", "mid", "high")


def test_columns_that_model_never_looks_at_are_no_features():
    frame, y = people()
    pipe = make_pipeline(scaled(), SelectKBest(k=1), LogisticRegression()).fit(frame, y)
    model = Model.of(pipe)
    assert len(model.schema.features) == 1
    used = frame[[model.schema.features[0].name]]
    assert (model.predict(used) == pipe.predict(frame)).all()


def test_missing_cell_counts_as_imputed_value():
    frame, y = people(missing=True)
    pipe = fitted("imputer behind a scaler", "mlp", frame, y)
    schema = Model.of(pipe).schema
    assert schema.by_name["income"].missing == pytest.approx(frame.income.mean())
    assert schema.by_name["job"].missing == "cook"
    full = people(missing=False)
    assert Model.of(fitted("drop first", "mlp", *full)).schema.by_name["income"].missing is None


def test_missing_cell_without_imputer_is_named():
    frame, y = people()
    model = Model.of(fitted("drop first", "mlp", frame, y))
    frame.loc[3, "income"] = np.nan
    with pytest.raises(SchemaError, match=r"row 3, column 'income': the cell is missing"):
        model.predict(frame)


def test_rows_without_names():
    frame, y = people()
    X = frame[NUMBERS].to_numpy()
    pipe = make_pipeline(StandardScaler(), MLPClassifier((5,), max_iter=20, random_state=0))
    pipe.fit(X, y)
    model = Model.of(pipe)
    assert (model.predict(X) == pipe.predict(X)).all()
    assert (model.predict(pd.DataFrame(X, columns=["x0", "x1"])) == pipe.predict(X)).all()
    with pytest.raises(InputError, match=r"rows must have shape \(n, 2\) for this model"):
        model.predict(X[:, :1])
    schema = Schema(
        [Continuous("age", 0, 100, direction="increasing"), Continuous("income", 0, 200_000)]
    )
    named = model.with_schema(schema)
    assert (named.predict(frame) == pipe.predict(X)).all()
    assert (named.predict_original(frame) == pipe.predict(X)).all()


def test_several_classes_with_labels():
    frame, _ = people()
    y = np.array(["bad", "fair", "good"])[np.digitize(frame.income, [45_000, 55_000])]
    for classifier in CLASSIFIERS:
        pipe = fitted("drop first", classifier, frame, y)
        model = Model.of(pipe)
        assert model.classes == ("bad", "fair", "good")
        assert (model.predict(frame) == pipe.predict(frame)).all()
        assert model.target("fair") == 1


def test_probabilities_that_are_all_0_or_1():
    """Far from every boundary, a sigmoid of each logit gives the class of their softmax."""
    frame, _ = people()
    y = np.array(["bad", "fair", "good"])[np.digitize(frame.income, [45_000, 55_000])]
    mlp = MLPClassifier((4,), max_iter=2, random_state=0)
    pipe = make_pipeline(StandardScaler(), mlp).fit(frame[NUMBERS], y)
    mlp.intercepts_[-1] = np.array([-1e6, -1e6, 1e6])
    assert set(pipe.predict_proba(frame[NUMBERS]).ravel()) == {0.0, 1.0}
    assert (Model.of(pipe).predict(frame) == "good").all()


def test_targets_are_labels():
    frame, y = people()
    model = Model.of(fitted("drop first", "mlp", frame, y))
    assert model.target("yes") == 1
    with pytest.raises(TargetError, match=r"target 'yess' .*did you mean 'yes'.*'no', 'yes'"):
        model.target("yess")
    with pytest.raises(TargetError, match="target 2 is not a class"):
        model.target(2)
    with pytest.raises(TargetError, match="target 1, the default, is not a class"):
        model.target(1)


@pytest.mark.parametrize(
    ("labels", "targets"),
    [
        ([False, True], [True, np.True_, 1, 1.0]),
        ([0, 1], [1, 1.0, np.int64(1), np.float64(1.0), np.float32(1.0)]),
        ([0.0, 1.0], [1, 1.0, np.int8(1), np.float64(1.0)]),
        ([1, 2], [2, 2.0, np.uint8(2)]),
        (["no", "yes"], ["yes", np.str_("yes")]),
    ],
)
def test_targets_are_compared_by_value(labels, targets):
    frame, y = people()
    y = np.array(labels)[(y == "yes").astype(int)]
    model = Model.of(make_pipeline(StandardScaler(), LogisticRegression()).fit(frame[NUMBERS], y))
    assert [model.target(target) for target in targets] == [1] * len(targets)
    assert model.target(np.array(labels)[0]) == 0


@pytest.mark.parametrize(
    ("labels", "target", "words"),
    [
        ([0, 1], True, r"target True is not a class of the model \(did you mean 1\?\)"),
        ([0, 1], "1", r"did you mean 1\?"),
        ([0, 1], 1.5, "target 1.5 is not a class of the model. Its classes are 0, 1"),
        ([False, True], "True", r"did you mean True\?"),
        ([0, 1], [1], r"target \[1\] is not a class"),
        ([0, 1], np.array([0, 1]), "is not a class"),
    ],
)
def test_target_that_is_nearly_label(labels, target, words):
    frame, y = people()
    y = np.array(labels)[(y == "yes").astype(int)]
    model = Model.of(make_pipeline(StandardScaler(), LogisticRegression()).fit(frame[NUMBERS], y))
    with pytest.raises(TargetError, match=words):
        model.target(target)


# -- the user's own words --------------------------------------------------------------------------


def test_rules_are_added_to_model_s_own_encoding():
    frame, y = people()
    pipe = fitted("drop chosen", "mlp", frame, y)
    user = Schema(
        [
            Binary("sex", ["f", "m"], direction="increasing"),
            Continuous("age", 18, 80, step=1, direction="increasing"),
            Continuous("income", 0, 150_000, step=10, unit="dollars"),
            Categorical("job", ["clerk", "cook", "poet", "smith"], label="Job"),
        ],
        rules=[IfThen({"job": "poet"}, [Then("age", at_least=2, change=True)])],
    )
    model = Model.of(pipe).with_schema(user)
    assert set(pipe.predict(frame)) == {"no", "yes"}
    assert (model.predict(frame) == pipe.predict(frame)).all()
    age, sex = model.schema.by_name["age"], model.schema.by_name["sex"]
    assert (age.step, age.direction) == (1, "increasing")
    assert (sex.labels, sex.direction) == (("m", "f"), "decreasing")
    assert model.schema.by_name["job"].label == "Job"
    assert len(model.schema.rules) == 1


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([Continuous("agee", 0, 100)], "the model takes a column 'age'.*did you mean 'agee'"),
        ([Continuous("age", 0, 99, scaling=(3, 4))], "the model scales its own inputs"),
        ([Categorical("age", ["a", "b"])], "the model takes a number, the schema describes labels"),
    ],
)
def test_schema_that_is_not_model_s_is_refused(features, message):
    frame, y = people()
    pipe = make_pipeline(
        ColumnTransformer([("n", StandardScaler(), ["age"])]), LogisticRegression()
    ).fit(frame, y)
    with pytest.raises(SchemaError, match=message):
        Model.of(pipe).with_schema(Schema(features))


@pytest.mark.parametrize("ranges", [None, {"ratio": (0.1, 0.5)}])
def test_drafted_schema_fits_model_that_scales(ranges):
    table = pd.DataFrame({"ratio": [0.003, 0.25, 0.618, 0.879], "age": [20, 30, 41, 60]})
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, [0, 1, 0, 1])
    drafted = Schema.infer(table, increasing=["age"]).restrict(ranges=ranges)
    model = Model.of(pipe).with_schema(drafted)
    np.testing.assert_allclose(model.encode(table), Model.of(pipe).encode(table), atol=1e-12)


def test_schema_decides_spelling_of_true_and_false():
    table = pd.DataFrame({"age": [20, 30, 41, 60], "owner": [0, 1, 1, 0]})
    encoder = ColumnTransformer([("b", OneHotEncoder(drop="if_binary"), ["owner"])])
    model = Model.of(make_pipeline(encoder, LogisticRegression()).fit(table, [0, 1, 1, 0]))
    assert repr(model.schema.by_name["owner"].values) == "(0, 1)"
    described = model.with_schema(Schema([Binary("owner", [False, True])]))
    assert repr(described.schema.by_name["owner"].values) == "(False, True)"


def in_float32(scaling, form):
    """A scaling as an exported file holds it, and as it is read back."""
    offset, scale = np.float64(scaling)
    numbers = (offset, scale, 1 / scale, -offset / scale)
    o, s, inverse, shift = (float(np.float32(v)) for v in numbers)
    return {
        "(x - o) / s": (o, s),
        "(x - o) * s": (o, 1 / inverse),
        "x * s + o": (-shift / inverse, 1 / inverse),
    }[form]


@pytest.mark.parametrize("form", ["(x - o) / s", "(x - o) * s", "x * s + o"])
def test_same_scaling_in_float32_is_same(form):
    frame, y = people()
    pipe = make_pipeline(
        ColumnTransformer([("n", StandardScaler(), ["age", "income"])]), LogisticRegression()
    ).fit(frame, y)
    model = Model.of(pipe)
    own = [feature.scaling for feature in model.schema.features]
    rounded = [in_float32(scaling, form) for scaling in own]
    assert rounded != own

    def described(scalings):
        return Schema(
            [
                Continuous(name, 0, 1e6, scaling=scaling)
                for name, scaling in zip(("age", "income"), scalings, strict=True)
            ]
        )

    merged = model.with_schema(described(rounded))
    assert [feature.scaling for feature in merged.schema.features] == own
    assert merged.network == model.network
    # More than the rounding of float32 is another scaling.
    for wrong in (
        [tuple(v * (1 + 2.0**-20) for v in scaling) for scaling in own],
        [(rounded[0][0], own[0][1] * 1.001), own[1]],
    ):
        with pytest.raises(SchemaError, match="the schema scales them too"):
            model.with_schema(described(wrong))


def test_other_labels_than_model_s_are_refused():
    frame, y = people()
    pipe = make_pipeline(
        ColumnTransformer([("w", OneHotEncoder(), ["job"])]), LogisticRegression()
    ).fit(frame, y)
    with pytest.raises(
        SchemaError, match=r"labels of the model are .*'smith', and those of the schema"
    ):
        Model.of(pipe).with_schema(Schema([Categorical("job", ["clerk", "cook"])]))
    with pytest.raises(SchemaError, match="categories without an order"):
        Model.of(pipe).with_schema(Schema([Ordinal("job", ["clerk", "cook", "poet", "smith"])]))


def test_numbers_that_are_yes_or_no_or_few_levels():
    """The model scales them as numbers, and the user describes them."""
    frame, y = people()
    frame = frame.assign(owner=(frame.sex == "m").astype(int), rooms=frame.age % 4 + 1)
    columns = ["income", "owner", "rooms"]
    pipe = make_pipeline(StandardScaler(), CLASSIFIERS["mlp"]).fit(frame[columns], y)
    schema = Schema(
        [
            Continuous("income", 0, 200_000),
            Binary("owner", direction="increasing"),
            Ordinal("rooms", [1, 2, 3, 4]),
        ]
    )
    model = Model.of(pipe).with_schema(schema)
    assert set(pipe.predict(frame[columns])) == {"no", "yes"}
    assert (model.predict(frame) == pipe.predict(frame[columns])).all()
    np.testing.assert_array_equal(model.network.layers[0].W, pipe[-1].coefs_[0].T)
    assert set(model.encode(frame)[:, 1]) == {0.0, 1.0}
    turned = Schema([schema.features[0], Binary("owner", [1, 0]), schema.features[2]])
    assert (Model.of(pipe).with_schema(turned).predict(frame) == pipe.predict(frame[columns])).all()
    words = Schema([schema.features[0], Binary("owner", ["n", "y"]), schema.features[2]])
    with pytest.raises(SchemaError, match="takes a number, the schema describes labels"):
        Model.of(pipe).with_schema(words)


# -- what cannot be taken --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "message", "right"),
    [
        (
            FunctionTransformer(np.log1p),
            r"'columntransformer.n' \(FunctionTransformer\).*Read are",
            None,
        ),
        (PowerTransformer(), r"PowerTransformer\).*Apply this step to the table beforehand", None),
        (MinMaxScaler(clip=True), "clip=True.*Fit it with clip=False", MinMaxScaler()),
        (
            SimpleImputer(add_indicator=True),
            "add_indicator=True.*Fit it with",
            SimpleImputer(add_indicator=False),
        ),
        (SimpleImputer(missing_values=-1), "takes -1 for a missing cell", None),
    ],
)
def test_steps_are_refused_with_next_step_that_works(step, message, right):
    frame, y = people()
    frame.loc[0, "income"] = np.nan if isinstance(step, SimpleImputer) else 0
    if isinstance(step, SimpleImputer) and step.missing_values == -1:
        frame = frame.fillna({"income": -1})

    def pipe_of(step):
        columns = ColumnTransformer([("n", step, NUMBERS)])
        return fit(make_pipeline(columns, LogisticRegression()), frame, y)

    with pytest.raises(ModelNotSupportedError, match=message):
        Model.of(pipe_of(step))
    if right is not None:
        pipe = pipe_of(right)
        assert (Model.of(pipe).predict(frame) == pipe.predict(frame)).all()


def test_missing_category_is_refused_with_next_step_that_works():
    frame, y = people(missing=True)
    steps = ColumnTransformer([("w", OneHotEncoder(), ["job"])])
    pipe = make_pipeline(steps, LogisticRegression()).fit(frame, y)
    with pytest.raises(ModelNotSupportedError, match="Replace missing cells by a word"):
        Model.of(pipe)
    frame = frame.fillna({"job": "unknown"})
    again = make_pipeline(steps, LogisticRegression()).fit(frame, y)
    assert (Model.of(again).predict(frame) == again.predict(frame)).all()


@pytest.mark.parametrize("activation", ["tanh", "logistic", "identity"])
def test_other_activations_are_refused(binary, activation):
    model = fit(Pipeline([("scale", StandardScaler()), ("net", mlp(activation=activation))]),
                binary.X, binary.y)  # fmt: skip
    with pytest.raises(ModelNotSupportedError, match=f"'net'.*{activation}.*activation='relu'"):
        Model.of(model)


def test_labels_are_refused(binary):
    model = fit(mlp(), binary.Z, np.column_stack([binary.y, 1 - binary.y]))
    with pytest.raises(ModelNotSupportedError, match="MLPClassifier has 2 independent labels"):
        Model.of(model)


def test_one_vs_rest_is_refused(multi):
    wrapped = OneVsRestClassifier(LogisticRegression()).fit(multi.Z, multi.y)
    with pytest.raises(ModelNotSupportedError, match="OneVsRestClassifier"):
        Model.of(wrapped)
    model = LogisticRegression().fit(multi.Z, multi.y)
    model.multi_class = "ovr"  # an option of scikit-learn <= 1.7
    with pytest.raises(ModelNotSupportedError, match=r"LogisticRegression.*one-vs-rest.*lbfgs"):
        Model.of(model)


class OwnProbabilities(LogisticRegression):
    def predict_proba(self, X):
        return super().predict_proba(X) ** 2


def test_probabilities_of_its_own_are_refused(data):
    model = OwnProbabilities().fit(data.Z, data.y)
    with pytest.raises(ModelNotSupportedError, match="predict_proba of OwnProbabilities"):
        Model.of(model)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (mlp(), "MLPClassifier"),
        (LogisticRegression(), "LogisticRegression"),
        (make_pipeline(StandardScaler(), mlp()), "'mlpclassifier'"),
    ],
)
def test_not_fitted_is_refused(model, name):
    with pytest.raises(ModelNotSupportedError, match=rf"{name}.*not fitted. Call fit\(\)"):
        Model.of(model)


def test_scaler_not_fitted_is_refused(binary):
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(binary.X, binary.y)
    model.steps[0] = ("scale", StandardScaler())
    with pytest.raises(ModelNotSupportedError, match=r"'scale'.*not fitted"):
        Model.of(model)


def test_other_models_are_refused(binary):
    forest = RandomForestClassifier(2).fit(binary.Z, binary.y)
    with pytest.raises(ModelNotSupportedError, match="RandomForestClassifier"):
        Model.of(forest)
    search = GridSearchCV(LogisticRegression(), {"C": [1.0]}).fit(binary.Z, binary.y)
    assert_same(NetworkOf(search), search, binary.fresh_Z)
    last = make_pipeline(StandardScaler(), search).fit(binary.Z, binary.y)
    assert (Model.of(last).predict(binary.fresh_Z) == last.predict(binary.fresh_Z)).all()
    with pytest.raises(ModelNotSupportedError, match="int"):
        Model.of(3)
    with pytest.raises(ModelNotSupportedError, match="passthrough"):
        Model.of(Pipeline([("a", "passthrough")]))


# -- the network alone -----------------------------------------------------------------------------


@pytest.mark.parametrize("classifier", [mlp(), LogisticRegression()], ids=["mlp", "logistic"])
@pytest.mark.parametrize(
    "scalers",
    [
        [],
        [StandardScaler()],
        [StandardScaler(with_mean=False)],
        [StandardScaler(with_std=False), MaxAbsScaler()],
        [MinMaxScaler((-1, 2)), "passthrough", MaxAbsScaler(), StandardScaler()],
        [make_pipeline(MaxAbsScaler(), MinMaxScaler()), None],
    ],
    ids=lambda scalers: f"{len(scalers)}_scalers" if isinstance(scalers, list) else None,
)
def test_predictions_are_those_of_pipeline(data, classifier, scalers):
    X, fresh = (data.X, data.fresh) if scalers else (data.Z, data.fresh_Z)
    model = fit(make_pipeline(*scalers, classifier), X, data.y)
    network = NetworkOf(model)
    assert_same(network, model, fresh)
    assert network.outputs == (1 if len(model.classes_) == 2 else 3)
    assert network.precision == "float64"


def test_scalers_are_not_folded_into_weights(binary):
    model = fit(make_pipeline(StandardScaler(), MinMaxScaler(), mlp()), binary.X, binary.y)
    network = NetworkOf(model)
    for layer, coef, intercept in zip(
        network.layers, model[-1].coefs_, model[-1].intercepts_, strict=True
    ):
        np.testing.assert_array_equal(layer.W, coef.T)
        np.testing.assert_array_equal(layer.b, intercept)
    np.testing.assert_allclose(
        network.transform(network.model.encode(binary.fresh)),
        model[:-1].transform(binary.fresh),
        atol=1e-12,
    )


def test_float32_is_noticed(data):
    model = fit(mlp(), data.Z.astype(np.float32), data.y)
    network = NetworkOf(model)
    assert network.precision == "float32"
    assert_same(network, model, data.fresh_Z)


def test_names_of_columns_and_classes(binary):
    frame = pd.DataFrame(binary.X, columns=list("abcde"))
    names = np.array(["no", "yes"])[binary.y]
    model = fit(make_pipeline(StandardScaler(), LogisticRegression()), frame, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = NetworkOf(model)
    fresh = pd.DataFrame(binary.fresh, columns=list("abcde"))
    np.testing.assert_array_equal(
        model.classes_[network.predict(binary.fresh)], model.predict(fresh)
    )


def test_no_intercept_means_no_bias(data):
    model = LogisticRegression(fit_intercept=False).fit(data.Z, data.y)
    network = NetworkOf(model)
    assert network.layers[0].b is None
    assert_same(network, model, data.fresh_Z)


def test_sparse_coefficients(data):
    model = LogisticRegression().fit(data.Z, data.y).sparsify()
    assert_same(NetworkOf(model), model, data.fresh_Z)


class Multinomial(LogisticRegression):
    """Two classes as scikit-learn <= 1.7 computed them with multi_class='multinomial'."""

    def predict_proba(self, X):
        p = expit(2.0 * self.decision_function(X))
        return np.column_stack([1.0 - p, p])


def test_two_classes_fitted_as_multinomial(binary):
    model = make_pipeline(StandardScaler(), Multinomial()).fit(binary.X, binary.y)
    network = NetworkOf(model)
    assert network.outputs == 1
    assert_same(network, model, binary.fresh)


def test_mlp_without_hidden_layer(data):
    model = fit(mlp(hidden_layer_sizes=()), data.Z, data.y)
    assert_same(NetworkOf(model), model, data.fresh_Z)


@pytest.mark.parametrize(
    "front", [PCA(2), SelectKBest(k=2), make_pipeline(StandardScaler(), PCA(2))]
)
def test_linear_maps_stand_in_front_of_trained_layers(binary, front):
    model = fit(make_pipeline(front, mlp()), binary.X, binary.y)
    net = NetworkOf(model)
    assert_same(net, model, binary.fresh)
    np.testing.assert_array_equal(net.layers[0].W, model[-1].coefs_[0].T)


# -- any pipeline ----------------------------------------------------------------------------------

# Steps are made anew each time: one object in two places would hold the second fit.
scalers = st.one_of(
    st.just("passthrough"),
    st.builds(StandardScaler, with_mean=st.booleans(), with_std=st.booleans()),
    st.builds(MinMaxScaler, feature_range=st.sampled_from([(0, 1), (-3, 5)])),
    st.builds(MaxAbsScaler),
    st.builds(RobustScaler, with_centering=st.booleans(), unit_variance=st.booleans()),
)
fillers = st.one_of(
    st.builds(SimpleImputer, strategy=st.sampled_from(["mean", "median", "most_frequent"])),
    st.builds(SimpleImputer, strategy=st.just("constant"), fill_value=st.just(7.0)),
)
word_fillers = st.one_of(
    st.builds(SimpleImputer, strategy=st.just("most_frequent")),
    st.builds(SimpleImputer, strategy=st.just("constant"), fill_value=st.just("cook")),
)
encoders = st.one_of(
    st.builds(
        OneHotEncoder,
        drop=st.sampled_from([None, "first", "if_binary"]),
        min_frequency=st.sampled_from([None, 0.1, 0.45]),
        handle_unknown=st.just("ignore"),
        sparse_output=st.booleans(),
    ),
    st.builds(OneHotEncoder, max_categories=st.sampled_from([2, 3])),
    st.builds(OrdinalEncoder),
)
mixers = st.one_of(
    scalers,
    st.builds(SelectKBest, k=st.integers(1, 3)),
    st.builds(PCA, st.integers(1, 3), whiten=st.booleans()),
    st.builds(TruncatedSVD, st.integers(1, 2)),
    st.builds(make_pipeline, scalers, scalers),
    st.builds(
        lambda a, b: FeatureUnion([("a", a), ("b", b)], transformer_weights={"a": 0.5}),
        scalers,
        scalers,
    ),
)
classifiers = st.one_of(
    st.builds(LogisticRegression, max_iter=st.just(30), fit_intercept=st.booleans()),
    st.builds(
        MLPClassifier,
        st.sampled_from([(4,), (3, 3)]),
        solver=st.just("lbfgs"),
        max_iter=st.just(5),
        random_state=st.integers(0, 5),
    ),
)


@st.composite
def pipelines(draw, *, gaps):
    """A pipeline of random parts: each column in its own way, or several in one."""
    numbers = ["age", "income"] if draw(st.booleans()) else ["income"]
    parts = []
    for group in [numbers] if draw(st.booleans()) else [[name] for name in numbers]:
        steps = [draw(scalers), draw(scalers)]
        if gaps:  # in front of the scalers, between them or behind
            steps.insert(draw(st.integers(0, 2)), draw(fillers))
        parts.append((make_pipeline(*steps), group))
    for name in draw(st.lists(st.sampled_from(["job", "sex", "grade"]), unique=True)):
        filler = [draw(word_fillers)] if gaps and name == "job" else []
        parts.append((make_pipeline(*filler, draw(encoders)), [name]))
    columns = ColumnTransformer(
        [(f"p{i}", *part) for i, part in enumerate(draw(st.permutations(parts)))]
    )
    return make_pipeline(columns, *draw(st.lists(mixers, max_size=3)), draw(classifiers))


@given(st.data(), st.booleans(), st.integers(0, 10))
@examples(80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_random_pipelines(data, gaps, seed):
    frame, y = people(80, seed, missing=gaps)
    y = data.draw(st.sampled_from([y, np.where(y == "yes", 7, 3), three(frame)]), label="labels")
    pipe = data.draw(pipelines(gaps=gaps), label="pipeline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pipe.fit(frame, y)
        except ValueError:  # such as more components than columns
            event("does not fit")
            return
        model = Model.of(pipe)
        others = people(60, seed + 100, missing=gaps)[0]
        known = others.job.isin(frame.job) | others.job.isna()  # no other word is a legal value
        others = others[known].reset_index(drop=True)
        for table in (frame, others):
            P = pipe.predict_proba(table)
            z = model.network.logits(model.encode(table))
            np.testing.assert_allclose(probabilities(z), P, rtol=1e-7, atol=1e-10)
            ordered = np.sort(P, axis=1)
            clear = ordered[:, -1] - ordered[:, -2] > 1e-9
            assert (model.predict(table) == pipe.predict(table))[clear].all()
            model.check_agreement(table)
    number = next((f for f in model.schema.features if isinstance(f, Continuous)), None)
    if number is not None and not gaps:
        holed = others.astype({number.name: float})
        holed.loc[5, number.name] = np.nan
        with pytest.raises(
            SchemaError, match=f"row 5, column '{number.name}': the cell is missing"
        ):
            model.predict(holed)


def three(frame):
    """Labels of three classes."""
    return np.array(["bad", "fair", "good"])[np.digitize(frame.age, [35, 60])]


def probabilities(z):
    """The probabilities of scikit-learn: both from one logit."""
    z = np.hstack([np.zeros_like(z), z]) if z.shape[1] == 1 else z
    P = np.exp(z - z.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


# -- linear classifiers -----------------------------------------------------------------------------

LINEAR = [
    LinearSVC(),
    LinearSVC(fit_intercept=False),
    SGDClassifier(random_state=0),
    SGDClassifier("log_loss", random_state=0),
    SGDClassifier("modified_huber", random_state=0),
    RidgeClassifier(),
    Perceptron(random_state=0),
]


@pytest.mark.parametrize("classifier", LINEAR, ids=repr)
def test_linear_classifier_is_its_decision_function(data, classifier):
    pipe = make_pipeline(StandardScaler(), classifier).fit(data.X, data.y)
    model = Model.of(pipe)
    assert (model.predict(data.fresh) == pipe.predict(data.fresh)).all()
    scores = pipe.decision_function(data.fresh)
    found = model.network.logits(model.encode(data.fresh))
    np.testing.assert_allclose(found, scores.reshape(len(scores), -1), rtol=1e-9, atol=1e-9)


def test_cutoff_of_linear_classifier_needs_its_probabilities(binary):
    pipe = make_pipeline(StandardScaler(), SGDClassifier("log_loss", random_state=0))
    model = Model.of(pipe.fit(binary.X, binary.y), cutoff=0.7)
    expected = pipe.predict_proba(binary.fresh)[:, 1] >= 0.7
    assert (model.predict(binary.fresh) == expected).all()
    for loss in ("hinge", "modified_huber"):  # the latter's are no sigmoid of its scores
        other = make_pipeline(StandardScaler(), SGDClassifier(loss, random_state=0))
        with pytest.raises(ModelNotSupportedError, match="no probabilities, which a cut-off needs"):
            Model.of(other.fit(binary.X, binary.y), cutoff=0.7)


def test_linear_classifier_of_several_labels_is_rejected(binary):
    ridge = RidgeClassifier().fit(binary.X, np.stack([binary.y, 1 - binary.y], axis=1))
    with pytest.raises(ModelNotSupportedError, match="Train one model for each label"):
        Model.of(ridge)


@pytest.mark.parametrize(
    "scaler", [MinMaxScaler(), MinMaxScaler((-1, 1)), StandardScaler()], ids=repr
)
@pytest.mark.parametrize("classifier", [LinearSVC(), LogisticRegression()], ids=repr)
def test_scaler_fitted_in_float32_is_read_as_it_rounds(binary, scaler, classifier):
    X = binary.X.astype(np.float32)
    pipe = make_pipeline(clone(scaler), classifier).fit(X, binary.y)
    model = Model.of(pipe)
    assert (model.predict(X) == pipe.predict(X)).all()


class OwnThreshold(LogisticRegression):
    def predict(self, X):
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.7).astype(int)]


def test_threshold_of_its_own_is_refused_and_advice_works(binary):
    pipe = make_pipeline(StandardScaler(), OwnThreshold()).fit(binary.X, binary.y)
    with pytest.raises(
        ModelNotSupportedError, match=r"threshold of its own.*Model\.of\(model, cutoff"
    ):
        Model.of(pipe)
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(binary.X, binary.y)
    model = Model.of(plain, cutoff=0.7)
    assert (model.predict(binary.fresh) == pipe.predict(binary.fresh)).all()


def test_categories_of_one_label_or_all_rare_are_constant_columns():
    frame, y = people()
    frame = frame.assign(one="a", rare=[f"r{i}" for i in range(len(frame))])
    encoder = OneHotEncoder(min_frequency=2)
    columns = ColumnTransformer([("w", encoder, ["one", "rare"]), ("n", StandardScaler(), ["age"])])
    pipe = fit(make_pipeline(columns, LogisticRegression()), frame, y)
    model = Model.of(pipe)
    assert list(model.schema.by_name) == ["age"]
    assert (model.predict(frame) == pipe.predict(frame)).all()


def test_column_of_thousands_of_categories_is_read():
    zips = pd.DataFrame({"zip": [f"z{i % 1500}" for i in range(3000)], "age": np.arange(3000)})
    y = (zips.index % 1500 < 700).astype(int)
    columns = ColumnTransformer([("w", OneHotEncoder(), ["zip"]), ("n", StandardScaler(), ["age"])])
    pipe = make_pipeline(columns, LogisticRegression()).fit(zips, y)
    assert (Model.of(pipe).predict(zips) == pipe.predict(zips)).all()


def test_whole_numbers_reach_imputer_of_decimals():
    """Decoded counterfactuals of a column of decimals may hold whole numbers alone."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": rng.integers(1, 90, 80).astype(float)})
    labels = table["income"] > 40
    table.loc[::7, "income"] = np.nan
    imputer = SimpleImputer(strategy="constant", fill_value=-1.5)
    pipe = make_pipeline(imputer, StandardScaler(), LogisticRegression()).fit(table, labels)
    whole = table.dropna().astype(int)

    assert (Model.of(pipe).predict_original(whole) == pipe.predict(whole.astype(float))).all()
