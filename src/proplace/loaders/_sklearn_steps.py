"""Steps of a scikit-learn pipeline in front of its classifier, one function per kind of step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
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
from sklearn.utils.validation import check_is_fitted

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._flow import Mixture, Single

if TYPE_CHECKING:
    from proplace.loaders._flow import Flow, Flowing

Columns = list["Flowing"]
Step = Callable[["Flow", str, Any, Columns], Columns]

_NEXT = (
    "Read are: StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, OneHotEncoder, "
    "OrdinalEncoder, SimpleImputer, PCA, feature selection, ColumnTransformer, FeatureUnion and "
    "'passthrough'. Apply this step to the table beforehand and fit the rest of the pipeline on the "
    "result"
)


def apply(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    """Lead columns through one step of a pipeline; ``path`` names it, such as ``prepare.scale``."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return columns
    if isinstance(step, FunctionTransformer) and step.func is None:  # 'passthrough', once fitted
        return columns
    for kind, function in _STEPS:
        if isinstance(step, kind):
            check_fitted(named(path, step), step)
            return function(flow, path, step, columns)
    raise ModelNotSupportedError(
        f"{named(path, step)} stands in front of the classifier and is not read. {_NEXT}"
    )


def check_fitted(where: str, estimator: Any) -> None:
    """Raise unless an estimator is fitted."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise ModelNotSupportedError(f"{where} is not fitted; call fit() first") from None
    except TypeError:  # not an estimator at all; refused by its class
        return


def named(path: str, step: object) -> str:
    """Return what to call a step in messages."""
    kind = type(step).__name__
    return f"step {path!r} ({kind})" if path else kind


def inside(path: str, name: str) -> str:
    """Return the path of a step inside another."""
    return f"{path}.{name}" if path and name else path or name


# -- steps made of steps ---------------------------------------------------------------------------


def _pipeline(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    for name, part in step.steps:
        columns = apply(flow, inside(path, name), part, columns)
    return columns


def _column_transformer(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    out: Columns = []
    places = step._transformer_to_input_indices
    for name, part, _ in step.transformers_:
        if (isinstance(part, str) and part == "drop") or not len(places.get(name, ())):
            continue
        out += apply(flow, inside(path, name), part, [columns[i] for i in places[name]])
    return out


def _feature_union(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    out: Columns = []
    for name, part in step.transformer_list:
        if isinstance(part, str) and part == "drop":
            continue
        weight = (step.transformer_weights or {}).get(name, 1.0)
        found = apply(flow, inside(path, name), part, columns)
        out += found if weight == 1.0 else [column.then(0.0, 1.0 / weight) for column in found]
    return out


# -- scalers ---------------------------------------------------------------------------------------


def _scaler(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    if getattr(step, "clip", False):
        raise ModelNotSupportedError(
            f"{named(path, step)} has clip=True, which is not an affine map; fit it with clip=False"
        )
    count = len(columns)
    offset, scale = np.zeros(count), np.ones(count)
    if isinstance(step, StandardScaler):
        offset = step.mean_ if step.with_mean else offset
        scale = step.scale_ if step.with_std else scale
    elif isinstance(step, RobustScaler):
        offset = step.center_ if step.with_centering else offset
        scale = step.scale_ if step.with_scaling else scale
    elif isinstance(step, MinMaxScaler):
        # v * scale_ + min_, with v = data_min_ going to the lower end of feature_range
        scale = 1.0 / step.scale_
        offset = step.data_min_ - step.feature_range[0] * scale
    else:
        scale = step.scale_
    pairs = zip(columns, offset, scale, strict=True)
    return [column.then(float(o), float(s)) for column, o, s in pairs]


# -- categories ------------------------------------------------------------------------------------


def _one_hot(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    out: Columns = []
    dropped = step.drop_idx_ if step.drop_idx_ is not None else [None] * len(columns)
    grouped = getattr(step, "infrequent_categories_", None) or [None] * len(columns)
    for column, labels, infrequent, drop in zip(
        columns, step.categories_, grouped, dropped, strict=True
    ):
        name = flow.labels(named(path, step), column, list(labels), ordered=False)
        rare = set() if infrequent is None else set(infrequent.tolist())
        groups: list[list[int]] = [[n] for n, label in enumerate(labels) if label not in rare]
        if rare:
            groups.append([n for n, label in enumerate(labels) if label in rare])
        if drop is not None:
            gone = next(g for g, group in enumerate(groups) if int(drop) in group)
            groups.pop(gone)
        out += [_any_of(name, group) for group in groups]
    return out


def _any_of(name: str, labels: Sequence[int]) -> Flowing:
    """Return the 0/1 column of one label, or of several that count as one."""
    if len(labels) == 1:
        return Single(name, labels[0])
    return Mixture(tuple((1.0, Single(name, n)) for n in labels))


def _ordinal(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    if getattr(step, "infrequent_categories_", None) and any(
        group is not None for group in step.infrequent_categories_
    ):
        raise ModelNotSupportedError(
            f"{named(path, step)} groups infrequent categories; fit it without min_frequency and "
            "max_categories"
        )
    return [
        Single(flow.labels(named(path, step), column, list(labels), ordered=True))
        for column, labels in zip(columns, step.categories_, strict=True)
    ]


def _imputer(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    if step.add_indicator:
        raise ModelNotSupportedError(
            f"{named(path, step)} has add_indicator=True; whether a cell is missing is nothing a "
            "person can change. Fit it with add_indicator=False"
        )
    if not pd.isna(step.missing_values):
        raise ModelNotSupportedError(
            f"{named(path, step)} takes {step.missing_values!r} for a missing cell; replace it by an "
            "empty cell in the table and fit with missing_values=nan"
        )
    out: Columns = []
    for column, value in zip(columns, step.statistics_, strict=True):
        if isinstance(value, float) and np.isnan(value):
            raise ModelNotSupportedError(
                f"{named(path, step)} saw a column without any value; drop that column and fit again"
            )
        flow.fill(named(path, step), column, value)
        out.append(column)
    return out


# -- linear maps -----------------------------------------------------------------------------------


def _pca(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    matrix = step.components_
    mean = getattr(step, "mean_", None)
    if mean is not None:
        columns = [column.then(float(m), 1.0) for column, m in zip(columns, mean, strict=True)]
    if getattr(step, "whiten", False):
        matrix = matrix / np.sqrt(step.explained_variance_)[:, None]
    return flow.mix(columns, matrix, np.zeros(len(matrix)))


def _selector(flow: Flow, path: str, step: Any, columns: Columns) -> Columns:
    return [columns[i] for i in np.flatnonzero(step.get_support())]


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
