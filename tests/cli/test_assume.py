"""`--assume relu-chain`: each command reads weights alone only where it is stated what they are."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import run_quickly

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    torch.save(module.state_dict(), folder / "m.pt")
    net = pp.Network.from_torch(module)
    net.save(folder / "m.npz")
    X = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame.to_csv(folder / "rows.csv", index=False)
    frame[net.predict(X) == 0].head(3).to_csv(folder / "people.csv", index=False)
    robust = int(np.argmax(pp.certify(net, X, 0.001).robust))
    proof = pp.certify(net, X[[robust]], 0.001, certificates=True).certificates[0]
    proof.save(folder / "proof.json")
    return folder


def commands(folder, out):
    rows, people = folder / "rows.csv", folder / "people.csv"
    return {
        "explain": ["--train", rows, "--input", people, "--delta", 0.001, "--out", out],
        "certify": ["--input", rows, "--delta", 0.001],
        "check": [folder / "proof.json"],
        "schema": [rows],
    }


@pytest.mark.parametrize("command", ["explain", "certify", "check", "schema"])
def test_weights_alone_need_the_statement(command, folder, tmp_path):
    words = [command, *commands(folder, tmp_path / "out")[command]]
    done = run_quickly(*words, "--model", folder / "m.pt")
    assert done.returncode == 1
    assert "weights alone do not say what lies between the layers" in done.stderr
    assert "--assume relu-chain" in done.stderr
    done = run_quickly(*words, "--model", folder / "m.pt", "--assume", "relu-chain")
    assert done.returncode == 0, done.stderr
    done = run_quickly(*words, "--model", folder / "m.npz", "--assume", "relu-chain")
    assert done.returncode == 1
    assert "m.npz says itself what lies between its layers" in done.stderr
    done = run_quickly(*words, "--model", folder / "m.pt", "--assume", "tanh-chain")
    assert done.returncode == 2


def test_the_answers_are_those_of_the_stated_network(folder):
    rows = pd.read_csv(folder / "rows.csv").to_numpy()
    expected = int(pp.certify(pp.Network.load(folder / "m.npz"), rows, 0.001).robust.sum())
    words = ["certify", "--model", folder / "m.pt", "--assume", "relu-chain", "--json"]
    done = run_quickly(*words, *commands(folder, None)["certify"])
    assert 0 < expected == json.loads(done.stdout)["robust"]


def test_nothing_can_be_stated_about_no_model(folder):
    done = run_quickly("schema", folder / "rows.csv", "--assume", "relu-chain")
    assert done.returncode == 1
    assert "--assume says something about a model; give it with --model FILE" in done.stderr
