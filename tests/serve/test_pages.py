"""The pages without a browser: addresses, forms that forgive, and what is offered to whom."""

from __future__ import annotations

import re

import pytest

from proplace.certification import read_proof
from served import Served
from support.lenders import NET, STRICT

VALUES = {"is:income": "12", "is:debt": "24"}


def case_of(page, name="", **values):
    """The address of a person that was typed."""
    sent = VALUES | {f"is:{k}": v for k, v in values.items()} | {"name": name}
    found = page.post("/people", data=sent, follow_redirects=False)
    assert found.status_code == 303, found.text
    return found.headers["location"]


def answer_of(page, name="", **values):
    """The address of an answer that is there."""
    case = case_of(page, name, **values).rsplit("/", 1)[1]
    found = page.post("/answers", data={"case": case}, follow_redirects=False)
    address = found.headers["location"]
    while "Searching" in page.get(address).text:
        pass
    return address


def promise_of(page, name, **more):
    """The page of a new promise."""
    sent = {"person": name, "expires": "2999-12-31"} | more
    return page.post(f"{answer_of(page, name)}/1/promise", data=sent)


# -- people ----------------------------------------------------------------------------------------


def test_person_is_found_by_id_and_has_address(page):
    found = page.post("/people", data={"wanted": "c3"})
    assert re.fullmatch(r"/people/[0-9a-f]{24}", found.url.path)
    assert "Applicant c3" in found.text
    assert "refused" in found.text
    assert page.get(found.url.path).text == found.text


def test_lookup_counts_matching_ids(page):
    assert "The first 20 of 40 ids" in page.post("/people", data={"wanted": "C"}).text
    assert "No id contains" in page.post("/people", data={"wanted": "zz"}).text


def test_all_errors_of_form_stand_beside_their_fields(page):
    found = page.post("/people", data={"is:income": "lots", "is:debt": "", "name": "ada"})
    assert found.status_code == 422
    assert "2 values cannot be used yet" in found.text
    for name in ("income", "debt"):
        assert f'aria-describedby="e-{name}"' in found.text
        assert f'id="e-{name}"' in found.text
    assert 'value="lots"' in found.text
    assert 'value="ada"' in found.text


@pytest.mark.parametrize("text", ["12", " 12.0 ", "1.2e1", "12,0"])
def test_number_is_read_as_people_write_it(page, text):
    assert case_of(page, income=text) == case_of(page)


def test_value_outside_of_its_range_is_pointed_out(page):
    assert "Outside the declared range: income" in page.get(case_of(page, income="999")).text
    assert "Outside of the declared" not in page.get(case_of(page)).text


def test_accepted_people_are_offered_nothing(page):
    found = page.get(case_of(page, income="95", debt="8"))
    assert "Nothing has to change" in found.text
    assert "<form" not in found.text
    case = found.url.path.rsplit("/", 1)[1]
    assert page.post("/answers", data={"case": case}).url.path == found.url.path


# -- answers ---------------------------------------------------------------------------------------


def test_answer_page_has_address_and_all_parts(page):
    address = answer_of(page, "ada")
    assert re.fullmatch(r"/answers/[0-9a-f]{24}", address)
    text = page.get(address).text
    assert page.get(address).text == text
    assert re.search(r"<h1>\w+ changes? would get the loan approved, and keep it approved", text)
    assert text.count('<svg class="bar"') >= 1
    for part in (
        "today",
        "enough",
        "Issue the promise",
        "Why this is certain",
        "For specialists",
    ):
        assert part in text
    assert (
        page.post("/answers", data={"case": case_of(page, "ada").rsplit("/", 1)[1]}).url.path
        == address
    )


def test_every_way_has_address(page):
    address = answer_of(page)
    ways = set(re.findall(rf'href="({address}/\d)"', page.get(address).text))
    for way in ways:
        assert "<h1>" in page.get(way).text
    assert page.get(f"{address}/99").status_code == 422
    for wrong in ("0", "x", "²", "9" * 30):
        assert page.get(f"{address}/{wrong}").status_code in (200, 404, 422)


def test_missing_pages_link_to_start(page):
    for path in ("/people/x", "/answers/x", "/answers/x/1", "/promises/999", "/audits/999", "/x"):
        found = page.get(path)
        assert found.status_code == 404, path
        assert "Find a person" in found.text
    for path in ("/answers", "/answers/x/1/promise"):
        assert page.post(path, data={"case": "x"}).status_code == 404


def test_wishes_of_form_reach_search(page, served):
    case = case_of(page).rsplit("/", 1)[1]
    sent = {"case": case, "prefer": "nearest", "max_changes": "1", "keep:debt": "on"}
    found = page.post("/answers", data=sent, follow_redirects=False)
    request = served.bench.answer(found.headers["location"].rsplit("/", 1)[1]).request
    assert (request.prefer, request.max_changes, request.immutable) == ("nearest", 1, ("debt",))


# -- promises --------------------------------------------------------------------------------------


def test_promise_is_issued_from_memory_and_double_click_issues_once(page, served, monkeypatch):
    address = answer_of(page, "dora")

    def search(*_, **__):
        raise AssertionError("searched again")

    monkeypatch.setattr(served.bench._explainer, "explain", search)
    before = len(served.bench.book.promises())
    sent = {"person": "dora", "expires": "2999-12-31"}
    places = {page.post(f"{address}/1/promise", data=sent).url.path for _ in range(2)}
    assert len(places) == 1
    assert len(served.bench.book.promises()) == before + 1


