"""Networks and whole models from scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.linear_model import (
    LogisticRegression,
    Perceptron,
    RidgeClassifier,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC

from proplace.core.errors import ModelNotSupportedError
from proplace.core.network import Network
from proplace.loaders._flow import Flow
from proplace.loaders._sklearn_steps import apply, check_fitted, inside, named
from proplace.loaders._verify import form_of, probe_rows, probe_table
from proplace.loaders._whole import Whole

if TYPE_CHECKING:
    from proplace.core.network import Array, Precision
    from proplace.core.transforms import InputTransform
    from proplace.loaders._flow import Flowing

# Classifiers whose scores (decision_function) are linear; the class is that of the largest.
_LINEAR = (LinearSVC, SGDClassifier, RidgeClassifier, RidgeClassifierCV, Perceptron)


def from_sklearn(model: object) -> Network:
    """Read a fitted scikit-learn classifier of numbers.

    Parameters
    ----------
    model
        An ``MLPClassifier`` with ``activation='relu'``, a ``LogisticRegression``, ``LinearSVC``,
        ``SGDClassifier``, ``RidgeClassifier`` or ``Perceptron``, or a ``Pipeline`` that ends in one,
        with scalers, PCA and feature selection in front. These become the network's input map: they
        are not folded into the weights, because they are not trained parameters of the classifier. A
        pipeline that takes categories is a whole model: see ``Model.of``.

    Returns
    -------
    Network
        One logit for two classes, else one for each class. Class ``k`` of the network is
        ``model.classes_[k]``. A row exactly on the boundary of two classes counts as class 1 here
        and as class 0 in scikit-learn.
    """
    pipeline = _Pipeline(model)
    network = pipeline.network(pipeline.flow.numbers(pipeline.columns, pipeline.titles))
    X = probe_rows(network)
    return pipeline.agreeing(network, X, pipeline.table(pd.DataFrame(X, columns=pipeline.titles)))


def whole_sklearn(model: object) -> Whole:
    """Read a fitted classifier together with all that stands in front of it."""
    pipeline = _Pipeline(model)
    schema, input_transform = pipeline.flow.finish(pipeline.columns)
    probe = probe_table(schema)
    rows, table = schema.encode(probe), pipeline.table(probe)
    network = pipeline.agreeing(pipeline.network(input_transform), rows, table)
    has_probabilities = pipeline.has_probabilities(network, rows, table)

    def predict(frame: pd.DataFrame) -> Any:
        return np.asarray(pipeline.source.predict(pipeline.table(frame)))

    def probabilities(frame: pd.DataFrame) -> Any:
        return np.asarray(pipeline.source.predict_proba(pipeline.table(frame)))

    return Whole(
        network,
        schema,
        pipeline.classes,
        predict,
        columns=tuple(pipeline.titles),
        has_column_names=pipeline.has_column_names,
        probabilities=probabilities if has_probabilities else None,
    )


def parts_of(model: Any) -> tuple[list[Any], Any]:
    """Return what stands in front of the classifier, step by step, and the fitted classifier."""
    front, where, classifier = _steps(getattr(model, "best_estimator_", model))
    _layers(where, classifier)
    return [step for _, step in front], classifier


class _Pipeline:
    """A classifier, and the columns of the table on their way to its first layer."""

    def __init__(self, model: Any) -> None:
        self.source = getattr(model, "best_estimator_", model)
        front, self.where, self.classifier = _steps(self.source)
        self.layers = _layers(self.where, self.classifier)
        if len(self.classifier.classes_) < 2:
            raise ModelNotSupportedError(
                f"{self.where} was fitted on rows of a single class; it needs two"
            )
        for path, step in front:
            check_fitted(named(path, step), step)
        names = getattr(self.source, "feature_names_in_", None)
        self.has_column_names = names is not None
        count = int(self.source.n_features_in_)
        self.titles = [f"x{i}" for i in range(count)] if names is None else [str(n) for n in names]
        self.flow = Flow()
        self.columns: list[Flowing] = [self.flow.column(title) for title in self.titles]
        for path, step in front:
            self.columns = apply(self.flow, path, step, self.columns)
        self._used = self.flow.used(self.columns)

    @property
    def classes(self) -> tuple[Any, ...]:
        """Class labels in the order of the logits, as plain values."""
        labels = self.classifier.classes_
        return tuple(c.item() if isinstance(c, np.generic) else c for c in labels)

    def table(self, frame: pd.DataFrame) -> Any:
        """Return a table as the source takes it; what it never looks at may be left out."""
        whole = pd.DataFrame(
            {
                title: self.flow.anything(title)
                if title not in frame and title not in self._used
                else frame[title]
                for title in self.titles
            },
            index=frame.index,
        )
        return whole if self.has_column_names else whole.to_numpy()

    def network(self, input_transform: InputTransform, factor: float = 1.0) -> Network:
        """Return the classifier's layers behind an input transform, logits times a factor."""
        precision: Precision = "float32" if self.layers[0][0].dtype == np.float32 else "float64"
        W, b = self.layers[-1]
        last = (factor * W, None if b is None else factor * b)
        layers = [*self.layers[:-1], last]
        return Network(layers, **input_transform.parts, precision=precision, folds=None)

    def agreeing(self, network: Network, X: Array, table: Any) -> Network:
        """Return the network, or the one with doubled logits, whose probabilities are the model's."""
        if isinstance(self.classifier, _LINEAR):
            return self._with_scores(network, X, table)
        P = np.asarray(self.source.predict_proba(table))
        candidates = [network]
        if isinstance(self.classifier, LogisticRegression) and network.outputs == 1:
            # Two classes fitted with multi_class='multinomial': probabilities are the softmax of
            # (-z, z), which is the sigmoid of 2 z.
            candidates.append(self.network(network.input_transform, 2.0))
        for candidate in candidates:
            if _agrees(candidate, X, P):
                return candidate
        raise ModelNotSupportedError(
            f"predict_proba of {self.where} is not the sigmoid or softmax of its layers' outputs "
            "(one-vs-rest probabilities, or a subclass that changes them); fit a plain "
            "LogisticRegression or MLPClassifier"
        )

    def _with_scores(self, network: Network, X: Array, table: Any) -> Network:
        """Return the network of a classifier whose scores are its logits."""
        scores = np.asarray(self.source.decision_function(table))
        labels = np.array(self.classes, dtype=object)[network.predict(X)]
        clear = (
            np.abs(scores if scores.ndim == 1 else np.diff(np.sort(scores)[:, -2:])[:, 0]) > 1e-3
        )
        if (
            form_of(network, X, scores, network.precision) != "logits"
            or (labels != np.asarray(self.source.predict(table), dtype=object))[clear].any()
        ):
            raise ModelNotSupportedError(
                f"decision_function of {self.where} is not linear in the columns, or its predictions "
                "are not those of the largest score (a subclass that changes them); fit a plain "
                f"{type(self.classifier).__mro__[1].__name__}"
            )
        return network

    def has_probabilities(self, network: Network, X: Array, table: Any) -> bool:
        """True if probabilities are the sigmoid or softmax of the logits."""
        if not isinstance(self.classifier, _LINEAR):
            return True
        ask = getattr(self.source, "predict_proba", None)
        return ask is not None and _agrees(network, X, np.asarray(ask(table)))


