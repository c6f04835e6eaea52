"""Fitted classifiers and pipelines of scikit-learn, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    Perceptron,
    RidgeClassifier,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

from proplace.core.errors import ModelNotSupportedError
from proplace.core.network import Network
from proplace.loaders.model import Model
from proplace.loaders.trace import Trace, Value
from proplace.loaders.verify import boundary_table, form_of, probe_table
from proplace.schema.values import to_python

if TYPE_CHECKING:
    from proplace.core.network import Array, Precision
    from proplace.core.transforms import InputTransform
    from proplace.loaders.verify import Form

Step = Callable[[Trace, str, Any, Value], Value]

# classifiers with linear scores (decision_function), the largest of which decides the class
_LINEAR = (LinearSVC, SGDClassifier, RidgeClassifier, RidgeClassifierCV, Perceptron)
_PROBABILITIES: tuple[Form, ...] = ("both probabilities", "softmax")  # forms of predict_proba


def from_sklearn(model: object) -> Model:
    """Read a fitted classifier of scikit-learn with all steps before it.

    Parameters
    ----------
    model
        An ``MLPClassifier`` with ``activation='relu'``, a ``LogisticRegression``, ``LinearSVC``,
        ``SGDClassifier``, ``RidgeClassifier`` or ``Perceptron``, or a ``Pipeline`` that ends in one.

    Returns
    -------
    Model
        One logit for two classes, else one for each class. A row exactly on the boundary of two
        classes counts as class 1 here and as class 0 in scikit-learn.
    """
    pipeline = _Pipeline(model)
    schema, input_transform = pipeline.trace.flow.finish(pipeline.trace.columns)
    probe = probe_table(schema)
    rows, table = schema.encode(probe), pipeline.table(probe)
    network = pipeline.agreeing(pipeline.network(input_transform), rows, table)
    has_probabilities = pipeline.has_probabilities(network, rows, table)

    def predict(frame: pd.DataFrame) -> Any:
        return np.asarray(pipeline.source.predict(pipeline.table(frame)))

    def probabilities(frame: pd.DataFrame) -> Any:
        return np.asarray(pipeline.source.predict_proba(pipeline.table(frame)))

    found = Model.imported(
        network,
        schema,
        pipeline.classes,
        predict,
        columns=tuple(pipeline.trace.titles),
        has_column_names=pipeline.has_column_names,
        probabilities=probabilities if has_probabilities else None,
    )
    near = pd.concat([probe, boundary_table(network, schema, probe)])
    if len(found.disagreements(schema.encode(near), predict(near))):
        raise ModelNotSupportedError(
            f"predict of {pipeline.where} does not give the class of the largest probability (a "
            "threshold of its own?). Fit a plain one, and state a cut-off: "
            "Model.of(model, cutoff=...)"
        )
    return found


def parts_of(model: Any) -> tuple[list[Any], Any]:
    """Return what comes before the classifier, step by step, and the fitted classifier."""
    front, where, classifier = _steps(model)
    _layers(where, classifier)
    return [step for _, step in front], classifier


class _Pipeline:
    """A classifier, and the columns of the table on their way to its first layer."""

    def __init__(self, model: Any) -> None:
        self.source = model
        front, self.where, self.classifier = _steps(model)
        layers = _layers(self.where, self.classifier)
        if len(self.classifier.classes_) < 2:
            raise ModelNotSupportedError(
                f"{self.where} was fitted on rows of a single class. It needs two"
            )
        for path, step in front:
            check_fitted(named(path, step), step)
        names = getattr(self.source, "feature_names_in_", None)
        self.has_column_names = names is not None
        count = int(self.source.n_features_in_)
        titles = [f"x{i}" for i in range(count)] if names is None else [str(n) for n in names]
        self.trace = Trace(self.where, "linear")
        value = self.trace.input(titles, (count,))
        for path, step in front:
            value = apply(self.trace, path, step, value)
        for i, (W, b) in enumerate(layers):
            if i:
                value = self.trace.relu(self.where, value)
            value = self.trace.linear(self.where, value, W, b, ("", None))
        self.precision: Precision = "float32" if layers[0][0].dtype == np.float32 else "float64"

    @property
    def classes(self) -> tuple[Any, ...]:
        """Class labels in the order of the logits, as plain values."""
        return tuple(map(to_python, self.classifier.classes_))

    def table(self, frame: pd.DataFrame) -> Any:
        """Return a table as the original model takes it."""
        whole = self.trace.table(frame)
        # An imputer of decimals rejects whole numbers, which decoded rows of decimals can be.
        numeric = self.trace.flow.numeric
        whole = whole.astype({n: float for n in numeric if whole[n].dtype == np.int64})
        return whole if self.has_column_names else whole.to_numpy()

    def network(self, input_transform: InputTransform, factor: float = 1.0) -> Network:
        """Return the classifier's layers behind an input transform, logits times a factor."""
        *rest, last = self.trace.chain.network(self.precision).layers
        scaled = (factor * last.W, None if last.b is None else factor * last.b)
        layers = [*((layer.W, layer.b) for layer in rest), scaled]
        return Network(layers, **input_transform.parts, precision=self.precision, folds=None)

    def agreeing(self, network: Network, X: Array, table: Any) -> Network:
        """Return the network whose logits give the scores or the probabilities of the classifier."""
        linear = isinstance(self.classifier, _LINEAR)
        forms: tuple[Form, ...] = ("logits",) if linear else _PROBABILITIES
        method = "decision_function" if linear else "predict_proba"
        outputs = getattr(self.source, method)(table)
        candidates = [network]
        if isinstance(self.classifier, LogisticRegression) and network.outputs == 1:
            # Two classes fitted with multi_class='multinomial': probabilities are the softmax of
            # (-z, z), which is the sigmoid of 2 z.
            candidates.append(self.network(network.input_transform, 2.0))
        for candidate in candidates:
            if form_of(candidate, X, outputs, network.precision, forms[0]) in forms:
                return candidate
        raise ModelNotSupportedError(
            f"{method} of {self.where} does not follow from its layers (one-vs-rest probabilities, or a "
            "subclass that changes them). Fit a plain classifier of scikit-learn"
        )

    def has_probabilities(self, network: Network, X: Array, table: Any) -> bool:
        """True if probabilities are the sigmoid or softmax of the logits."""
        if not isinstance(self.classifier, _LINEAR):
            return True
        ask = getattr(self.source, "predict_proba", None)
        form = None if ask is None else form_of(network, X, ask(table), network.precision)
        return form in _PROBABILITIES


