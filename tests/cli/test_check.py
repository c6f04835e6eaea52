"""`proplace check` as a user types it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import proplace as pp
from oracles import accepted_rows
from proplace.cli import app
from proplace.errors import CertificateError

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


def test_another_model_and_missing_files(folder):
    other = pp.Network([(np.ones((1, 4)), [0.0])])
    other.save(folder / "other.npz")
    proof = str(folder / "proofs" / "0.json")
    done = RUN.invoke(app, ["check", proof, "--model", str(folder / "other.npz")])
    assert done.exit_code == 1
    assert "another network" in done.output
    missing = [str(folder / "none.json"), "--model", str(folder / "net.npz")]
    done = RUN.invoke(app, ["check", *missing])
    assert done.exit_code == 1
    assert "not readable" in done.output
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
