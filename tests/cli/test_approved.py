"""Texts that users read most, compared whole with approved files.

``PROPLACE_APPROVE=1`` writes these files again.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pandas as pd
import pytest
import typer

import proplace as pp
from commands import good, run, run_on_a_terminal
from proplace.cli import app

pytest.importorskip("sqlalchemy")

APPROVED = Path(__file__).with_name("approved")
DAY = "2999-12-31"
PEOPLE = "explain --input people.csv --out results"
PROJECT = """\
model: model.npz
schema: schema.yaml
tables: {train: train.csv, id: customer}
delta: 0.02
explainer: {k: 5}
calibration: {deltas: [0.01, 0.1]}
"""
COMMANDS = {
    "audit": "audit later.npz --ledger promises.db --dry-run",
    "calibrate": "calibrate later.npz --input train.csv",
    "certify": "certify --input people.csv",
    "check": "check results/certificates",
    "check-folder": "check results",
    "check-rejected": "check results --delta 0.05",
    "error-column": "certify --input extra.csv",
    "error-key": "certify --config wrong.yaml",
    "error-option": "explain --tolerance income income=1 job=cook",
    "error-file": "check results --model nothing.npz",
    "explain-folder": PEOPLE,
    "explain-help": "explain --help",
    "explain-person": "explain income=1 job=cook",
    "help": "--help",
    "ledger-list": "ledger list promises.db",
    "ledger-show": "ledger show promises.db NUMBER",
    "ledger-verify": "ledger verify promises.db",
    "schema": "schema train.csv --increasing income",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small models, tables, results, certificates and a ledger, without training."""
    folder = tmp_path_factory.mktemp("approved")
    net = pp.Network([([[1.0, 0.25, 0.0], [0.0, 1.0, -1.0]], [0.0, 0.0]), ([[1.0, 0.5]], [-0.6])])
    first, last = net.layers
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        net.save("model.npz")
        net.with_layers([(first.W, first.b), (last.W, last.b - 0.1)]).save("later.npz")
        pp.Schema(
            [
                pp.Continuous("income", 0, 10, step=0.5, unit="thousand"),
                pp.Categorical("job", ["clerk", "cook"]),
            ]
        ).write("schema.yaml")
        rows = [(n / 2, job) for n in range(21) for job in ("clerk", "cook")]
        pd.DataFrame(rows, columns=["income", "job"]).to_csv("train.csv", index=False)
        people = pd.DataFrame({"income": [1.0, 2.5, None], "job": ["cook", "clerk", "cook"]})
        people = people.assign(customer=["ann", "bob", "cy"])
        people.to_csv("people.csv", index=False)
        people.assign(phone=1).to_csv("extra.csv", index=False)
        Path("proplace.yaml").write_text(PROJECT)
        Path("wrong.yaml").write_text("modle: model.npz\ndelta: none.npz\ntables: {ids: a}")
        good(*PEOPLE.split())
        good("ledger", "issue", "promises.db", "results", "--expires", DAY)
    return folder


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"explain-folder", "explain-help", "help"}))
def test_text_is_as_approved(folder, name, monkeypatch):
    monkeypatch.chdir(folder)
    with pp.Ledger("promises.db") as ledger:
        number = ledger.promises().index[0]
    command = COMMANDS[name].replace("NUMBER", str(number))
    done = run(*command.split())
    compare(name, f"exit status {done.returncode}\n{done.stdout}{done.stderr}")


def test_summary_on_terminal_is_as_approved(folder, monkeypatch):
    monkeypatch.chdir(folder)
    status, shown = run_on_a_terminal(*PEOPLE.split())
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", shown)
    compare("explain-folder", f"exit status {status}\n{plain.splitlines()[-1]}\n")


@pytest.mark.parametrize("name", ["explain-help", "help"])
def test_help_is_as_approved(name):
    """The texts of the command itself: their layout depends on the version of Typer."""
    command = typer.main.get_command(app)
    for word in COMMANDS[name].split()[:-1]:
        command = command.commands[word]
    lines = [inspect.cleandoc(command.help), ""]
    for known, one in getattr(command, "commands", {}).items():
        lines.append(f"{known}: {(one.help or '').strip().splitlines()[0]}")
    for option in command.params:
        if option.name not in ("install_completion", "show_completion"):
            lines.append(f"{option.opts[0]}: {option.help}")
    compare(name, "".join(f"{line}\n" for line in lines))


def compare(name, text):
    path = APPROVED / f"{name}.txt"
    text = f"$ proplace {COMMANDS[name]}\n{stable(text)}"
    if os.environ.get("PROPLACE_APPROVE"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def stable(text):
    """Replace digests and times, and remove spaces at the ends of lines."""
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "DIGEST", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?", "TIME", text)
    text = re.sub(r"\b20\d\d-\d\d-\d\d\b", "YYYY-MM-DD", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def test_every_approved_file_has_command():
    assert {path.stem for path in APPROVED.iterdir()} == set(COMMANDS)
