"""`tables.predictions`: a column with the classes of the current model confirms or contradicts the file.

scikit-learn itself predicts the classes in the tables.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import proplace as pp
from commands import good, named, run
from proplace.core.errors import ModelMismatchError, TableError
from support.errors import failed

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
NUMBERS = ["age", "income", "debt"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Networks with and without their scalers, and a table with predictions."""
    skl2onnx = pytest.importorskip("skl2onnx")
    folder = tmp_path_factory.mktemp("comparison")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.uniform(20, 70, 300),
            "income": rng.uniform(0, 9000, 300),
            "debt": rng.uniform(0, 500, 300),
        }
    ).round(3)
    score = table.income / 9000 - table.debt / 500 + table.age / 100
    y = (score + rng.normal(0, 0.1, 300) > 0.4).astype(int)
    X = table.to_numpy()
    for name, scaler in (("standard", StandardScaler()), ("minmax", MinMaxScaler())):
        pipe = make_pipeline(scaler, MLPClassifier((6,), max_iter=300, random_state=0)).fit(X, y)
        onnx = skl2onnx.to_onnx(pipe, X[:1].astype(np.float32))
        (folder / f"{name}.onnx").write_bytes(onnx.SerializeToString())
        pp.Model.of(pipe[-1]).network.save(folder / f"{name}.npz")
        scaled = pd.DataFrame(pipe[0].transform(X), columns=NUMBERS)
        table[f"said_{name}"] = pipe.predict(X)
        scaled.assign(said=pipe.predict(X)).to_csv(folder / f"{name}.csv", index=False)
    table.assign(word=np.where(y, "yes", "no")).to_csv(folder / "train.csv", index=False)
    ranges = {name: (table[name].min(), table[name].max()) for name in NUMBERS}
    for scaling in ("minmax", "none"):
        features = [pp.Continuous(n, *ends, scaling=scaling) for n, ends in ranges.items()]
        pp.Schema(features).write(folder / f"{scaling}.yaml")
    pp.Schema([pp.Continuous(n, *ends) for n, ends in ranges.items()]).write(folder / "open.yaml")
    return folder


OTHERS = ("said_standard", "said_minmax", "word")


def words(folder, command, model, schema, *options):
    """A command on the training table, where columns that are not named in options are dropped."""
    more = () if command == "certify" else ("age=30", "income=1000", "debt=400")
    given = named(
        command,
        model=folder / model,
        schema=None if schema is None else folder / schema,
        delta=0.005,
        drop=[name for name in OTHERS if name not in options],
        **{"input" if command == "certify" else "train": folder / "train.csv"},
    )
    return (command, *given, *options, *more)


@pytest.mark.parametrize("command", ["explain", "certify"])
@pytest.mark.parametrize(
    ("model", "schema", "said"),
    [
        ("standard.npz", "minmax.yaml", "said_standard"),
        ("standard.npz", None, "said_standard"),
        ("minmax.npz", "none.yaml", "said_minmax"),
    ],
)
def test_other_predictions_are_rejected(folder, command, model, schema, said):
    done = run(*words(folder, command, model, schema, "tables.predictions:", said))
    failed(done, ModelMismatchError, name=said)
    table = pd.read_csv(folder / "train.csv")
    assert done.error.value == table[said][done.error.row]


@pytest.mark.parametrize("command", ["explain", "certify"])
@pytest.mark.parametrize(
    ("model", "schema", "said"),
    [
        ("standard.onnx", None, "said_standard"),
        ("minmax.onnx", "open.yaml", "said_minmax"),
        ("minmax.npz", "minmax.yaml", "said_minmax"),
    ],
)
def test_same_predictions_are_confirmed(folder, command, model, schema, said):
    facts = good(*words(folder, command, model, schema, "tables.predictions:", said, "--json")).json
    facts = facts if command == "certify" else facts[0]
    assert facts["predictions"] == {"column": said, "rows": 300, "agree": 300}


def test_one_other_prediction_among_all_is_found(folder, tmp_path):
    table = pd.read_csv(folder / "train.csv")
    model = pp.Model.of(folder / "minmax.onnx").with_column_names(NUMBERS)
    row = int(np.argmax(np.abs(model.network.logits(model.encode(table))[:, 0])))
    table.loc[row, "said_minmax"] = 1 - table.loc[row, "said_minmax"]
    table.to_csv(tmp_path / "train.csv", index=False)
    given = words(folder, "certify", "minmax.onnx", None, "tables.predictions:", "said_minmax")
    given = [tmp_path / "train.csv" if word == folder / "train.csv" else word for word in given]
    failed(run(*given), ModelMismatchError, name="said_minmax", row=row)


def test_rows_on_boundary_and_missing_cells_are_no_difference(tmp_path):
    """The margin of the first row is 0: float32, in which it was predicted, may give either class."""
    pp.Network([([[1.0]], [-0.5])], precision="float32").save(tmp_path / "m.npz")
    given = ("certify", "--model", tmp_path / "m.npz", "--input", tmp_path / "t.csv", "--json")
    given = (*given, "--delta", 0.001, "tables.predictions:", "said")
    for cells, agree in (("0.5,0\n0.9,1\n0.1,", 1), ("0.5,1\n0.9,1\n0.1,0", 3)):
        (tmp_path / "t.csv").write_text(f"a,said\n{cells}\n")
        assert good(*given).json["predictions"]["agree"] == agree
    for cells, error, value, row in (
        ("0.5,0\n0.9,0", ModelMismatchError, 0, 1),
        ("0.5,\n0.9,", TableError, None, None),
    ):
        (tmp_path / "t.csv").write_text(f"a,said\n{cells}\n")
        failed(run(*given), error, name="said", value=value, row=row)


@pytest.mark.parametrize(
    ("column", "value", "row"), [("wird", None, None), ("income", None, None), ("word", "yes", 0)]
)
def test_columns_that_hold_no_classes(folder, column, value, row):
    done = run(
        *words(folder, "certify", "minmax.npz", "minmax.yaml", "tables.predictions:", column)
    )
    failed(done, TableError, name=column, value=value, row=row)