def _steps(model: Any) -> tuple[list[tuple[str, Any]], str, Any]:
    """Steps before the classifier with their paths, and the classifier with its name."""
    front: list[tuple[str, Any]] = []
    path = ""
    while isinstance(model := getattr(model, "best_estimator_", model), Pipeline):
        steps = [
            (name, step)
            for name, step in model.steps
            if not (step is None or (isinstance(step, str) and step == "passthrough"))
        ]
        if not steps:
            raise ModelNotSupportedError(
                "the pipeline has no step but 'passthrough'. It needs a classifier"
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
        f"{where} is not a classifier that can be read as a network; train one that is: MLPClassifier, "
        "LogisticRegression, LinearSVC, SGDClassifier, RidgeClassifier or Perceptron"
    )


def _mlp(where: str, model: Any) -> list[tuple[Any, Any]]:
    if model.activation != "relu" and len(model.coefs_) > 1:
        raise ModelNotSupportedError(
            f"{where} has activation={model.activation!r}. Only networks with activation='relu' "
            "are read. Train it again with that"
        )
    if model.out_activation_ == "logistic" and model.n_outputs_ > 1:
        raise ModelNotSupportedError(
            f"{where} has {model.n_outputs_} independent labels. Train one model for each label"
        )
    return [(W.T, b) for W, b in zip(model.coefs_, model.intercepts_, strict=True)]


def _logistic(where: str, model: Any) -> list[tuple[Any, Any]]:
    if len(model.classes_) > 2 and (
        getattr(model, "multi_class", "auto") == "ovr" or model.solver == "liblinear"
    ):
        raise ModelNotSupportedError(
            f"{where} was fitted one-vs-rest, so its probabilities are not a softmax. Fit it with "
            "the solver 'lbfgs' (multinomial)"
        )
    return _linear(where, model)


