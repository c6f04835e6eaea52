"""The experiment on a table and a model of the user."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import proplace as pp
from experiment.toy import toy
from proplace.cli import app
from proplace.core.errors import InputError, NetworkError, OptionError
from proplace.experiment import own as module
from proplace.experiment.own import Own
from proplace.experiment.protocol import problem
from proplace.experiment.settings import Counts, Settings, Task
from proplace.experiment.training import train
from support.errors import raises

SMALL = Counts(2, 2, 1, 1, 1, calibration=4, history=14, people=6)


@pytest.fixture(autouse=True)
def fewer_networks(monkeypatch):
    monkeypatch.setattr(module, "Settings", lambda *given: Settings(*given, counts=SMALL))
    monkeypatch.setattr(module, "_EPOCHS", 20)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table in units of its own, and a network that scales it."""
    folder = tmp_path_factory.mktemp("own")
    data = toy()
    rows = data.frame.assign(job=(data.frame["job"] == "yes").astype(float))
    low, high = rows.min().to_numpy(), rows.max().to_numpy()
    X = (rows.to_numpy() - low) / (high - low)
    (plain,) = train(X, data.y, [data.first.train], widths=(6, 6), epochs=25, seeds=[3])
    layers = [(n.W, n.bias) for n in plain.layers]
    net = pp.Network(layers, scale=1.0 / (high - low), shift=-low / (high - low))
    net.save(folder / "model.npz")
    rows.assign(approved=data.y).to_csv(folder / "mine.csv", index=False)
    return folder, net, rows.to_numpy(), data.y


@pytest.mark.slow
def test_table_of_own_data_is_computed(files, tmp_path):
    folder, *_ = files
    words = ["--table", folder / "mine.csv", "--model", folder / "model.npz", "--label", "approved"]
    methods = ["--method", "PROPLACE", "--method", "RNCE"]
    arguments = [str(word) for word in ("experiment", *words, *methods, "--out", tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    table = pd.read_csv(tmp_path / "results.csv")
    assert table["data"].tolist() == ["mine", "mine"]
    assert (table[["found", "vdelta"]] == 1.0).all(axis=None)
    assert table["l1"][0] <= table["l1"][1]
    assert "mine, networks 6x6: delta " in done.output


def test_retrained_networks_keep_architecture_and_scaling(files, tmp_path):
    folder, net, X, y = files
    own = Own(folder / "mine.csv", folder / "model.npz", "approved", delta=0.02)
    task = Task(own.name, 0, own=own)
    made = problem(task, tmp_path)
    assert made.delta == 0.02
    rows = own.data.X
    assert (rows.min(), rows.max()) == pytest.approx((0.0, 1.0))
    np.testing.assert_array_equal(made.net.predict(rows), net.predict(X))
    nets = [each for group in made.nets.retrained.values() for each in group]
    assert {each.widths for each in nets} == {(6, 6)}
    assert min((each.predict(rows) == y).mean() for each in nets) > 0.8
    assert (made.net.predict(made.X) == 0).all()
    again = problem(task, tmp_path)
    assert again.nets.retrained == made.nets.retrained


def test_wrong_files_are_rejected_with_next_step(files, tmp_path):
    folder, *_ = files
    own = Own(folder / "mine.csv", folder / "model.npz", "label")
    with raises(InputError, match="--label", name="--label"):
        _ = own.data
    words = ["experiment", "--table", str(folder / "mine.csv")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, OptionError) or "--model" in done.output
    two = pp.Network([(np.ones((2, 4)), None)])
    two.save(tmp_path / "two.npz")
    with raises(NetworkError, match="experiment.metrics.evaluate"):
        _ = Own(folder / "mine.csv", tmp_path / "two.npz", "approved").data
    table = pd.read_csv(folder / "mine.csv")
    table.assign(approved="maybe").to_csv(tmp_path / "words.csv", index=False)
    with raises(InputError, match="Use the labels of the model"):
        _ = Own(tmp_path / "words.csv", folder / "model.npz", "approved").data


@pytest.mark.slow
def test_fixed_matrix_before_layers_is_kept(files, tmp_path):
    folder, net, X, _ = files
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    first, *rest = [(n.W, n.bias) for n in net.layers]
    turned = pp.Network(
        [(first[0] @ turn.T, first[1]), *rest], scale=net.scale, shift=net.shift, matrix=turn
    )
    turned.save(tmp_path / "turned.npz")
    own = Own(folder / "mine.csv", tmp_path / "turned.npz", "approved", delta=0.02)
    made = problem(Task(own.name, 0, own=own), tmp_path)
    assert (made.net.predict(own.data.X) == net.predict(X)).mean() > 0.99
    nets = [made.net, *made.nets.calibration, *made.nets.history]
    assert len({each.input_transform.parts["matrix"].tobytes() for each in nets}) == 1
