"""A copy of the checker's one file is enough, without the package and without site-packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import proplace as pp
from certification.problems import called
from oracles import accepted_rows, random_box
from proplace.certification import FixedPredictionSearch, Space, certify, checker
from support.problems import raised

pytestmark = pytest.mark.source

NET, ROWS = accepted_rows(5, (3, 4, 4, 1), 30)
OTHER = pp.Network([(np.eye(3), None), (np.ones((1, 3)), [0.5])])
X = ROWS[:1]
NET = raised(NET, 1, 50.0)


def made(net, shifts, **asked):
    return certify(net, X, shifts, margin=0.0, certificates=True, **asked).certificates[0]


def of_rows(_):
    wrong = [
        (["proof.json", "other.npz"], "names another network"),
        (["proof.json", "net.npz", "--target", "0"], "class 0 is required"),
        (["proof.json", "net.npz", "--delta", "0.06"], "delta 0.06 is required"),
    ]
    return made(NET, 0.05), ["net.npz"], "robust: every network within delta", wrong


def of_broken_rows(_):
    broken = certify(NET, X, 0.05, margin=100.0, certificates=True).certificates[0]
    wrong = [(["proof.json", "net.npz", "--target", "1"], "another verdict than the required one")]
    return broken, ["net.npz"], "not robust: a network within delta", wrong


def of_scaled_inputs(folder):
    layers = [(layer.W, layer.b if i else None) for i, layer in enumerate(NET.layers)]
    net = pp.Network(layers, scale=[2.0, 1.0, 0.5], shift=[0.1, 0.0, -0.1])
    net.save(folder / "scaled.npz")
    wrong = [(["proof.json", "net.npz"], "names another network")]
    return made(net, 0.05), ["scaled.npz"], "robust: every network within delta", wrong


def of_shifts(folder):
    box = random_box(np.random.default_rng(17), NET)
    box.save(folder / "box.npz")
    box.scaled(1.5).save(folder / "wide.npz")
    given = ["proof.json", "net.npz", "--shifts"]
    wrong = [
        (given[:2], "its file is needed"),
        ([*given, "wide.npz"], "another shift set"),
        ([*given, "box.npz", "--shifts", "wide.npz"], "no certificate is about"),
        ([*given, "net.npz"], "the shifts file holds no layer"),
        (["proof.json", "box.npz", "--shifts", "box.npz"], "the network file holds no layer"),
    ]
    said = f"robust: every network of the shift set {box.digest}"
    return made(NET, box), ["net.npz", "--shifts", "box.npz"], said, wrong


def of_input_boxes(_):
    def words(name, reach):
        return f"--{name}={','.join(map(str, (X[0] + reach).tolist()))}"

    proof = made(NET, 0.05, box=(X - 0.25, X + 0.25))
    given = ["proof.json", "net.npz"]
    wrong = [
        ([*given, words("low", -0.3)], "an input box"),
        ([*given, words("high", 0.3)], "an input box"),
        ([*given, "--low=0.75"], "an input box"),
        ([*given, "--high=nan,0,0"], "an input box"),
    ]
    said = "robust: every network within delta"
    return proof, ["net.npz", words("low", -0.25), words("high", 0.25)], said, wrong


def of_bundles(folder):
    box = random_box(np.random.default_rng(9), OTHER)
    box.save(folder / "box.npz")
    NET.with_layers([(layer.W * 2, layer.b) for layer in NET.layers]).save(folder / "extra.npz")
    both = ["net.npz", "other.npz", "--shifts", "box.npz"]
    wrong = [
        (["proof.json", "net.npz", "--shifts", "box.npz"], "another network"),
        (["proof.json", "net.npz", "other.npz"], "its file is needed"),
        (["proof.json", *both, "--target", "0"], "class 0 is required"),
        (["proof.json", *both, "--delta", "0.06"], "delta 0.06 is required"),
        (["proof.json", "extra.npz", *both], "no certificate is about the network or box"),
    ]
    return (
        pp.certification.CertificateBundle.of([made(NET, 0.05), made(OTHER, box)]),
        both,
        "network ",
        wrong,
    )


def of_fixed_predictions(folder):
    net = pp.Network([([[0.0, 0.0, 0.0]], [1.0])])
    net.save(folder / "always.npz")
    refusal = FixedPredictionSearch(net, pp.Shifts.of(net, 0.01), 0)
    proof = refusal.certificate(refusal.prove([Space.of(np.zeros(3), np.ones(3))]))
    wrong = [(["proof.json", "always.npz", "--target", "0"], "another verdict")]
    return proof, ["always.npz"], "fixed: no network", wrong


@pytest.mark.parametrize(
    "case",
    [
        of_rows,
        of_broken_rows,
        of_scaled_inputs,
        of_shifts,
        of_input_boxes,
        of_bundles,
        of_fixed_predictions,
    ],
)
def test_checker_runs_alone(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    NET.save("net.npz")
    OTHER.save("other.npz")
    certificate, given, said, wrong = case(tmp_path)
    certificate.save("proof.json")
    Path("alone.py").write_text(Path(checker.__file__).read_text())
    words = [sys.executable, "-S", "-I", "alone.py", "proof.json", *given]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"accepted: {said}")
    assert called("proof.json", *given).stdout == done.stdout
    for less, reason in wrong:
        done = called(*less)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("rejected: ")
        assert reason in done.stdout
    done = called("proof.json", "none.npz")
    assert done.returncode == 2
    assert "No such file" in done.stderr
