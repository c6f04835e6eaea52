from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from proplace.core.errors import ModelNotSupported
from proplace.core.network import Network


def mlp(**options):
    options = {"hidden_layer_sizes": (8, 6), "max_iter": 40, "random_state": 0} | options
    return MLPClassifier(**options)


def fit(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def assert_same(network, model, X):
    np.testing.assert_allclose(network.predict_proba(X), model.predict_proba(X), atol=1e-9)
    assert (model.classes_[network.predict(X)] == model.predict(X)).all()


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
def test_predictions_are_those_of_the_pipeline(data, classifier, scalers):
    X, fresh = (data.X, data.fresh) if scalers else (data.Z, data.fresh_Z)
    model = fit(make_pipeline(*scalers, classifier), X, data.y)
    network = Network.from_sklearn(model)
    assert_same(network, model, fresh)
    assert network.outputs == (1 if len(model.classes_) == 2 else 3)
    assert network.precision == "float64"


def test_scalers_are_not_folded_into_the_weights(binary):
    model = fit(make_pipeline(StandardScaler(), MinMaxScaler(), mlp()), binary.X, binary.y)
    network = Network.from_sklearn(model)
    for layer, coef, intercept in zip(
        network.layers, model[-1].coefs_, model[-1].intercepts_, strict=True
    ):
        np.testing.assert_array_equal(layer.W, coef.T)
        np.testing.assert_array_equal(layer.b, intercept)
    np.testing.assert_allclose(
        network.transform(binary.fresh), model[:-1].transform(binary.fresh), atol=1e-12
    )


def test_without_scaler_there_is_no_transform(binary):
    network = Network.from_sklearn(fit(mlp(), binary.Z, binary.y))
    assert network.scale is None
    assert network.shift is None


def test_float32_is_noticed(data):
    model = fit(mlp(), data.Z.astype(np.float32), data.y)
    network = Network.from_sklearn(model)
    assert network.precision == "float32"
    assert_same(network, model, data.fresh_Z)


def test_names_of_columns_and_classes(binary):
    frame = pd.DataFrame(binary.X, columns=list("abcde"))
    names = np.array(["no", "yes"])[binary.y]
    model = fit(make_pipeline(StandardScaler(), LogisticRegression()), frame, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = Network.from_sklearn(model)
    fresh = pd.DataFrame(binary.fresh, columns=list("abcde"))
    np.testing.assert_array_equal(
        model.classes_[network.predict(binary.fresh)], model.predict(fresh)
    )


def test_no_intercept_means_no_bias(data):
    model = LogisticRegression(fit_intercept=False).fit(data.Z, data.y)
    network = Network.from_sklearn(model)
    assert network.layers[0].b is None
    assert_same(network, model, data.fresh_Z)


def test_sparse_coefficients(data):
    model = LogisticRegression().fit(data.Z, data.y).sparsify()
    assert_same(Network.from_sklearn(model), model, data.fresh_Z)


class Multinomial(LogisticRegression):
    """Two classes as scikit-learn <= 1.7 computed them with multi_class='multinomial'."""

    def predict_proba(self, X):
        p = expit(2.0 * self.decision_function(X))
        return np.column_stack([1.0 - p, p])


def test_two_classes_fitted_as_multinomial(binary):
    model = make_pipeline(StandardScaler(), Multinomial()).fit(binary.X, binary.y)
    network = Network.from_sklearn(model)
    assert network.outputs == 1
    assert_same(network, model, binary.fresh)


class OwnProbabilities(LogisticRegression):
    def predict_proba(self, X):
        return super().predict_proba(X) ** 2


def test_mlp_without_hidden_layer(data):
    model = fit(mlp(hidden_layer_sizes=()), data.Z, data.y)
    assert_same(Network.from_sklearn(model), model, data.fresh_Z)


@pytest.mark.parametrize("activation", ["tanh", "logistic", "identity"])
def test_other_activations_are_refused(binary, activation):
    model = fit(Pipeline([("scale", StandardScaler()), ("net", mlp(activation=activation))]),
                binary.X, binary.y)  # fmt: skip
    with pytest.raises(ModelNotSupported, match=f"'net'.*{activation}.*activation='relu'"):
        Network.from_sklearn(model)


def test_labels_are_refused(binary):
    model = fit(mlp(), binary.Z, np.column_stack([binary.y, 1 - binary.y]))
    with pytest.raises(ModelNotSupported, match="MLPClassifier has 2 independent labels"):
        Network.from_sklearn(model)


def test_one_vs_rest_is_refused(multi):
    wrapped = OneVsRestClassifier(LogisticRegression()).fit(multi.Z, multi.y)
    with pytest.raises(ModelNotSupported, match="OneVsRestClassifier"):
        Network.from_sklearn(wrapped)
    model = LogisticRegression().fit(multi.Z, multi.y)
    model.multi_class = "ovr"  # an option of scikit-learn <= 1.7
    with pytest.raises(ModelNotSupported, match=r"LogisticRegression.*one-vs-rest.*lbfgs"):
        Network.from_sklearn(model)


def test_probabilities_of_its_own_are_refused(data):
    model = OwnProbabilities().fit(data.Z, data.y)
    with pytest.raises(ModelNotSupported, match="predict_proba of OwnProbabilities"):
        Network.from_sklearn(model)


@pytest.mark.parametrize("scaler", [MinMaxScaler(clip=True), MaxAbsScaler()])
def test_clipping_is_refused(binary, scaler):
    model = Pipeline([("squeeze", scaler), ("net", LogisticRegression())])
    model.fit(binary.X, binary.y)
    model[0].clip = True
    with pytest.raises(ModelNotSupported, match=r"'squeeze'.*clip=False"):
        Network.from_sklearn(model)


def test_other_steps_are_refused(binary):
    model = Pipeline([("squares", PolynomialFeatures()), ("net", LogisticRegression())])
    model.fit(binary.X, binary.y)
    with pytest.raises(
        ModelNotSupported, match=r"'squares' \(PolynomialFeatures\).*StandardScaler"
    ):
        Network.from_sklearn(model)


@pytest.mark.parametrize(
    "front", [PCA(2), SelectKBest(k=2), make_pipeline(StandardScaler(), PCA(2))]
)
def test_linear_maps_stand_in_front_of_the_trained_layers(binary, front):
    model = fit(make_pipeline(front, mlp()), binary.X, binary.y)
    net = Network.from_sklearn(model)
    assert_same(net, model, binary.fresh)
    np.testing.assert_array_equal(net.layers[0].W, model[-1].coefs_[0].T)


def test_categories_are_sent_to_whole_models():
    frame = pd.DataFrame({"job": ["cook", "clerk"] * 5})
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame, [0, 1] * 5)
    with pytest.raises(ModelNotSupported, match=r"'job' as a category.*Model.of\(model\)"):
        Network.from_sklearn(model)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (mlp(), "MLPClassifier"),
        (LogisticRegression(), "LogisticRegression"),
        (make_pipeline(StandardScaler(), mlp()), "'mlpclassifier'"),
    ],
)
def test_not_fitted_is_refused(model, name):
    with pytest.raises(ModelNotSupported, match=rf"{name}.*not fitted; call fit\(\)"):
        Network.from_sklearn(model)


def test_scaler_not_fitted_is_refused(binary):
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(binary.X, binary.y)
    model.steps[0] = ("scale", StandardScaler())
    with pytest.raises(ModelNotSupported, match=r"'scale'.*not fitted"):
        Network.from_sklearn(model)


def test_other_models_are_refused(binary):
    forest = RandomForestClassifier(2).fit(binary.Z, binary.y)
    with pytest.raises(ModelNotSupported, match="RandomForestClassifier"):
        Network.from_sklearn(forest)
    search = GridSearchCV(LogisticRegression(), {"C": [1.0]}).fit(binary.Z, binary.y)
    assert_same(Network.from_sklearn(search), search, binary.fresh_Z)
    with pytest.raises(ModelNotSupported, match="int"):
        Network.from_sklearn(3)
    with pytest.raises(ModelNotSupported, match="passthrough"):
        Network.from_sklearn(Pipeline([("a", "passthrough")]))
