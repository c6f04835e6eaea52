"""`cutoff` of the project file: every command applies it, and audits apply that of the promises."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest

from commands import good, run
from proplace.core.errors import DeltaError, OptionError, OutputError
from support.errors import failed
from support.models import export_sklearn, fitted, people

pytest.importorskip("sqlalchemy")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

P, CUT = 0.7, ("cutoff:", {"yes": 0.7})


@pytest.fixture(scope="module")
def lender(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lender")
    frame, y = people()
    frame = frame.drop(columns=["id", "grade"])
    noisy = np.random.default_rng(0).random(len(y)) < 0.15  # so that no probability is near 0 or 1
    y = np.where(noisy, np.where(y == "yes", "no", "yes"), y)
    pipe = fitted("drop first", "logistic", frame, y)
    export_sklearn(folder / "m.onnx", pipe, frame, zipmap=False)
    frame.to_csv(folder / "train.csv", index=False)
    refused = frame[pipe.predict(frame) == "no"].iloc[:6]
    refused.assign(name=[f"n{i}" for i in range(len(refused))]).to_csv(
        folder / "people.csv", index=False
    )
    return folder, pipe, frame


def chance(pipe, rows, frame):
    return pipe.predict_proba(rows[frame.columns])[:, list(pipe.classes_).index("yes")]


def explain(folder, out, *more):
    model, train = folder / "m.onnx", folder / "train.csv"
    given = ("explain", "--model", model, "--train", train, "--input", folder / "people.csv")
    rest = ("--delta", 0.003, "explainer.k:", 5, "--target", "yes", "--id", "name", "--out", out)
    return (*given, *rest, *more)


def test_answers_reach_cutoff_and_resumed_run_notices_another(lender, tmp_path):
    folder, pipe, frame = lender
    good(*explain(folder, tmp_path / "out", *CUT))
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    found = results[results.status.isin(["optimal", "feasible"])]
    assert len(found) >= 4
    assert (chance(pipe, found, frame) >= P).all()
    good(*explain(folder, tmp_path / "out", *CUT))
    for other in ((), ("cutoff:", {"yes": 0.6})):
        failed(run(*explain(folder, tmp_path / "out", *other)), OutputError)
    proofs = ("check", tmp_path / "out", "--model", folder / "m.onnx")
    good(*proofs, *CUT)
    assert run(*proofs).returncode == 1


def test_verdicts_are_those_of_cutoff(lender, tmp_path):
    folder, pipe, frame = lender
    given = ("--model", folder / "m.onnx", "--input", folder / "train.csv", "--delta", 0.003)
    good("certify", *given, "--target", "yes", *CUT, "--out", tmp_path / "v.csv")
    verdicts = pd.read_csv(tmp_path / "v.csv")
    clear = np.abs(chance(pipe, frame, frame) - P) > 1e-4
    own = np.where(chance(pipe, frame, frame) >= P, "yes", "no")
    assert (verdicts["class"] == own)[clear].all()
    assert (own[verdicts.verdict == "robust"] == "yes").all()
    assert 5 < (own == "yes").sum() < (pipe.predict(frame) == "yes").sum()


def test_audit_and_renewal_have_cutoff_of_promises(lender, tmp_path):
    folder, pipe, frame = lender
    book = tmp_path / "p.db"
    good(*explain(folder, tmp_path / "out", *CUT))
    good("ledger", "issue", book, tmp_path / "out", "--expires", "2999-12-31")
    rows = pd.read_csv(tmp_path / "out" / "results.csv")
    rows = rows[rows.status.isin(["optimal", "feasible"])]
    later = copy.deepcopy(pipe)
    own = chance(pipe, rows, frame)
    later[-1].intercept_ -= np.median(np.log(own / (1 - own))) - np.log(P / (1 - P))
    export_sklearn(tmp_path / "later.onnx", later, frame, zipmap=False)
    kept = chance(later, rows, frame) >= P
    assert not kept.all()
    assert (chance(later, rows, frame) > 0.5).all()
    audit = ("audit", tmp_path / "later.onnx", "--ledger", book, "--json")
    found = good(*audit, "--dry-run").json
    assert [one["verdict"] != "broken" for one in found["promises"]] == kept.tolist()
    found = good(*audit, "--dry-run", "cutoff:", {"yes": 0.5}).json
    assert all(one["verdict"] in ("proved", "holds") for one in found["promises"])
    renew = ("--renew", "tables.train:", folder / "train.csv", "delta:", 0.003, "explainer.k:", 5)
    good(*audit, *renew)
    again = good(*audit, "--dry-run").json
    assert {one["verdict"] for one in again["promises"]} <= {"proved", "holds"}


def test_set_of_past_models_has_cutoff(lender, tmp_path):
    folder, pipe, frame = lender
    later = copy.deepcopy(pipe)
    later[-1].intercept_ -= 0.003
    export_sklearn(tmp_path / "later.onnx", later, frame, zipmap=False)
    models = (folder / "m.onnx", tmp_path / "later.onnx")
    made = ("calibrate", *[models[1]] * 3, "--coverage", 0.5, "--out", tmp_path / "s.npz")
    good(*made, "model:", models[0], *CUT)
    given = ("certify", "--model", models[0], "--input", folder / "train.csv", "--target", "yes")
    good(*given, "--delta", tmp_path / "s.npz", *CUT)
    failed(run(*given, "--delta", tmp_path / "s.npz"), DeltaError, notes=1)


@pytest.mark.parametrize("cutoff", [{"yess": 0.7}, {"yes": 2}, {"yes": None}, "yes"])
def test_wrong_cutoff_is_rejected(lender, cutoff):
    folder, _, _ = lender
    given = ("certify", "--model", folder / "m.onnx", "--input", folder / "train.csv")
    done = run(*given, "--delta", 0.1, "--target", "yes", "cutoff:", cutoff)
    failed(done, OptionError, name="cutoff")
