"""`proplace check` as a user types it."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import proplace as pp
from oracles import accepted_rows
from proplace.apps.cli import app
from proplace.certification import digest
from proplace.core.errors import CertificateError, ModelFileError, NetworkError, OptionError

RUN = CliRunner()


@pytest.fixture
def folder(tmp_path):
    net, X = accepted_rows(5, (4, 6, 6, 1), 20)
    net.save(tmp_path / "net.npz")
    (tmp_path / "proofs").mkdir()
    for i, certificate in enumerate(pp.certify(net, X, 0.03, certificates=True).certificates):
        certificate.save(tmp_path / "proofs" / f"{i}.json")
    return tmp_path


def test_one_certificate(folder):
    proof, model = str(folder / "proofs" / "0.json"), str(folder / "net.npz")
    done = RUN.invoke(app, ["check", proof, "--model", model])
    assert done.exit_code == 0
    assert done.output.startswith(f"{proof}: accepted: ")


def test_a_folder_and_what_is_wrong_in_it(folder):
    command = ["check", str(folder / "proofs"), "--model", str(folder / "net.npz")]
    done = RUN.invoke(app, [*command, "--json"])
    assert done.exit_code == 0
    found = json.loads(done.output)
    assert found["accepted"]
    assert len(found["certificates"]) == len(list((folder / "proofs").iterdir()))
    bad = folder / "proofs" / "0.json"
    facts = json.loads(bad.read_text())
    bad.write_text(json.dumps({**facts, "margin": facts["margin"] + 1e6, "verdict": "robust"}))
    done = RUN.invoke(app, [*command, "--json"])
    assert done.exit_code == 1
    found = json.loads(done.output)
    assert [entry["file"] for entry in found["certificates"] if not entry["accepted"]] == [str(bad)]
    done = RUN.invoke(app, command)
    assert done.exit_code == 1
    assert f"{bad}: rejected: " in done.output


def test_what_was_proved_is_printed(folder):
    """A certificate of delta 0, or of the other class, does not look like one that promises much."""
    model, net = str(folder / "net.npz"), pp.Network.load(folder / "net.npz")
    x = json.loads((folder / "proofs" / "0.json").read_text())["input"]
    target = 1 - int(net.predict(x)[0])
    cases = {"zero": (0.0, 1 - target, 0.0), "other": (0.03, target, -50.0)}
    for name, (delta, wanted, margin) in cases.items():
        report = pp.certify(net, x, delta, wanted, margin=margin, certificates=True)
        assert report.robust[0]
        report.certificates[0].save(folder / f"{name}.json")
        done = RUN.invoke(app, ["check", str(folder / f"{name}.json"), "--model", model])
        assert done.exit_code == 0
        row = ", ".join(map(repr, x))
        assert done.output == (
            f"{folder / name}.json: accepted: robust: every network within delta {delta!r} gives class "
            f"{wanted} with a margin of at least {margin!r} at input {row}\n"
        )
    done = RUN.invoke(app, ["check", str(folder / "zero.json"), "--model", model, "--json"])
    assert json.loads(done.output)["certificates"][0]["proved"] == {
        "verdict": "robust",
        "target": 1 - target,
        "delta": [[0.0, 0.0]] * 3,
        "input": x,
        "margin": 0.0,
        "shifts": None,
        "inside": True,
        "network": digest(net),
        "low": None,
        "high": None,
        "spaces": None,
    }


def test_what_proves_less_than_demanded_is_rejected(folder):
    """Each demand on its own, and exit status 1 with the reason."""
    model, net = str(folder / "net.npz"), pp.Network.load(folder / "net.npz")
    x = json.loads((folder / "proofs" / "0.json").read_text())["input"]
    least = float(pp.certify(net, x, 0.03, exact_margin=True).lower[0]) - 0.5
    report = pp.certify(net, x, 0.03, margin=least, certificates=True)
    path = str(folder / "proof.json")
    report.certificates[0].save(path)
    row, other = (",".join(map(repr, cells)) for cells in (x, [x[0] + 1.0, *x[1:]]))
    good = ["--target", "1", "--delta", "0.03", "--input", row, "--margin", repr(least)]
    assert RUN.invoke(app, ["check", path, "--model", model, *good]).exit_code == 0
    for words, reason in (
        (["--target", "0"], "class 0 is demanded"),
        (["--delta", "0.031"], "delta 0.031 is demanded"),
        (["--input", other], "another input is demanded"),
        (["--margin", repr(least + 1e-9)], "is demanded"),
    ):
        done = RUN.invoke(app, ["check", path, "--model", model, *words])
        assert done.exit_code == 1, words
        assert f"{path}: rejected: " in done.output
        assert reason in done.output
        assert "proved is only: robust: every network within delta 0.03" in done.output
    broken = pp.certify(net, x, 0.03, margin=least + 100.0, certificates=True).certificates[0]
    broken.save(path)
    assert RUN.invoke(app, ["check", path, "--model", model]).exit_code == 0
    done = RUN.invoke(app, ["check", path, "--model", model, "--target", "1"])
    assert done.exit_code == 1
    assert "the opposite of what is demanded" in done.output
    done = RUN.invoke(app, ["check", path, "--model", model, "--input", "a,b"])
    assert isinstance(done.exception, OptionError)
    assert "0.5,-1,2" in str(done.exception)


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
def test_a_network_of_other_numbers_is_refused(folder, odd):
    """Not one bit of what is checked is lost on the way in."""
    arrays = {"W0": odd, "b0": np.zeros(1)}
    np.savez(folder / "odd.npz", format=np.array("proplace-network-1"), **arrays)
    proof = str(folder / "proofs" / "0.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = RUN.invoke(app, ["check", proof, "--model", str(folder / "odd.npz")])
    assert isinstance(done.exception, ModelFileError)
    with pytest.raises(NetworkError, match="W of layer 1"):
        pp.Network([(odd, None)])


def test_another_model_and_missing_files(folder):
    other = pp.Network([(np.ones((1, 4)), [0.0])])
    other.save(folder / "other.npz")
    proof = str(folder / "proofs" / "0.json")
    done = RUN.invoke(app, ["check", proof, "--model", str(folder / "other.npz")])
    assert done.exit_code == 1
    assert "another network" in done.output
    missing = str(folder / "none.json")
    done = RUN.invoke(app, ["check", proof, missing, "--model", str(folder / "net.npz")])
    assert done.exit_code == 1
    assert isinstance(done.exception, CertificateError)
    assert (
        f"{missing}: no such file or folder; give a certificate (.json), a folder of them, or"
        in (str(done.exception))
    )
    assert done.output == ""  # and no word of rejecting what is not there
    (folder / "empty").mkdir()
    done = RUN.invoke(app, ["check", str(folder / "empty"), "--model", str(folder / "net.npz")])
    assert isinstance(done.exception, CertificateError)


def test_names_write_no_lines_of_their_own(folder):
    good = folder / "proofs" / "0.json"
    facts = json.loads(good.read_text())
    forged = "x\r\nproof.json: accepted: robust"
    good.write_text(json.dumps({**facts, forged: 1, "\ud800": 1}))
    (folder / "proofs" / f"{forged}.json").write_text("{}")
    command = ["check", str(folder / "proofs"), "--model", str(folder / "net.npz")]
    done = RUN.invoke(app, command)
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert len(done.output.splitlines()) == len(list((folder / "proofs").iterdir()))