def _linear(where: str, model: Any) -> list[tuple[Any, Any]]:
    if getattr(model, "_label_binarizer", None) is not None and model._label_binarizer.y_type_ in (
        "multilabel-indicator",
        "multiclass-multioutput",
    ):
        raise ModelNotSupportedError(
            f"{where} has several independent labels. Train one model for each label"
        )
    coef = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
    coef = np.atleast_2d(coef)
    # fit_intercept=False leaves zeros, which were not trained.
    return [(coef, np.atleast_1d(model.intercept_) if model.fit_intercept else None)]


# -- steps in front of the classifier, one function for each kind -----------------------------------

_NEXT = (
    "Read are: StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, OneHotEncoder, "
    "OrdinalEncoder, SimpleImputer, PCA, feature selection, ColumnTransformer, FeatureUnion and "
    "'passthrough'. Apply this step to the table beforehand and fit the rest of the pipeline on the "
    "result"
)


def apply(trace: Trace, path: str, step: Any, value: Value) -> Value:
    """Lead columns through one step of a pipeline, whose ``path`` is such as ``prepare.scale``."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return value
    if isinstance(step, FunctionTransformer) and step.func is None:  # 'passthrough', once fitted
        return value
    for kind, function in _STEPS:
        if isinstance(step, kind):
            check_fitted(named(path, step), step)
            return function(trace, path, step, value)
    raise ModelNotSupportedError(
        f"{named(path, step)} comes before the classifier and is not read. {_NEXT}"
    )


def check_fitted(where: str, estimator: Any) -> None:
    """Raise unless an estimator is fitted."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise ModelNotSupportedError(f"{where} is not fitted. Call fit() first") from None
    except TypeError:  # not an estimator at all: refused by its class
        return


def named(path: str, step: object) -> str:
    """Return what to call a step in messages."""
    kind = type(step).__name__
    return f"step {path!r} ({kind})" if path else kind


def inside(path: str, name: str) -> str:
    """Return the path of a step inside another."""
    return f"{path}.{name}" if path and name else path or name


# -- steps made of steps ---------------------------------------------------------------------------


def _pipeline(trace: Trace, path: str, step: Any, value: Value) -> Value:
    for name, part in step.steps:
        value = apply(trace, inside(path, name), part, value)
    return value


def _column_transformer(trace: Trace, path: str, step: Any, value: Value) -> Value:
    parts = []
    places = step._transformer_to_input_indices
    for name, part, _ in step.transformers_:
        if (isinstance(part, str) and part == "drop") or not len(places.get(name, ())):
            continue
        chosen = _selected(trace, named(path, step), value, places[name])
        parts.append(apply(trace, inside(path, name), part, chosen))
    return _joined(trace, named(path, step), parts)


def _feature_union(trace: Trace, path: str, step: Any, value: Value) -> Value:
    parts = []
    for name, part in step.transformer_list:
        if isinstance(part, str) and part == "drop":
            continue
        weight = (step.transformer_weights or {}).get(name, 1.0)
        found = apply(trace, inside(path, name), part, value)
        parts.append(trace.affine(named(path, step), found, weight, 0.0))
    return _joined(trace, named(path, step), parts)


def _selected(trace: Trace, where: str, value: Value, places: Any) -> Value:
    found: Value = trace.move(where, [value], lambda rows: rows[0][:, places])
    return found


def _joined(trace: Trace, where: str, values: list[Value]) -> Value:
    found: Value = trace.move(where, values, lambda rows: np.concatenate(rows, axis=1))
    return found


# -- scalers ---------------------------------------------------------------------------------------


def _scaler(trace: Trace, path: str, step: Any, value: Value) -> Value:
    if getattr(step, "clip", False):
        raise ModelNotSupportedError(
            f"{named(path, step)} has clip=True, which is not an affine map. Fit it with clip=False"
        )
    offset: Any = 0.0
    scale: Any = 1.0
    if isinstance(step, StandardScaler):
        offset = step.mean_ if step.with_mean else offset
        scale = step.scale_ if step.with_std else scale
    elif isinstance(step, RobustScaler):
        offset = step.center_ if step.with_centering else offset
        scale = step.scale_ if step.with_scaling else scale
    elif isinstance(step, MinMaxScaler):
        # v * scale_ + min_, with v = data_min_ going to the lower end of feature_range
        scale = 1.0 / np.asarray(step.scale_, np.float64)
        offset = step.data_min_ - step.feature_range[0] * scale
        if step.scale_.dtype == np.float32:  # rounded as it is used
            offset = -np.asarray(step.min_, np.float64) * scale
    else:
        scale = step.scale_
    return trace.standardise(named(path, step), value, offset, scale)


