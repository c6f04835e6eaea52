"""The same rows give the same statuses and reasons, in Python and on the command line.

Missing cells, cells outside of what is allowed, and cells that an imputer of the model fills: as
pandas, nullable, categorical and polars tables, as CSV and as Parquet.
"""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import polars
import pytest
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from commands import run
from proplace.baselines import Rnce

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

BASE = {"age": 33.0, "income": 20.0, "debt": 0.8, "job": "cook"}
ROWS = {
    "good": {},
    "filled by the model": {"age": None},
    "both filled": {"age": None, "income": None},
    "missing number": {"debt": None},
    "missing category": {"job": None},
    "missing beside a filled one": {"age": None, "job": None},
    "unknown category": {"job": "pilot"},
    "outside": {"debt": 1.1},
    "far outside": {"debt": 7.0},
    "good again": {"income": 30.0},
}
PEOPLE = pd.DataFrame([BASE | change for change in ROWS.values()])
EXPECTED = {
    "missing number": "column 'debt': the cell is missing; allowed: 0 to 1",
    "missing category": "column 'job': the cell is missing; allowed: 'clerk', 'cook', 'smith'",
    "missing beside a filled one": "column 'job': the cell is missing; allowed: 'clerk', 'cook', "
    "'smith'",
    "unknown category": "column 'job': 'pilot' is not a category; allowed: 'clerk', 'cook', 'smith'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pipeline with an imputer for two of its columns, as an ONNX file, and its tables."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    train = pd.DataFrame(
        {
            "age": rng.integers(20, 60, 300).astype(float),
            "income": rng.integers(10, 90, 300).astype(float),
            "debt": rng.random(300).round(3),
            "job": rng.choice(["clerk", "cook", "smith"], 300),
        }
    )
    y = np.where(train.income / 60 - train.debt + rng.normal(0, 0.1, 300) > 0.3, "yes", "no")
    train.loc[::17, "age"] = np.nan
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    steps = make_column_transformer(
        (numbers, ["age", "income"]), ("passthrough", ["debt"]), (OneHotEncoder(), ["job"])
    )
    pipe = make_pipeline(steps, MLPClassifier((6,), max_iter=300, random_state=0)).fit(train, y)
    kinds = [(c, FloatTensorType([None, 1])) for c in ("age", "income", "debt")]
    graph = convert_sklearn(pipe, "m", [*kinds, ("job", StringTensorType([None, 1]))])
    (folder / "m.onnx").write_bytes(graph.SerializeToString())
    pp.Schema(
        [
            pp.Continuous("age"),
            pp.Continuous("income"),
            pp.Continuous("debt", 0, 1),
            pp.Categorical("job", ["clerk", "cook", "smith"]),
        ]
    ).write(folder / "schema.yaml")
    train.to_csv(folder / "train.csv", index=False)
    train.to_parquet(folder / "train.parquet", index=False)
    return folder


def in_python(folder, people):
    schema = pp.Schema.read(folder / "schema.yaml")
    explainer = pp.Proplace(folder / "m.onnx", 0.002, k=5, schema=schema)
    return explainer.fit(pd.read_csv(folder / "train.csv")).explain(people, "yes").to_frame()


def on_the_command_line(folder, tmp_path, write):
    write(tmp_path)
    (people,) = tmp_path.iterdir()
    train = folder / f"train{'.parquet' if people.suffix == '.parquet' else '.csv'}"
    done = run(
        *(
            "explain",
            "--model",
            folder / "m.onnx",
            "--train",
            train,
            "--delta",
            0.002,
            "explainer.k:",
            5,
        ),
        *("--schema", folder / "schema.yaml", "--input", people, "--out", tmp_path / "out"),
        *("--target", "yes", "batch.format:", "csv"),
    )
    assert done.returncode == 0, done.stderr
    return pd.read_csv(tmp_path / "out" / "results.csv")


NULLABLE = {"age": "Int64", "income": "Float64", "debt": "Float64", "job": "string"}
TABLES = {
    "pandas": lambda frame: frame,
    "objects": lambda frame: frame.astype(object).where(frame.notna(), None),
    "nullable": lambda frame: frame.astype(NULLABLE),
    "arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "categorical": lambda frame: frame.astype({"job": "category"}),
    "polars": polars.from_pandas,
    "dictionaries": lambda frame: (
        frame.astype(object).where(frame.notna(), None).to_dict("records")
    ),
}
FILES = {
    "csv": lambda folder: PEOPLE.to_csv(folder / "p.csv", index=False),
    "csv.gz": lambda folder: (folder / "p.csv.gz").write_bytes(
        gzip.compress(PEOPLE.to_csv(index=False, na_rep="NA").encode())
    ),
    "parquet": lambda folder: PEOPLE.to_parquet(folder / "p.parquet", index=False),
    "nullable parquet": lambda folder: PEOPLE.astype(NULLABLE).to_parquet(
        folder / "p.parquet", index=False
    ),
}


@pytest.fixture(scope="module")
def expected(folder):
    found = in_python(folder, PEOPLE)
    named = dict(zip(ROWS, found.itertuples(), strict=True))
    for name, row in named.items():
        if name in EXPECTED:
            assert (row.status, row.reason) == ("bad_input", EXPECTED[name])
        else:
            assert row.status == "optimal", (name, row.reason)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_every_table_in_python(folder, expected, name):
    found = in_python(folder, TABLES[name](PEOPLE))
    assert found["status"].tolist() == expected["status"].tolist()
    assert found["reason"].tolist() == expected["reason"].tolist()
    np.testing.assert_array_equal(found["distance"], expected["distance"])


@pytest.mark.parametrize("name", FILES)
def test_every_file_on_command_line(folder, expected, tmp_path, name):
    found = on_the_command_line(folder, tmp_path, FILES[name])
    assert found["status"].tolist() == expected["status"].tolist()
    assert found["reason"].fillna("").tolist() == expected["reason"].tolist()
    np.testing.assert_allclose(found["distance"], expected["distance"], rtol=1e-12)


def test_filled_cell_is_value_of_imputer(folder):
    schema = pp.Schema.read(folder / "schema.yaml")
    explainer = pp.Proplace(folder / "m.onnx", 0.002, k=5, schema=schema)
    explainer.fit(pd.read_csv(folder / "train.csv"))
    median = float(pd.read_csv(folder / "train.csv")["age"].median())
    missing, said = explainer.explain([BASE | {"age": None}, BASE | {"age": median}], "yes")
    np.testing.assert_array_equal(missing.encoded_counterfactual, said.encoded_counterfactual)
    assert missing.original["age"] == median


@pytest.mark.parametrize("name", ["pandas", "nullable", "categorical", "arrow"])
def test_training_tables_of_every_kind(folder, expected, name):
    train = TABLES[name](pd.read_csv(folder / "train.csv"))
    schema = pp.Schema.read(folder / "schema.yaml")
    explainer = pp.Proplace(folder / "m.onnx", 0.002, k=5, schema=schema).fit(train)
    found = explainer.explain(PEOPLE, "yes").to_frame()
    np.testing.assert_array_equal(found["distance"], expected["distance"])


def test_labels_of_table_with_several_levels(folder):
    people = PEOPLE.set_index(
        pd.MultiIndex.from_product([["north", "south"], range(5)], names=["branch", "number"])
    )
    for table in (people, people[:1]):
        result = in_python(folder, table)
        assert result.index.names == ["branch", "number"]
        pd.testing.assert_index_equal(result.index, table.index)
    schema = pp.Schema.read(folder / "schema.yaml")
    method = Rnce(folder / "m.onnx", 0.002, schema=schema).fit(pd.read_csv(folder / "train.csv"))
    result = method.explain(people, "yes")
    pd.testing.assert_index_equal(result.to_frame().index, people.index)
    pd.testing.assert_index_equal(result[3:6].to_frame().index, people.index[3:6])
    assert result[0].index == ("north", 0)


def test_reasons_and_sentences_name_class(folder, tmp_path):
    schema = pp.Schema.read(folder / "schema.yaml")
    explainer = pp.Proplace(folder / "m.onnx", 0.002, k=5, schema=schema)
    explainer.fit(pd.read_csv(folder / "train.csv"))
    rich = BASE | {"income": 85.0, "debt": 0.1}
    answer, already = explainer.explain([BASE, rich], "yes")
    assert str(answer.describe()).startswith("The outcome would have been yes with income of ")
    assert (answer.target, answer.label) == (1, "yes")
    assert already.reason.startswith("the current model already gives class 'yes'")
    assert str(already.describe()).startswith("The outcome would be yes without any change")
    words = str(answer.describe(pp.Wording("the loan", {"yes": "approved"})))
    assert words.startswith("The loan would have been approved with ")
    none = pp.Proplace(folder / "m.onnx", 0.5, k=5, schema=schema)
    (e,) = none.fit(pd.read_csv(folder / "train.csv")).explain([BASE], "yes")
    assert "training rows is robust for class 'yes'" in e.reason
    common = ("--model", folder / "m.onnx", "--delta", 0.002, "--target", "yes")
    done = run("certify", *common, "--input", folder / "train.csv")
    assert "rows get class 'yes' from every network" in done.stdout
    person = [f"{name}={value}" for name, value in BASE.items()]
    done = run("explain", *common, "--train", folder / "train.csv", "explainer.k:", 5, *person)
    assert "every model within delta reaches class 'yes'" in " ".join(done.stdout.split())
