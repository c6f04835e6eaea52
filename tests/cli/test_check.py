"""`proplace check` as a user types it."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

import proplace as pp
from commands import run
from oracles import accepted_rows
from proplace.certification import digest
from proplace.core.errors import CertificateError, ModelFileError, NetworkError
from support.errors import failed, raises
from support.problems import raised


@pytest.fixture
def folder(tmp_path):
    net, X = accepted_rows(5, (4, 6, 6, 1), 20)
    net.save(tmp_path / "net.npz")
    (tmp_path / "proofs").mkdir()
    for i, certificate in enumerate(pp.certify(net, X, 0.03, certificates=True).certificates):
        certificate.save(tmp_path / "proofs" / f"{i}.json")
    return tmp_path


def check(folder, proof, *words):
    """Return the exit status and the line of each certificate."""
    done = run("check", proof, "--model", folder / "net.npz", *words, "--json")
    assert done.json["accepted"] == (done.returncode == 0)
    return done.returncode, done.json["certificates"]


def test_check_of_folder_lists_problems(folder):
    status, entries = check(folder, folder / "proofs")
    assert status == 0
    assert len(entries) == len(list((folder / "proofs").iterdir()))
    bad = folder / "proofs" / "0.json"
    facts = json.loads(bad.read_text())
    bad.write_text(json.dumps({**facts, "margin": facts["margin"] + 1e6, "verdict": "robust"}))
    status, entries = check(folder, folder / "proofs")
    assert status == 1
    assert [entry["file"] for entry in entries if not entry["accepted"]] == [str(bad)]
    shown = run("check", folder / "proofs", "--model", folder / "net.npz").stdout.splitlines()
    assert [line for line in shown if "rejected" in line] == [shown[0]]
    assert shown[0].startswith(str(bad))


def test_proved_statement_is_printed(folder):
    """A certificate of delta 0, or of the other class, does not look like one that promises much."""
    net = pp.Network.load(folder / "net.npz")
    x = json.loads((folder / "proofs" / "0.json").read_text())["input"]
    target = 1 - int(net.predict(x)[0])
    cases = {"zero": (0.0, 1 - target, 0.0), "other": (0.03, target, 0.25)}
    for name, (delta, wanted, margin) in cases.items():
        net = net if name == "zero" else raised(net, target, 50.0)
        net.save(folder / "net.npz")
        report = pp.certify(net, x, delta, wanted, margin=margin, certificates=True)
        assert report.robust[0]
        proof = folder / f"{name}.json"
        report.certificates[0].save(proof)
        shown = run("check", proof, "--model", folder / "net.npz").stdout
        for part in (f"delta {delta!r}", f"class {wanted}", repr(margin), ", ".join(map(repr, x))):
            assert part in shown
        status, (entry,) = check(folder, proof)
        assert status == 0
        assert entry["proved"] == {
            "verdict": "robust",
            "target": wanted,
            "delta": [[delta, delta]] * 3,
            "input": x,
            "margin": margin,
            "shifts": None,
            "inside": True,
            "network": digest(net),
            "low": None,
            "high": None,
            "spaces": None,
        }


def test_certificates_that_prove_less_than_demanded_are_rejected(folder):
    """Each demand on its own, with a true certificate."""
    net = pp.Network.load(folder / "net.npz")
    x = json.loads((folder / "proofs" / "0.json").read_text())["input"]
    net = raised(net, 1, 5.0)
    net.save(folder / "net.npz")
    least = float(pp.certify(net, x, 0.03, exact_margin=True).lower[0]) - 0.5
    report = pp.certify(net, x, 0.03, margin=least, certificates=True)
    path = folder / "proof.json"
    report.certificates[0].save(path)
    assert check(folder, path, "--target", "1", "--delta", "0.03")[0] == 0
    for words in (["--target", "0"], ["--delta", "0.031"]):
        status, (entry,) = check(folder, path, *words)
        assert (status, entry["accepted"]) == (1, False), words
        assert words[1] in entry["reason"]
    broken = pp.certify(net, x, 0.03, margin=least + 100.0, certificates=True).certificates[0]
    broken.save(path)
    assert check(folder, path)[0] == 0
    assert check(folder, path, "--target", "1")[0] == 1


@pytest.mark.parametrize(
    "odd",
    [
        np.array([[1.0 + 2.0j, 1.0, 1.0, 1.0]]),
        np.array([["1", "1", "1", "1"]]),
        np.array([[2**53 + 1, 1, 1, 1]]),
        np.array([[1.0, 1.0, 1.0, 1.0]], dtype=object),
    ],
    ids=["complex", "text", "integers", "objects"],
)
def test_network_of_other_numbers_is_refused(folder, odd):
    """Not one bit of what is checked is lost on the way in."""
    arrays = {"W0": odd, "b0": np.zeros(1)}
    np.savez(folder / "odd.npz", format=np.array("proplace-network-1"), **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run("check", folder / "proofs" / "0.json", "--model", folder / "odd.npz")
    failed(done, ModelFileError)
    with raises(NetworkError):
        pp.Network([(odd, None)])


def test_another_model_and_missing_files(folder):
    other = pp.Network([(np.ones((1, 4)), [0.0])])
    other.save(folder / "other.npz")
    proof = folder / "proofs" / "0.json"
    done = run("check", proof, "--model", folder / "other.npz", "--json")
    assert (done.returncode, done.json["accepted"]) == (1, False)
    missing, empty = folder / "none.json", folder / "empty"
    empty.mkdir()
    for bad in (missing, empty):  # and nothing is printed about a file that is not there
        done = run("check", bad, proof, "--model", folder / "net.npz")
        failed(done, CertificateError, name=bad.name)


def test_names_write_no_lines_of_their_own(folder):
    good = folder / "proofs" / "0.json"
    facts = json.loads(good.read_text())
    forged = "x\r\nproof.json: accepted: robust"
    good.write_text(json.dumps({**facts, forged: 1, "\ud800": 1}))
    (folder / "proofs" / f"{forged}.json").write_text("{}")
    done = run("check", folder / "proofs", "--model", folder / "net.npz")
    assert (done.returncode, done.error) == (1, None)
    assert len(done.stdout.splitlines()) == len(list((folder / "proofs").iterdir()))
