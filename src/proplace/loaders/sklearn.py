"""Networks from scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from proplace.errors import ModelNotSupported
from proplace.loaders._chain import InputTransform
from proplace.loaders._verify import form_of, probe_rows
from proplace.network import Network

if TYPE_CHECKING:
    from proplace.network import Array, Precision

_SCALERS = "StandardScaler, MinMaxScaler, MaxAbsScaler and 'passthrough'"


def from_sklearn(model: object) -> Network:
    """Read a fitted scikit-learn classifier.

    Parameters
    ----------
    model
        An ``MLPClassifier`` with ``activation='relu'``, a ``LogisticRegression``, or a ``Pipeline``
        that ends in one, with any number of StandardScaler, MinMaxScaler and MaxAbsScaler steps in
        front. The scalers become the network's input transform: they are not folded into the
        weights, because they are not trained parameters of the classifier.

    Returns
    -------
    Network
        One logit for two classes, else one for each class. Class ``k`` of the network is
        ``model.classes_[k]``. A row exactly on the boundary of two classes counts as class 1 here
        and as class 0 in scikit-learn.
    """
    steps = _steps(model)
    *scalers, (where, classifier) = steps
    _check_fitted(where, classifier)
    if isinstance(classifier, MLPClassifier):
        layers = _mlp(where, classifier)
    elif isinstance(classifier, LogisticRegression):
        layers = _logistic(where, classifier)
    else:
        raise _not_a_classifier(where, classifier)
    if len(classifier.classes_) < 2:
        raise ModelNotSupported(f"{where} was fitted on rows of a single class; it needs two")
    transform = InputTransform()
    for name, scaler in scalers:
        _add_scaler(transform, name, scaler)
    precision: Precision = "float32" if layers[0][0].dtype == np.float32 else "float64"

    def build(factor: float) -> Network:
        return Network(
            [(factor * W, None if b is None else factor * b) for W, b in layers],
            scale=transform.scale,
            shift=transform.shift,
            precision=precision,
        )

    network = build(1.0)
    if _agrees(network, model):
        return network
    if isinstance(classifier, LogisticRegression) and network.outputs == 1:
        # Two classes fitted with multi_class='multinomial': probabilities are the softmax of
        # (-z, z), which is the sigmoid of 2 z.
        network = build(2.0)
        if _agrees(network, model):
            return network
    raise ModelNotSupported(
        f"predict_proba of {where} is not the sigmoid or softmax of its layers' outputs "
        "(one-vs-rest probabilities, or a subclass that changes them); fit a plain "
        "LogisticRegression or MLPClassifier"
    )


def _steps(model: object, path: str = "") -> list[tuple[str, Any]]:
    """All steps with their names for messages; pipelines inside pipelines are unrolled."""
    if not isinstance(model, Pipeline):
        kind = type(model).__name__
        return [(f"step {path!r} ({kind})" if path else kind, model)]
    steps: list[tuple[str, Any]] = []
    for name, step in model.steps:
        inner = f"{path}.{name}" if path else name
        if step is not None and not (isinstance(step, str) and step == "passthrough"):
            steps += _steps(step, inner)
    if not steps:
        raise ModelNotSupported("the pipeline has no step but 'passthrough'; it needs a classifier")
    return steps


def _check_fitted(where: str, estimator: Any) -> None:
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise ModelNotSupported(f"{where} is not fitted; call fit() first") from None
    except TypeError:  # not an estimator at all; refused by its class
        return


def _not_a_classifier(where: str, estimator: object) -> ModelNotSupported:
    hint = "Only MLPClassifier and LogisticRegression are read"
    if hasattr(estimator, "best_estimator_"):
        hint = "Give its best_estimator_ instead"
    return ModelNotSupported(f"{where} is not a classifier that can be read as a network. {hint}")


def _add_scaler(transform: InputTransform, where: str, scaler: Any) -> None:
    if not isinstance(scaler, (StandardScaler, MinMaxScaler, MaxAbsScaler)):
        raise ModelNotSupported(
            f"{where} stands in front of the classifier; only {_SCALERS} are read there. Apply "
            "this step to the data beforehand and fit the rest of the pipeline on the result"
        )
    _check_fitted(where, scaler)
    if getattr(scaler, "clip", False):
        raise ModelNotSupported(
            f"{where} has clip=True, which is not an affine map; fit it with clip=False"
        )
    if isinstance(scaler, StandardScaler):
        if scaler.with_mean:
            transform.then(None, -_float64(scaler.mean_))
        if scaler.with_std:
            transform.then(1.0 / _float64(scaler.scale_), None)
    elif isinstance(scaler, MinMaxScaler):
        transform.then(_float64(scaler.scale_), _float64(scaler.min_))
    else:
        transform.then(1.0 / _float64(scaler.scale_), None)


def _mlp(where: str, model: Any) -> list[tuple[Any, Any]]:
    if model.activation != "relu" and len(model.coefs_) > 1:
        raise ModelNotSupported(
            f"{where} has activation={model.activation!r}; only networks with activation='relu' "
            "are read. Train it again with that"
        )
    if model.out_activation_ == "logistic" and model.n_outputs_ > 1:
        raise ModelNotSupported(
            f"{where} has {model.n_outputs_} independent labels; train one model for each label"
        )
    return [(W.T, b) for W, b in zip(model.coefs_, model.intercepts_, strict=True)]


def _logistic(where: str, model: Any) -> list[tuple[Any, Any]]:
    if len(model.classes_) > 2 and (
        getattr(model, "multi_class", "auto") == "ovr" or model.solver == "liblinear"
    ):
        raise ModelNotSupported(
            f"{where} was fitted one-vs-rest, so its probabilities are not a softmax; fit it with "
            "the solver 'lbfgs' (multinomial)"
        )
    coef = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
    # fit_intercept=False leaves zeros, which were not trained.
    return [(coef, np.atleast_1d(model.intercept_) if model.fit_intercept else None)]


def _float64(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _agrees(network: Network, model: Any) -> bool:
    X = probe_rows(network)
    names = getattr(model, "feature_names_in_", None)
    # A model fitted on named columns warns about rows without names.
    P = np.asarray(model.predict_proba(X if names is None else pd.DataFrame(X, columns=names)))
    if P.shape != (len(X), network.classes):
        return False
    if network.outputs == 1:
        return form_of(network, X, P[:, 1], network.precision) == "sigmoid"
    return form_of(network, X, P, network.precision) == "softmax"