# -- categories ------------------------------------------------------------------------------------


def _one_hot(trace: Trace, path: str, step: Any, value: Value) -> Value:
    """Write each column in 0/1 columns: infrequent labels share one, a dropped label has none."""
    where, count, parts = named(path, step), len(step.categories_), []
    dropped = step.drop_idx_ if step.drop_idx_ is not None else [None] * count
    grouped = getattr(step, "infrequent_categories_", None) or [None] * count
    for i, (labels, infrequent, drop) in enumerate(
        zip(step.categories_, grouped, dropped, strict=True)
    ):
        rare = set() if infrequent is None else set(infrequent.tolist())
        groups = [[n] for n, label in enumerate(labels) if label not in rare]
        if rare:
            groups.append([n for n, label in enumerate(labels) if label in rare])
        kept = [group for group in groups if drop is None or int(drop) not in group]
        codes = {n: code for code, group in enumerate(kept) for n in group}
        column = trace.categories(
            where,
            Value(value.entries[i : i + 1]),
            labels,
            codes=[codes.get(n, -1) for n in range(len(labels))],
        )
        found = trace.one_hot(where, column, len(kept))
        parts.append(Value(found.entries[0]))
    return _joined(trace, where, parts)


def _ordinal(trace: Trace, path: str, step: Any, value: Value) -> Value:
    if getattr(step, "infrequent_categories_", None) and any(
        group is not None for group in step.infrequent_categories_
    ):
        raise ModelNotSupportedError(
            f"{named(path, step)} groups infrequent categories. Fit it without min_frequency and "
            "max_categories"
        )
    where = named(path, step)
    parts = [
        trace.categories(where, Value(value.entries[i : i + 1]), labels, ordered=True)
        for i, labels in enumerate(step.categories_)
    ]
    return _joined(trace, where, parts)


def _imputer(trace: Trace, path: str, step: Any, value: Value) -> Value:
    if step.add_indicator:
        raise ModelNotSupportedError(
            f"{named(path, step)} has add_indicator=True; whether a cell is missing is nothing a "
            "person can change. Fit it with add_indicator=False"
        )
    if not pd.isna(step.missing_values):
        raise ModelNotSupportedError(
            f"{named(path, step)} takes {step.missing_values!r} for a missing cell. Replace it by an "
            "empty cell in the table and fit with missing_values=nan"
        )
    if any(isinstance(fill, float) and np.isnan(fill) for fill in step.statistics_):
        raise ModelNotSupportedError(
            f"{named(path, step)} saw a column without any value. Drop that column and fit again"
        )
    return trace.impute(named(path, step), value, step.statistics_)


# -- linear maps -----------------------------------------------------------------------------------


def _pca(trace: Trace, path: str, step: Any, value: Value) -> Value:
    where, matrix = named(path, step), step.components_
    mean = getattr(step, "mean_", None)
    if mean is not None:
        value = trace.standardise(where, value, mean, 1.0)
    if getattr(step, "whiten", False):
        matrix = matrix / np.sqrt(step.explained_variance_)[:, None]
    return trace.matrix(where, value, matrix)


def _selector(trace: Trace, path: str, step: Any, value: Value) -> Value:
    return _selected(trace, named(path, step), value, np.flatnonzero(step.get_support()))


_STEPS: tuple[tuple[Any, Step], ...] = (
    (Pipeline, _pipeline),
    (ColumnTransformer, _column_transformer),
    (FeatureUnion, _feature_union),
    ((StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler), _scaler),
    (OneHotEncoder, _one_hot),
    (OrdinalEncoder, _ordinal),
    (SimpleImputer, _imputer),
    ((PCA, IncrementalPCA, TruncatedSVD), _pca),
    (SelectorMixin, _selector),
)