def _agrees(network: Network, X: Array, P: Array) -> bool:
    if P.shape != (len(X), network.classes):
        return False
    if network.outputs == 1:
        return form_of(network, X, P[:, 1], network.precision, "sigmoid") == "sigmoid"
    return form_of(network, X, P, network.precision, "softmax") == "softmax"


def _steps(model: Any) -> tuple[list[tuple[str, Any]], str, Any]:
    """Steps in front of the classifier with their paths, and the classifier with its name."""
    front: list[tuple[str, Any]] = []
    path = ""
    while isinstance(model, Pipeline):
        steps = [
            (name, step)
            for name, step in model.steps
            if not (step is None or (isinstance(step, str) and step == "passthrough"))
        ]
        if not steps:
            raise ModelNotSupportedError(
                "the pipeline has no step but 'passthrough'; it needs a classifier"
            )
        front += [(inside(path, name), step) for name, step in steps[:-1]]
        name, model = steps[-1]
        path = inside(path, name)
    return front, named(path, model), model


def _layers(where: str, classifier: Any) -> list[tuple[Any, Any]]:
    """Layers of a fitted classifier."""
    check_fitted(where, classifier)
    if isinstance(classifier, MLPClassifier):
        return _mlp(where, classifier)
    if isinstance(classifier, LogisticRegression):
        return _logistic(where, classifier)
    if isinstance(classifier, _LINEAR):
        return _linear(where, classifier)
    raise ModelNotSupportedError(
        f"{where} is not a classifier that can be read as a network. Only MLPClassifier, "
        "LogisticRegression, LinearSVC, SGDClassifier, RidgeClassifier and Perceptron are read"
    )


def _mlp(where: str, model: Any) -> list[tuple[Any, Any]]:
    if model.activation != "relu" and len(model.coefs_) > 1:
        raise ModelNotSupportedError(
            f"{where} has activation={model.activation!r}; only networks with activation='relu' "
            "are read. Train it again with that"
        )
    if model.out_activation_ == "logistic" and model.n_outputs_ > 1:
        raise ModelNotSupportedError(
            f"{where} has {model.n_outputs_} independent labels; train one model for each label"
        )
    return [(W.T, b) for W, b in zip(model.coefs_, model.intercepts_, strict=True)]


def _logistic(where: str, model: Any) -> list[tuple[Any, Any]]:
    if len(model.classes_) > 2 and (
        getattr(model, "multi_class", "auto") == "ovr" or model.solver == "liblinear"
    ):
        raise ModelNotSupportedError(
            f"{where} was fitted one-vs-rest, so its probabilities are not a softmax; fit it with "
            "the solver 'lbfgs' (multinomial)"
        )
    return _linear(where, model)


def _linear(where: str, model: Any) -> list[tuple[Any, Any]]:
    if getattr(model, "_label_binarizer", None) is not None and model._label_binarizer.y_type_ in (
        "multilabel-indicator",
        "multiclass-multioutput",
    ):
        raise ModelNotSupportedError(
            f"{where} has several independent labels; train one model for each label"
        )
    coef = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
    coef = np.atleast_2d(coef)
    # fit_intercept=False leaves zeros, which were not trained.
    return [(coef, np.atleast_1d(model.intercept_) if model.fit_intercept else None)]
