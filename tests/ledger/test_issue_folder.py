"""Promises from a folder of results: part by part, once each, and nothing where ids are wrong."""

from __future__ import annotations

import pandas as pd
import pytest

import proplace as pp
from proplace.batch import explain_file
from proplace.core.errors import LedgerError, OptionError, ResultsError
from proplace.ledger import issue
from support.errors import raises

SCHEMA = pp.Schema([pp.Continuous("income", 0, 100, step=1), pp.Continuous("debt", 0, 50, step=1)])


def folder_of(people, out, *, certificates=True, count=1, delta=0.02, **more):
    train = pd.DataFrame({"income": [20, 60, 80, 90, 70], "debt": [30, 10, 5, 20, 25]})
    net = pp.Network([([[2.0, -1.0]], [-0.4 if count == 1 else 0.1])])
    explainer = pp.Proplace(net, delta, schema=SCHEMA, k=3, **more).fit(train)
    source = out.with_suffix(".csv")
    people.to_csv(source, index=False)
    request = explainer.request(count=count)
    explain_file(explainer, source, out, request, ids=["name", "branch"], certificates=certificates)
    return out


def crowd(count=11):
    people = pd.DataFrame({"income": range(11), "debt": range(30, 41)}).astype(object)
    people.loc[3, "debt"] = "?"  # cannot be read
    people.loc[7, ["income", "debt"]] = [95, 0]  # is accepted as things are
    return people.assign(name=[f"n{i}" for i in range(11)], branch="north").head(count)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(crowd(), tmp_path_factory.mktemp("folder") / "results")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(issue, "_PART", 2)


@pytest.fixture
def ledger(tmp_path):
    with pp.Ledger(tmp_path / "promises.db") as opened:
        yield opened


def test_folder_is_issued_in_parts_and_once(folder, ledger, small, monkeypatch):
    sizes, honest = [], pp.Ledger.issue

    def counted(self, result, *given, **more):
        sizes.append(len(result))
        return honest(self, result, *given, **more)

    monkeypatch.setattr(pp.Ledger, "issue", counted)
    issued = ledger.issue_folder(folder, "name", expires="2999-12-31")
    assert issued == (9, 0, 2, ())
    assert str(issued) == "9 promises issued, 2 rows with nothing to promise"
    assert max(sizes) <= 2
    assert sum(sizes) == 9
    assert ledger.issue_folder(folder, "name", expires="2999-12-31") == (0, 9, 2, ())
    frame = ledger.promises()
    assert list(frame["person"]) == [f"n{i}" for i in range(11) if i not in (3, 7)]
    assert set(frame["expires"]) == {"2999-12-31"}
    assert ledger.verify().valid
    whole = pp.read_results(folder)
    for number, e in zip(frame.index, [e for e in whole if e.found], strict=True):
        promise = ledger.promise(number)
        assert promise.point.tolist() == e.encoded_counterfactual.tolist()
        assert promise.certificate.to_json() == e.certificate.to_json()


def test_same_promises_as_from_memory(folder, ledger, tmp_path):
    ledger.issue_folder(folder, {i: f"p{i}" for i in range(11)})
    other = pp.Ledger(tmp_path / "other.db")
    other.issue(pp.read_results(folder), {i: f"p{i}" for i in range(11)})
    columns = ["person", "target", "sentence", "terms"]
    assert ledger.promises()[columns].to_numpy().tolist() == (
        other.promises()[columns].to_numpy().tolist()
    )


def test_call_that_was_interrupted_is_repeated(folder, ledger, small, monkeypatch):
    honest, calls = pp.Ledger.issue, []

    def dies(self, *given, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return honest(self, *given, **more)

    monkeypatch.setattr(pp.Ledger, "issue", dies)
    with pytest.raises(KeyboardInterrupt):
        ledger.issue_folder(folder, "name")
    before = list(ledger.promises().index)
    assert 0 < len(before) < 9
    assert ledger.verify().valid
    issued = ledger.issue_folder(folder, "name")
    assert issued == (9 - len(before), len(before), 2, ())
    assert list(ledger.promises().index)[: len(before)] == before
    assert ledger.verify().valid


def test_several_answers_of_person_stay_together(tmp_path, ledger, monkeypatch):
    monkeypatch.setattr(issue, "_PART", 3)  # which would tear the second person apart
    folder = folder_of(crowd(3), tmp_path / "results", count=2, region="box")
    issued = ledger.issue_folder(folder, "name")
    answers = [e for e in pp.read_results(folder) if e.found]
    assert issued.new == len(answers) == 6
    assert (ledger.promises()["state"] == "open").all()


@pytest.mark.parametrize(
    ("ids", "word"),
    [
        ("branch", "'north'"),
        ("nme", "did you mean 'name'"),
        (None, "'branch'"),
        (["a"] * 11, "list"),
        ({0: "a"}, "row 1"),
        (dict.fromkeys(range(11), " "), "row 0"),
        ({i: f"p{i % 10}" for i in range(11)}, "'p0'"),
    ],
)
def test_wrong_ids_are_rejected_before_writing(folder, ledger, small, ids, word):
    head = ledger.head
    with raises(LedgerError, name="ids", match=word):
        ledger.issue_folder(folder, ids)
    assert ledger.head == head


def test_row_without_answer_needs_no_id(folder, ledger):
    ids = {i: f"p{i}" for i in range(11) if i not in (3, 7)}
    assert ledger.issue_folder(folder, ids).new == 9


def test_digests_that_collide_are_no_reason_to_refuse(folder, ledger, monkeypatch):
    monkeypatch.setattr(issue, "_digest", lambda person: 7)
    assert ledger.issue_folder(folder, "name").new == 9


def test_folders_that_cannot_be_promised(tmp_path, folder, ledger):
    bare = folder_of(crowd(3), tmp_path / "bare", certificates=False)
    with raises(LedgerError, name="certificates", match="certificates=True"):
        ledger.issue_folder(bare, "name")
    with raises(ResultsError, name="manifest.json"):
        ledger.issue_folder(tmp_path, "name")
    with raises(LedgerError, name="expires", value="2001-01-01"):
        ledger.issue_folder(folder, "name", expires="2001-01-01")
    with raises(OptionError, name="existing", value="maybe"):
        ledger.issue_folder(folder, "name", existing="maybe")
    assert len(ledger.promises()) == 0


def test_changed_certificate_is_not_promised(tmp_path, ledger):
    folder = folder_of(crowd(3), tmp_path / "results")
    proof = next(iter(sorted((folder / "certificates").iterdir())))
    proof.write_text(proof.read_text().replace("1", "2", 1), encoding="utf-8")
    with raises(ResultsError, name="row-000000000000-0.json"):
        ledger.issue_folder(folder, "name")
    assert len(ledger.promises()) == 0


def test_other_answers_for_same_people(tmp_path, folder, ledger, small):
    ledger.issue_folder(folder, "name")
    again = folder_of(crowd(), tmp_path / "again", delta=0.05)
    with raises(LedgerError, name="existing", value="refuse", match="open promise"):
        ledger.issue_folder(again, "name")
    assert ledger.issue_folder(again, "name", existing="renew").new == 9
    assert ledger.issue_folder(again, "name", existing="renew") == (0, 9, 2, ())
    counts = ledger.promises()["state"].value_counts().to_dict()
    assert counts == {"open": 9, "renewed": 9}
