"""The workbench without its pages: people, verdicts, searches and promises."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import LedgerError, OptionError
from proplace.schema import Linear
from proplace.serve.forms import FieldErrors
from proplace.serve.workbench import GoneError, NotReadyError, Workbench
from served import PEOPLE, Served, opened
from support.lenders import INCOME_DEBT, NET

PERSON = {"income": 12, "debt": 24}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    found = Workbench(lambda: opened(tmp_path_factory.mktemp("bench")))
    found.start()
    yield found
    found.close()


@pytest.fixture
def answer(bench):
    found = bench.explain(bench.case(PERSON, "ada"), bench.request({}))
    assert found.wait(20)
    return found


# -- people ----------------------------------------------------------------------------------------


def test_case_holds_decision_of_model(bench):
    assert not bench.case(PERSON).accepted
    assert bench.case({"income": 95, "debt": 8}).accepted
    assert [bench.outcome(accepted=each) for each in (False, True)] == ["refused", "approved"]


def test_case_reports_all_wrong_values_at_once(bench):
    with pytest.raises(FieldErrors) as caught:
        bench.case({"income": "much", "incom": 3})
    assert set(caught.value.errors) == {"income", "incom", "debt"}
    assert "did you mean 'income'" in caught.value.errors["incom"]


@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "1_0", "٣", "²", "0x10", True])
def test_case_rejects_text_for_number(bench, value):
    with pytest.raises(FieldErrors):
        bench.case(PERSON | {"income": value})


def test_keys_differ_between_people_and_hide_their_data(bench):
    keys = {bench.case(PERSON | {"debt": n}, "ada").key for n in range(20, 30)}
    assert len(keys) == 10
    other = Workbench(bench._opening)
    other.start()
    assert other.case(PERSON | {"debt": 20}, "ada").key not in keys
    other.close()


def test_find_lists_ids_with_text_and_counts_others(bench):
    found, total = bench.find("C1")
    assert found[0] == "c1"
    assert (len(found), total) == (11, 11)
    assert bench.find("c")[1] == 40
    assert len(bench.find("c")[0]) == 20
    assert bench.known("c7") == PEOPLE.loc["c7"].to_dict()
    assert bench.known("C7") is None


# -- verdicts --------------------------------------------------------------------------------------


def test_verdict_agrees_with_library_over_grid_of_values(bench):
    """Accepted by the model, guaranteed by ``certify``."""
    case, model = bench.case(PERSON), bench.project.model
    points = [(i, d) for i in range(0, 101, 10) for d in range(0, 51, 10)]
    table = {"income": [i for i, _ in points], "debt": [d for _, d in points]}
    frame = PEOPLE.iloc[:0].reindex(range(len(points))).assign(**table)
    robust = pp.certify(model, frame, 0.01).robust
    labels = model.predict(frame)
    for n, (income, debt) in enumerate(points):
        found = bench.verdict(case, {"income": income, "debt": debt})
        assert (found["possible"], found["problems"]) == (True, [])
        assert found["accepted"] == (labels[n] == 1)
        if not found["accepted"]:
            assert found["guaranteed"] is False
        elif found["guaranteed"] != robust[n]:  # the workbench requires a small margin
            assert abs(found["margin"]) < 1e-5


def test_verdict_refuses_values_that_rules_steps_and_directions_forbid(tmp_path):
    schema = pp.Schema(
        [
            pp.Continuous("income", 0, 100, step=1, direction="increasing"),
            pp.Continuous("debt", 0, 50, step=1, max_decrease=10),
        ],
        rules=[Linear({"income": 1.0, "debt": 1.0}, upper=90.0, name="both are at most 90")],
    )
    model = pp.Model.of(NET).with_schema(schema)
    project = opened(tmp_path)
    bench = Workbench(lambda: type(project)(model, *list(vars(project).values())[1:]))
    bench.start()
    case = bench.case(PERSON)

    def problems(**changes):
        found = bench.verdict(case, changes)
        assert found["guaranteed"] is False or not found["problems"]
        assert found["sentence"].startswith("Not possible") == bool(found["problems"])
        return found["problems"]

    assert problems(income=50, debt=20) == []
    assert problems(income=11) == ["income may only increase"]
    assert problems(debt=13) == ["debt may fall by at most 10"]
    assert problems(income=70) == ["both are at most 90"]
    assert problems(income=50.5) == ["income is 0 to 100, a whole number"]
    assert problems(income=101) == ["income is 0 to 100, a whole number"]
    with pytest.raises(FieldErrors):
        bench.verdict(case, {"income": "much"})
    answer = bench.explain(case, bench.request({"immutable": ["debt"]}))
    found = bench.verdict(case, {"debt": 20}, answer.request)
    assert found["problems"] == ["debt is immutable"]
    bench.close()


def test_verdict_comes_while_search_runs(bench, monkeypatch):
    """Searches run one after the other, and verdicts wait for none of them."""
    begun, end = threading.Event(), threading.Event()
    search = bench._explainer.explain

    def slow(*given, **options):
        begun.set()
        assert end.wait(20)
        return search(*given, **options)

    monkeypatch.setattr(bench._explainer, "explain", slow)
    case = bench.case({"income": 3, "debt": 40})
    answer = bench.explain(case, bench.request({}))
    assert begun.wait(20)
    start = time.perf_counter()
    assert not bench.verdict(case, {"income": 4})["accepted"]
    assert time.perf_counter() - start < 2.0
    assert not answer.wait(0)
    end.set()
    assert answer.wait(20)


# -- searches and promises -------------------------------------------------------------------------


def test_same_question_has_same_answer_and_another_one_has_not(bench, answer):
    case = answer.case
    assert bench.explain(case, bench.request({})) is answer
    assert bench.answer(answer.key) is answer
    other = bench.explain(case, bench.request({"immutable": ["debt"]}))
    assert other.key != answer.key
    with pytest.raises(GoneError):
        bench.answer("0" * 24)
    with pytest.raises(OptionError, match="not a feature"):
        bench.request({"immutable": ["dept"]})


def test_same_question_at_once_is_searched_once(bench, monkeypatch):
    searches, search = [], bench._explainer.explain

    def counted(*given, **options):
        searches.append(given[0]["income"].item())
        time.sleep(0.1)
        return search(*given, **options)

    monkeypatch.setattr(bench._explainer, "explain", counted)
    case, request = bench.case({"income": 5, "debt": 44}), bench.request({})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: bench.explain(case, request), range(8)))
    assert found[0].wait(20)
    assert {each.key for each in found} == {found[0].key}
    assert searches.count(5) == 1  # others may wait from before


def test_search_that_failed_is_repeated(bench, monkeypatch):
    def fail(*_, **__):
        raise OptionError("no")

    case = bench.case({"income": 2, "debt": 41})
    with monkeypatch.context() as patch:
        patch.setattr(bench._explainer, "explain", fail)
        first = bench.explain(case, bench.request({}))
        with pytest.raises(OptionError):
            first.wait(20)
    again = bench.explain(case, bench.request({}))
    assert again is not first
    assert again.wait(20)


def test_old_people_and_answers_leave_memory(bench, answer):
    for n in range(201):
        bench.answers.put(f"{n}", answer)
    with pytest.raises(GoneError):
        bench.answer(answer.key)


def test_promise_is_that_of_answer_and_issued_once(bench, answer):
    number, new = bench.issue(answer, 0, "ada", "2999-12-31")
    assert new
    assert bench.issue(answer, 0, "ada", "2999-12-31") == (number, False)
    promise = bench.promise(number)
    e = answer.result.result()[0]
    assert promise.answer.to_dict() == e.counterfactual.to_dict()
    assert promise.certificate.digest == e.certificate.digest
    assert promise.wording.outcome(1) == "approved"
    assert bench.promise_facts(number)["explanation"]["claims"] == e.to_dict()["claims"]


def test_issue_reports_wrong_fields_first(bench, answer):
    head = bench.book.head
    for expires in ("2020-01-31", "31.5.2027", "soon"):
        with pytest.raises(FieldErrors) as caught:
            bench.issue(answer, 0, " ", expires)
        assert set(caught.value.errors) == {"person", "expires"}
    assert bench.book.head == head


def test_accepted_people_get_no_promise(bench):
    answer = bench.explain(bench.case({"income": 95, "debt": 8}, "eve"), bench.request({}))
    assert answer.wait(20)
    with pytest.raises(LedgerError, match="Nothing can be promised"):
        bench.issue(answer, 0, "eve", None)


def test_workbench_without_ledger_explains_and_promises_nothing(tmp_path):
    served = Served(tmp_path, ledger=None)
    served.bench.start()
    answer = served.bench.explain(served.bench.case(PERSON), served.bench.request({}))
    assert answer.wait(20)
    with pytest.raises(LedgerError, match="has no ledger"):
        served.bench.issue(answer, 0, "ada", None)
    served.bench.close()


def test_unready_workbench_reports_its_step(tmp_path):
    bench = Workbench(lambda: opened(tmp_path), time_limit=0.01)
    for ask in (lambda: bench.find("c"), lambda: bench.case(PERSON), bench.facts):
        with pytest.raises(NotReadyError, match="reading the model"):
            ask()


def test_start_never_makes_ledger(tmp_path):
    project = opened(tmp_path, ledger=str(tmp_path / "gone.db"))
    bench = Workbench(lambda: project)
    with pytest.raises(LedgerError, match="there is no ledger"):
        bench.start()
    assert "there is no ledger" in bench.error
    assert not (tmp_path / "gone.db").exists()


def test_document_of_explanation_is_plain_json(answer):
    for e in answer.result.result():
        document = e.to_dict()
        assert json.loads(json.dumps(document)) == document
        assert document["guaranteed"]
        assert {claim["name"] for claim in document["claims"]} <= set(INCOME_DEBT.by_name)
        assert np.isfinite(document["distance"])
