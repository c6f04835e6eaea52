"""Models of several frameworks, their tables and their ONNX exports, for the tests of many packages."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

NUMBERS, WORDS = ["age", "income"], ["job", "sex"]


def people(n=240, seed=0, *, missing=False):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"p{i}" for i in range(n)],
            "age": rng.integers(18, 80, n),
            "income": rng.normal(50_000, 12_000, n).round(-1),
            "job": rng.choice(["clerk", "cook", "smith", "poet"], n, p=[0.5, 0.4, 0.06, 0.04]),
            "sex": rng.choice(["f", "m"], n),
            "grade": rng.choice(["low", "mid", "high"], n),
        }
    )
    if missing:
        frame.loc[rng.random(n) < 0.1, "income"] = np.nan
        frame.loc[rng.random(n) < 0.1, "job"] = None
    score = frame.age / 20 + frame.income.fillna(0) / 20_000 + 2 * (frame.job == "cook")
    return frame, np.where(score > score.median(), "yes", "no")


def scaled(*, numbers=None, words=None, remainder="drop"):
    return ColumnTransformer(
        [
            ("numbers", numbers or StandardScaler(), NUMBERS),
            ("words", words or OneHotEncoder(sparse_output=False), WORDS),
        ],
        remainder=remainder,
    )


def levels(*order):
    return OrdinalEncoder(categories=[list(order)])


PREPROCESSING = {
    "scaler and one-hot": scaled(),
    "drop first": scaled(words=OneHotEncoder(drop="first")),
    "drop one of two": scaled(words=OneHotEncoder(drop="if_binary")),
    "drop chosen": scaled(words=OneHotEncoder(drop=["cook", "m"])),
    "infrequent": scaled(words=OneHotEncoder(min_frequency=0.2, sparse_output=False)),
    "infrequent dropped": scaled(words=OneHotEncoder(min_frequency=0.2, drop="first")),
    "unknown ignored": scaled(words=OneHotEncoder(handle_unknown="ignore")),
    "robust": scaled(numbers=RobustScaler()),
    "two scalers": scaled(numbers=make_pipeline(MinMaxScaler((2, 9)), StandardScaler())),
    "max abs": scaled(numbers=MaxAbsScaler()),
    "min max": scaled(numbers=MinMaxScaler((-1, 1))),
    "untouched numbers": scaled(numbers="passthrough"),
    "no one-hot": ColumnTransformer([("numbers", StandardScaler(), NUMBERS)]),
    "selector": ColumnTransformer(
        [
            ("numbers", StandardScaler(), make_column_selector(dtype_include=np.number)),
            ("words", OneHotEncoder(), [3, 4]),
        ]
    ),
    "ordinal": ColumnTransformer(
        [("numbers", StandardScaler(), NUMBERS), ("grade", levels("low", "mid", "high"), ["grade"])]
    ),
    "scaled ordinal": make_pipeline(
        ColumnTransformer([("grade", OrdinalEncoder(), ["grade"]), ("n", "passthrough", NUMBERS)]),
        StandardScaler(),
    ),
    "scaled one-hot": make_pipeline(scaled(), StandardScaler()),
    "pca": make_pipeline(scaled(), PCA(3)),
    "whitened": make_pipeline(scaled(), StandardScaler(), PCA(4, whiten=True), RobustScaler()),
    "svd": make_pipeline(scaled(), TruncatedSVD(3)),
    "best columns": make_pipeline(scaled(), SelectKBest(k=3)),
    "nested": Pipeline(
        [
            ("outer", Pipeline([("inner", scaled()), ("more", MaxAbsScaler())])),
            ("no", "passthrough"),
        ]
    ),
    "union": make_pipeline(
        ColumnTransformer([("n", "passthrough", NUMBERS)]),
        FeatureUnion(
            [("a", StandardScaler()), ("b", MinMaxScaler())], transformer_weights={"b": 0.5}
        ),
    ),
    "imputer": scaled(
        numbers=make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
        words=make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()),
    ),
    "imputer behind a scaler": scaled(
        numbers=make_pipeline(StandardScaler(), SimpleImputer()),
        words=make_pipeline(SimpleImputer(strategy="constant", fill_value="cook"), OneHotEncoder()),
    ),
    "number as category too": ColumnTransformer(
        [("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["age", "sex"])]
    ),
}
CLASSIFIERS = {
    "mlp": MLPClassifier((6, 5), solver="lbfgs", max_iter=60, random_state=0),
    "logistic": LogisticRegression(max_iter=50),
}


def fitted(name, classifier, frame, y):
    return make_pipeline(PREPROCESSING[name], CLASSIFIERS[classifier]).fit(frame, y)


# -- ONNX ------------------------------------------------------------------------------------------


def export_sklearn(path, pipe, inputs, **options):
    """Write a pipeline as an ONNX file: an input for each column of a table, or one of some width."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    if isinstance(inputs, int):
        types = [("rows", FloatTensorType([None, inputs]))]
    else:
        numbers = {name: inputs[name].dtype.kind in "if" for name in inputs}
        kinds = {True: FloatTensorType, False: StringTensorType}
        types = [(name, kinds[number]([None, 1])) for name, number in numbers.items()]
    graph = convert_sklearn(pipe, "model", types, options=options or None)
    path.write_bytes(graph.SerializeToString())
    return path


def export_torch(module, path, rows, **options):
    """Write a module as an ONNX file, without the words of the exporter."""
    import torch

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, (rows,), path, **options)
    finally:
        logging.disable(logging.NOTSET)
    return path
