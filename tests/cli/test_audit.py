"""`proplace audit`: the gate, the page, JSON, new answers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal

import numpy as np
import pytest
import sqlalchemy as sa

import proplace as pp
from commands import good, run
from proplace.core.errors import LedgerError, OptionError, OutputError
from refits import SHAPES, fitted, people
from support.errors import failed

TABLE, DECIDED = people(200, 0)
LATER, DECIDED_LATER = people(200, 1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Exports of two pipelines, tables, and a ledger with promises of the first."""
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    folder = tmp_path_factory.mktemp("lender")
    kinds = {"age": FloatTensorType, "income": FloatTensorType}
    types = [(name, kinds.get(name, StringTensorType)([None, 1])) for name in TABLE.columns]
    pipes = {
        "old": fitted(SHAPES["standard"](), TABLE, DECIDED),
        "new": fitted(SHAPES["standard"](), LATER, DECIDED_LATER, sizes=(5, 4)),
    }
    for name, pipe in pipes.items():
        graph = skl2onnx.to_onnx(pipe, initial_types=types, options={"zipmap": False})
        (folder / f"{name}.onnx").write_bytes(graph.SerializeToString())
    LATER.assign(label=DECIDED_LATER).to_csv(folder / "later.csv", index=False)
    refused = TABLE[pipes["old"].predict(TABLE) == "no"].iloc[:12]
    explainer = pp.Proplace(str(folder / "old.onnx"), 0.001, k=5).fit(TABLE)
    result = explainer.explain(refused, "yes")
    with pp.Ledger(folder / "promises.db") as ledger:
        ledger.issue(result, ids=[f"<b>p{n}</b>" for n in refused.index], expires="2999-01-31")
    return folder


@pytest.fixture
def folder(kept, tmp_path):
    """A copy with a ledger of its own."""
    for path in kept.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def audit(folder, model, *words):
    return run("audit", folder / f"{model}.onnx", "--ledger", folder / "promises.db", *words)


def test_release_gate(folder):
    good = audit(folder, "old", "--fail-on", "holds", "--json")
    assert good.returncode == 0, good.stderr
    assert good.json["counts"]["proved"] == 12
    bad = audit(folder, "new", "--fail-on", "broken", "--json")
    assert bad.returncode == 3
    assert "--fail-on" in bad.stderr
    assert bad.json["counts"]["broken"] > 0
    assert audit(folder, "new").returncode == 0
    with pp.Ledger(folder / "promises.db") as ledger:
        kinds = [entry.kind for entry in list(ledger.entries())]
        assert kinds.count("audited") == 3
        assert ledger.verify().valid


def test_json_and_dry_run(folder):
    with pp.Ledger(folder / "promises.db") as ledger:
        head = ledger.head
    done = audit(folder, "new", "--json", "--dry-run")
    facts = done.json
    assert facts["audit"] is None
    assert sum(facts["counts"].values()) == len(facts["promises"]) == 12
    assert facts["counts"]["broken"]
    with pp.Ledger(folder / "promises.db") as ledger:
        assert ledger.head == head


def test_page(folder):
    page = folder / "audit.html"
    assert audit(folder, "new", "--report", page).returncode == 0
    text = page.read_text()
    assert "&lt;b&gt;p" in text
    assert "<b>p" not in text
    assert "http" not in text.replace("http-equiv", "")
    failed(audit(folder, "new", "--report", page), OutputError, name=page.name)


def renewing(folder):
    """Words of a renewal."""
    train = ("tables.train:", folder / "later.csv", "tables.drop:", "label")
    return ("--renew", *train, "delta:", 0.01, "explainer.k:", 5)


def test_new_answers_are_shown_and_issued(folder):
    words = renewing(folder)
    shown = audit(folder, "new", *words, "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    facts = shown.json
    assert {line["promise"] for line in facts["renewal"]} == {
        one["promise"] for one in facts["promises"] if one["verdict"] == "broken"
    }
    closed = audit(folder, "new", *words, "--approve", "--fail-on", "broken")
    assert closed.returncode == 3
    with pp.Ledger(folder / "promises.db") as ledger:
        kinds = [entry.kind for entry in ledger.entries()]
    assert kinds.count("issued") == 12
    assert not {"approved", "model_set"} & set(kinds)
    issued = audit(folder, "new", *words, "--approve")
    assert issued.returncode == 0, issued.stderr
    after = audit(folder, "new", "--fail-on", "broken", "--json")
    assert after.returncode == 0
    assert after.json["counts"]["proved"]
    with pp.Ledger(folder / "promises.db") as ledger:
        assert set(ledger.promises(state="open")["expires"]) == {"2999-01-31"}
        assert {"approved", "model_set"} <= {entry.kind for entry in ledger.entries()}
        assert ledger.verify().valid


def test_new_answers_have_requests_of_old_ones(folder):
    old = pp.Model.of(str(folder / "old.onnx"))
    wishes = {"prefer": "sparse", "tolerance": {"income": (1.5, 0)}}
    explainer = pp.Proplace(old, 0.01, k=5).fit(TABLE)
    refused = TABLE[np.array(old.predict_original(TABLE)) == "no"].iloc[20:30]
    with pp.Ledger(folder / "wide.db") as ledger:
        ledger.issue(
            explainer.explain(refused, "yes", **wishes), ids=[f"p{n}" for n in refused.index]
        )
    good("audit", folder / "new.onnx", "--ledger", folder / "wide.db", *renewing(folder))
    with pp.Ledger(folder / "wide.db") as ledger:
        new = [n for n in ledger.promises(state="open").index
               if ledger.promise(n).terms.model.origin.name == "new.onnx"]  # fmt: skip
        assert new
        for number in new:
            promise = ledger.promise(number)
            assert promise.terms.request == explainer.request("yes", **wishes)
            assert promise.explanation.guaranteed_ranges


@pytest.mark.parametrize(
    ("words", "error", "name"),
    [
        (["--renew"], OptionError, "train"),
        (["--renew", "tables.train:", "later.csv"], OptionError, "delta"),
        (["--approve", "--dry-run"], OptionError, "--approve"),
        (["--report", "page.txt"], OutputError, "page.txt"),
    ],
)
def test_wrong_options_are_rejected(folder, words, error, name, monkeypatch):
    monkeypatch.chdir(folder)
    failed(audit(folder, "new", *words), error, name=name)


def test_unknown_verdict_is_wrong_usage(folder):
    assert audit(folder, "new", "--fail-on", "proved").returncode == 2


def test_ledger_that_is_not_there(folder):
    done = run("audit", folder / "new.onnx", "--ledger", folder / "none.db")
    failed(done, LedgerError)
    assert not (folder / "none.db").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_killed_audit_leaves_ledger_whole(folder):
    """Before some of its statements: each audit is there as a whole, or not at all."""

    def job(left):
        def count(*_):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        for event in ("before_cursor_execute", "commit"):
            sa.event.listen(sa.Engine, event, count)
        with pp.Ledger(folder / "promises.db") as ledger:
            ledger.audit(pp.Model.of(folder / "new.onnx"))

    killed = 0
    for statement in itertools.count(1, 3):
        process = multiprocessing.get_context("fork").Process(target=job, args=(statement,))
        process.start()
        process.join()
        with pp.Ledger(folder / "promises.db") as ledger:
            assert ledger.verify().valid
            audits = [entry for entry in list(ledger.entries()) if entry.kind == "audited"]
        assert len(audits) == (process.exitcode == 0)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
    assert killed > 2
