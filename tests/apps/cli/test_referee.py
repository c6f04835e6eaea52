"""`--label` and `--predictions`: wrong readings of a model are found, right ones confirmed.

The referee of these tests is scikit-learn itself: its predictions stand in the tables.
"""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import proplace as pp
from commands import run_quickly as run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
NUMBERS = ["age", "income", "debt"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Networks with and without their scalers, and a table with labels and predictions."""
    skl2onnx = pytest.importorskip("skl2onnx")
    folder = tmp_path_factory.mktemp("referee")
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
        pp.Network.from_sklearn(pipe[-1]).save(folder / f"{name}.npz")
        scaled = pd.DataFrame(pipe[0].transform(X), columns=NUMBERS)
        table[f"said_{name}"] = pipe.predict(X)
        scaled.assign(said=pipe.predict(X)).to_csv(folder / f"{name}.csv", index=False)
    table.assign(approved=y, word=np.where(y, "yes", "no")).to_csv(
        folder / "train.csv", index=False
    )
    ranges = {name: (table[name].min(), table[name].max()) for name in NUMBERS}
    for scaling in ("minmax", "none"):
        features = [pp.Continuous(n, *ends, scaling=scaling) for n, ends in ranges.items()]
        pp.Schema(features).write(folder / f"{scaling}.yaml")
    pp.Schema([pp.Continuous(n, *ends) for n, ends in ranges.items()]).write(folder / "open.yaml")
    return folder


OTHERS = ("said_standard", "said_minmax", "approved", "word")


def words(folder, command, model, schema, *options):
    """A command on the training table, where columns that are not named in options are dropped."""
    drop = [w for name in OTHERS if name not in options for w in ("--drop", name)]
    train = ("--input" if command == "certify" else "--train", folder / "train.csv")
    more = () if command == "certify" else ("age=30", "income=1000", "debt=400")
    given = () if schema is None else ("--schema", folder / schema)
    start = (command, "--model", folder / model, *train, "--delta", 0.005)
    return (*start, *given, *options, *drop, *more)


@pytest.mark.parametrize("command", ["explain", "certify"])
@pytest.mark.parametrize(
    ("model", "schema", "said", "fits"),
    [
        ("standard.npz", "minmax.yaml", "said_standard", "scaling: [mean, standard deviation]"),
        ("standard.npz", "none.yaml", "said_standard", "scaling: [mean, standard deviation]"),
        ("standard.npz", None, "said_standard", "scaling: [mean, standard deviation]"),
        ("minmax.npz", "none.yaml", "said_minmax", "scaling: minmax"),
    ],
)
def test_a_wrong_reading_is_refused(folder, command, model, schema, said, fits):
    done = run(*words(folder, command, model, schema, "--predictions", said))
    assert done.returncode == 1
    table = pd.read_csv(folder / "train.csv")
    row = int(done.stderr.split("row ")[1].split(",")[0])
    assert (
        f"column {said!r}: the model in use said {table[said][row]}, what was read" in done.stderr
    )
    assert "of 300 rows" in done.stderr
    assert f"Write {fits}" in done.stderr
    assert "100%" in done.stderr  # of the reading that is right
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("model", "schema", "said"),
    [
        ("standard.onnx", None, "said_standard"),
        ("standard.onnx", "open.yaml", "said_standard"),
        ("minmax.onnx", "open.yaml", "said_minmax"),
        ("minmax.npz", "minmax.yaml", "said_minmax"),
        ("minmax.npz", "open.yaml", "said_minmax"),
    ],
)
def test_a_right_reading_is_confirmed(folder, model, schema, said):
    done = run(*words(folder, "certify", model, schema, "--predictions", said, "--json"))
    assert done.returncode == 0, done.stderr
    assert "agree in 300 of 300 rows (100%)" in done.stderr
    facts = json.loads(done.stdout)["predictions"]
    assert (facts["column"], facts["rows"], facts["agree"]) == (said, 300, 300)
    assert max(facts["alternatives"].values()) < 280


def test_a_table_that_is_scaled_already_is_told_from_one_in_original_units(folder):
    done = run(
        *("certify", "--model", folder / "standard.onnx", "--input", folder / "standard.csv"),
        *("--delta", 0.005, "--predictions", "said"),
    )
    assert done.returncode == 1
    assert "The table seems to hold scaled numbers" in done.stderr
    done = run(
        *("certify", "--model", folder / "standard.npz", "--input", folder / "standard.csv"),
        *("--delta", 0.005, "--predictions", "said"),
    )
    assert done.returncode == 0, done.stderr


def test_one_other_prediction_among_all_is_found(folder, tmp_path):
    table = pd.read_csv(folder / "train.csv")
    model = pp.Model.of(folder / "minmax.onnx").renamed(NUMBERS)
    row = int(np.argmax(np.abs(model.network.logits(model.encode(table))[:, 0])))
    table.loc[row, "said_minmax"] = 1 - table.loc[row, "said_minmax"]
    table.to_csv(tmp_path / "train.csv", index=False)
    given = words(folder, "certify", "minmax.onnx", None, "--predictions", "said_minmax")
    given = [tmp_path / "train.csv" if word == folder / "train.csv" else word for word in given]
    done = run(*given)
    assert done.returncode == 1
    assert f"row {row}, column 'said_minmax'" in done.stderr
    assert "1 rows differ clearly" in done.stderr
    assert "No usual scaling of the numbers fits better" in done.stderr


@pytest.mark.parametrize("option", [("--label", "approved"), ("--predictions", "said_standard")])
def test_the_command_that_is_proposed_works(folder, tmp_path, monkeypatch, option):
    """With MODEL in its place, it drafts the schema that makes model and column agree."""
    monkeypatch.chdir(tmp_path)
    words_ = words(folder, "certify", "standard.npz", "minmax.yaml", *option)
    done = run(*words_)
    found = re.search(r"or let proplace (schema .* --out schema.yaml) write one", done.stderr)
    drafted = run(*shlex.split(found[1].replace("MODEL", str(folder / "standard.npz"))))
    assert drafted.returncode == 0, drafted.stderr
    again = ["schema.yaml" if word == folder / "minmax.yaml" else word for word in words_]
    done = run(*again)
    assert done.returncode == 0, done.stderr
    assert "another reading" not in done.stderr


def test_labels_are_spoken_of_and_never_refused(folder):
    table = pd.read_csv(folder / "train.csv")
    right = int((table.said_standard == table.approved).sum())
    done = run(*words(folder, "explain", "standard.onnx", None, "--label", "approved", "--json"))
    assert done.returncode == 0, done.stderr
    assert f"note: model and column 'approved' agree in {right} of 300 rows" in done.stderr
    assert "warning" not in done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["label"]["agree"] == right
    assert answer["label"]["most_frequent"] == table.approved.value_counts().max()


def test_a_wrong_reading_is_warned_of_by_labels(folder):
    done = run(*words(folder, "explain", "standard.npz", "minmax.yaml", "--label", "approved"))
    assert done.returncode == 0
    assert "warning: another reading agrees clearly better with 'approved'" in done.stderr
    assert "Write scaling: [mean, standard deviation]" in done.stderr


def test_a_model_that_is_no_better_than_the_most_frequent_label(folder, tmp_path):
    net = pp.Network([(np.zeros((1, 3)), np.zeros(1))])  # always 1
    net.save(tmp_path / "always.npz")
    given = words(folder, "certify", tmp_path / "always.npz", "minmax.yaml", "--label", "approved")
    done = run(*given)
    assert done.returncode == 0, done.stderr
    assert "warning" in done.stderr
    assert "no better than the most frequent class alone" in done.stderr


@pytest.mark.parametrize(
    ("option", "column", "message"),
    [
        ("--label", "aproved", "there is no column 'aproved' (did you mean 'approved'?)"),
        ("--predictions", "income", "'income' is a feature of the model"),
        ("--label", "word", "row 0, column 'word': "),
        ("--predictions", "word", "is no class of the model; its classes are 0, 1"),
    ],
)
def test_columns_that_hold_no_classes(folder, option, column, message):
    done = run(*words(folder, "certify", "minmax.npz", "minmax.yaml", option, column))
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize("option", [("--label", "approved"), ("--predictions", "said_standard")])
def test_schema_infers_the_scaling_that_a_column_speaks_for(folder, tmp_path, option):
    drop = [w for name in OTHERS if name not in option for w in ("--drop", name)]
    start = ("schema", folder / "train.csv", "--model", folder / "standard.npz")
    done = run(*start, *option, *drop, "--out", tmp_path / "s.yaml")
    assert done.returncode == 0, done.stderr
    assert "speaks for numbers scaled by mean and standard deviation" in done.stderr
    table = pd.read_csv(folder / "train.csv")
    model = pp.Model.of(folder / "standard.npz").with_schema(pp.Schema.read(tmp_path / "s.yaml"))
    assert (model.predict(table) == table.said_standard).all()


def test_schema_without_a_model_compares_nothing(folder):
    done = run("schema", folder / "train.csv", "--label", "approved")
    assert done.returncode == 1
    assert "need --model FILE" in done.stderr