def test_errors_of_promise_stand_beside_their_fields(page, book):
    address, head = answer_of(page), book.head
    found = page.post(f"{address}/1/promise", data={"person": "", "expires": "2020-01-31"})
    assert found.status_code == 422
    assert 'id="e-who"' in found.text
    assert 'id="e-until"' in found.text
    assert 'value="2020-01-31"' in found.text
    assert book.head == head


def test_second_promise_offers_to_replace_first(page):
    assert promise_of(page, "emil").status_code == 200
    found = promise_of(page, "emil", expires="2998-01-01")
    assert found.status_code == 409
    assert "has an open promise already" in found.text
    assert 'name="existing" value="renew"' in found.text
    found = promise_of(page, "emil", expires="2998-01-01", existing="renew")
    assert found.status_code == 200
    assert "renewed" in page.post("/promises/find", data={"person": "EMIL"}).text


def test_person_page_lists_their_promises(page):
    promise_of(page, "fritz")
    assert "Promises to this applicant" in page.get(case_of(page, "fritz")).text
    assert "Promises to this applicant" not in page.get(case_of(page, "nobody")).text


def test_promise_has_letter_and_certificate_and_is_redeemed(page):
    found = promise_of(page, "gerda")
    address = found.url.path
    letter = page.get(f"{address}/letter")
    assert "unsafe-inline" in letter.headers["content-security-policy"]
    assert "script-src" not in letter.headers["content-security-policy"]
    assert "If you apply again" in letter.text
    proof = page.get(f"{address}/proof")
    assert "attachment" in proof.headers["content-disposition"]
    assert proof.json()["format"] == "proplace-bundle-2"
    assert read_proof(proof.content).digest in letter.text
    early = page.post(f"{address}/redeem", data=VALUES | {"record": "yes"})
    assert "is not met" in early.text
    values = dict(re.findall(r'name="(is:\w+)" value="([^"]*)"', found.text))
    compared = page.post(f"{address}/redeem", data=values | {"record": "no"})
    assert "Nothing was recorded" in compared.text
    wrong = page.post(f"{address}/redeem", data=values | {"is:income": "lots", "record": "yes"})
    assert wrong.status_code == 422
    assert 'id="e-income"' in wrong.text
    done = page.post(f"{address}/redeem", data=values | {"record": "yes"})
    assert "is met exactly" in done.text
    assert 'class="chip redeemed"' in done.text
    assert page.get(f"{address}/letter").status_code == 409


def test_promise_is_withdrawn_for_reason(page):
    address = promise_of(page, "hans").url.path
    assert page.post(f"{address}/withdraw", data={"reason": " "}).status_code == 409
    found = page.post(f"{address}/withdraw", data={"reason": "a wrong table"})
    assert 'class="chip withdrawn"' in found.text
    assert "a wrong table" in found.text


def test_page_of_erased_promise_has_no_person(page, book):
    address = promise_of(page, "ida").url.path
    book.erase("ida")
    found = page.get(address)
    assert found.status_code == 200
    assert "ida" not in found.text.replace("candida", "")
    assert page.get(f"{address}/letter").status_code == 409
    assert page.get(f"{address}/proof").status_code == 409


def test_list_of_promises_has_pages_and_states(tmp_path):
    served = Served(tmp_path)
    served.bench.start()
    page = served.browser()
    answer = answer_of(page)
    for n in range(52):
        served.bench.issue(served.bench.answer(answer.rsplit("/", 1)[1]), 0, f"p{n}", None)
    first = page.get("/promises").text
    assert first.count("<tr>") == 51
    (more,) = re.findall(r'href="(/promises\?before=\d+)"', first)
    assert page.get(more).text.count("<tr>") == 3
    assert page.get("/promises?state=open").text.count("<tr>") == 51
    assert "no redeemed promises" in " ".join(page.get("/promises?state=redeemed").text.split())
    assert page.get("/promises?state=<b>").status_code == 422
    for before in ("x", "-1", "9" * 40, "²"):
        assert page.get(f"/promises?before={before}").status_code == 200
    served.bench.close()


# -- audits ----------------------------------------------------------------------------------------


def test_audit_page_counts_and_names_broken_promises(page, tmp_path):
    promise_of(page, "jan")
    STRICT.save(tmp_path / "strict.npz")
    content = (tmp_path / "strict.npz").read_bytes()
    found = page.post("/audits", files={"file": ("strict.npz", content)})
    assert re.fullmatch(r"/audits/\d+", found.url.path), found.text
    assert "would be broken" in found.text
    assert "jan" in found.text
    assert found.url.path in page.get("/audits").text


def test_audit_without_model_file_is_rejected(page):
    assert "Choose a model file" in page.post("/audits", files={"file": ("", b"")}).text
    assert "Choose a model file" in page.post("/audits", data={"file": "x"}).text
    found = page.post("/audits", files={"file": ("a.pkl", b"x")})
    assert "ends in .onnx or .npz" in found.text


# -- the rest --------------------------------------------------------------------------------------


def test_page_before_model_is_read_waits(tmp_path):
    served = Served(tmp_path)
    page = served.browser()
    found = page.get("/")
    assert found.status_code == 503
    assert 'http-equiv="refresh"' in found.text
    served.bench.start()
    assert page.get("/").status_code == 200
    served.bench.close()


def test_pages_weigh_less_than_150_kilobytes(page, tmp_path):
    NET.save(tmp_path / "m.npz")
    files = sum(len(page.get(f"/static/{name}").content) for name in ("style.css", "script.js"))
    for path in ("/", answer_of(page), "/promises", "/audits"):
        assert len(page.get(path).content) + files < 150_000
