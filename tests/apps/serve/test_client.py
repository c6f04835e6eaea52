"""The client against a real service: what it says is what the library says."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import math
import threading
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

import proplace as pp
import small_promises as small
from proplace.client import (
    AccessError,
    Client,
    RefusedError,
    RequestError,
    ServiceError,
    UnreachableError,
)
from proplace.core.errors import LedgerError
from service_process import Running, write_config

PEOPLE = small.refused(6)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    running = Running(write_config(folder, people=50))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(service):
    with service.client() as found:
        yield found


@pytest.fixture(scope="module")
def explainer():
    """The library, asked as the service asks it."""
    return pp.Proplace(
        small.NET, 0.01, schema=small.SCHEMA, prefer="few", holds=True
    ).fit(small.TRAINING)  # fmt: skip


def test_models_and_their_schema(client):
    (model,) = client.models()
    assert model["name"] == "loans"
    assert model["delta"] == 0.01
    assert [f["name"] for f in client.schema()["features"]] == ["income", "debt"]


def test_predictions_are_those_of_the_network(client):
    rows = pd.concat([PEOPLE, small.TRAINING], ignore_index=True)
    X = small.SCHEMA.encode(rows)
    found = client.predict(rows)
    assert [p.label for p in found] == small.NET.predict(X).tolist()
    assert [p.accepted for p in found] == (small.NET.predict(X) == 1).tolist()
    np.testing.assert_allclose([p.margin for p in found], small.NET.margin(X, 1), rtol=1e-12)


@pytest.mark.parametrize("target", [None, 0, 1])
def test_verdicts_are_those_of_the_library(client, target):
    """Among the people are some on either side of the boundary for whom nothing is proved."""
    rows = pd.DataFrame({"income": range(25, 75), "debt": 10})
    X = small.SCHEMA.encode(rows)
    wanted = 1 if target is None else target
    report = pp.certify(small.NET, X, 0.01, wanted)
    found = client.certify(rows, target)
    assert [v.robust for v in found] == report.robust.tolist()
    assert {(v.accepted, v.robust) for v in found} == {(True, True), (True, False), (False, False)}
    assert [v.accepted for v in found] == (small.NET.predict(X) == wanted).tolist()
    np.testing.assert_allclose([v.margin for v in found], report.lower, rtol=1e-9, atol=1e-12)


def same(answer, expected):
    """Every field of an answer against the library's."""
    for name in ("status", "reason", "label", "rank", "out_of_reach", "filled", "found"):
        assert getattr(answer, name) == getattr(expected, name), name
    for name in ("distance", "bound", "margin", "effort"):
        ours, theirs = getattr(answer, name), getattr(expected, name)
        assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True), name
    assert answer.efforts == pytest.approx(expected.efforts)
    assert answer.changed == expected.changed
    assert answer.changes.to_dict() == expected.changes.to_dict()
    assert answer.holds == dict(expected.holds)
    for name in ("original", "counterfactual"):
        ours, theirs = getattr(answer, name), getattr(expected, name)
        assert (ours is None) == (theirs is None)
        assert ours is None or ours.to_dict() == theirs.to_dict()
    if expected.certificate is None:
        assert answer.certificate is None
    else:
        assert answer.certificate.digest == expected.certificate.digest
        assert answer.certificate.check(small.NET).accepted


@pytest.mark.parametrize("some", [3, 6], ids=["at once", "as a job"])
def test_answers_are_those_of_the_library(client, explainer, some):
    people = PEOPLE[:some].set_axis([f"row {n}" for n in range(some)])
    seen = []
    answers = client.explain(people, count=2, progress=lambda *n: seen.append(n))
    expected = explainer.explain(people, count=2)
    assert [(a.index, a.rank) for a in answers] == [(e.index, e.rank) for e in expected]
    for answer, one in zip(answers, expected, strict=True):
        same(answer, one)
    assert [a.index for a in answers.of("row 1")] == [
        e.index for e in expected if e.index == "row 1"
    ]
    if some > 4:
        assert seen[-1] == (some, some)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    else:
        assert seen == []


def test_options_count(client):
    fitted = pp.Proplace(
        small.NET, 0.01, schema=small.SCHEMA, prefer="near", holds=False, changeable=["income"],
        tolerance={"income": 1}, effort={"income": 2.0}, max_effort=3.0,
    ).fit(small.TRAINING)  # fmt: skip
    answers = client.explain(
        PEOPLE[:2], locked=["debt"], prefer="near", holds=False, tolerance={"income": 1},
        effort={"income": 2.0}, max_effort=3.0,
    )  # fmt: skip
    for answer, one in zip(answers, fitted.explain(PEOPLE[:2]), strict=True):
        same(answer, one)
        assert set(answer.changed) <= {"income"}
    assert any(a.found and not math.isnan(a.effort) for a in answers)


def test_people_of_every_kind(client):
    table = PEOPLE[:2].assign(name=["Ada", "Ben"])  # a column that is no feature
    expected = client.predict(table)
    assert client.predict([dict(row) for _, row in PEOPLE[:2].iterrows()]) == expected
    assert client.predict(PEOPLE.iloc[0]) == expected[:1]
    assert client.predict({"income": np.int64(0), "debt": np.float32(20)}) == expected[:1]


@pytest.mark.parametrize(
    ("people", "said"),
    [
        ({"income": 1}, "no value for"),
        ({"income": 1, "debt": math.nan}, "missing"),
        ({"income": 1, "debt": 2, "dept": 3}, "did you mean 'debt'"),
        ({"income": 1, "debt": "a lot"}, "person 0"),
        ({"income": math.inf, "debt": 1}, "not finite"),
        ({"income": [1], "debt": 1}, "list cannot be sent"),
        ([], "nobody"),
        ("income", "must be a table"),
        ([1], "must be a mapping"),
        (PEOPLE[["income"]], "no value for"),
        (pd.concat([PEOPLE] * 9), "more than the 50"),
    ],
)
def test_wrong_people_are_told_what_is_wrong(client, people, said):
    with pytest.raises(ValueError, match=said) as caught:
        client.predict(people)
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"locked": ["dept"]}, "did you mean 'debt'"),
        ({"locked": ["debt", "income"]}, "nothing is left"),
        ({"prefer": "cheap"}, "prefer"),
        ({"count": 0}, "count"),
        ({"colour": "red"}, "colour"),
        ({"target": 7}, "7"),
    ],
)
@pytest.mark.parametrize("some", [1, 6])
def test_wrong_options_are_told(client, options, said, some):
    with pytest.raises(RequestError, match=said):
        client.explain(PEOPLE[:some], **options)


def test_a_model_that_is_not_served(client):
    with pytest.raises(RequestError, match="no model called 'loan'"):
        client.predict(PEOPLE, model="loan")
    with pytest.raises(RequestError, match="no name of a model"):
        client.predict(PEOPLE, model="../health")


def test_a_promise_from_its_answer_to_its_end(service, client, tmp_path):
    anna, ben = client.explain(PEOPLE[:2])
    first = client.issue(anna, "anna", expires="2999-12-31")
    assert first.new
    again = client.issue(anna, "anna", expires="2999-12-31")
    assert (again.promise, again.new) == (first.promise, False)
    second = client.issue(ben, "ben")
    table = client.promises()
    assert table.loc[[first.promise, second.promise], "person"].tolist() == ["anna", "ben"]
    assert client.promises(person="ben").index.tolist() == [second.promise]
    record = client.promise(first.promise)
    assert (record.person, record.state, record.expires) == ("anna", "open", "2999-12-31")
    assert record.certificate.digest == anna.certificate.digest
    assert [entry["kind"] for entry in record.history] == ["issued"]

    met = anna.counterfactual.to_dict()
    assert client.redeem(first.promise, PEOPLE.iloc[0], record=False).verdict == "not met"
    assert client.promise(first.promise).state == "open"
    assert client.redeem(first.promise, met).verdict == "exact"
    assert client.promise(first.promise).state == "redeemed"
    with pytest.raises(LedgerError, match="redeemed"):
        client.redeem(first.promise, met)

    small.LATER.save(tmp_path / "later.npz")
    audit = client.audit(tmp_path / "later.npz")
    assert sum(audit.counts.values()) == 1
    assert audit.passes
    assert audit.broken == ()
    assert "<html" in client.audit_page(audit.job)
    entry = client.decide(audit.number, go=True, note="quarterly")
    assert entry > audit.number

    client.withdraw(second.promise, "by mistake")
    with pytest.raises(RefusedError, match="withdrawn"):
        client.withdraw(second.promise, "by mistake")
    assert client.erase("ben") == (second.promise,)
    assert client.promise(second.promise).certificate is None
    verified = client.verify()
    assert verified.good
    assert (verified.promises, verified.erased) == (2, 1)
    with pp.Ledger(service.folder / "promises.db") as ledger:
        assert str(ledger.head) == verified.head
        actors = {json.loads(e.body).get("by") for e in ledger.entries() if e.kind == "issued"}
        assert actors == {"test"}


def test_an_answer_that_is_not_found_again_is_not_promised(client):
    (answer,) = client.explain(PEOPLE[2:3])
    other = dataclasses.replace(answer, person={"income": 29, "debt": 45})
    with pytest.raises(RefusedError, match="not found again") as caught:
        client.issue(other, "carl")
    assert caught.value.status == 409
    assert len(client.promises(person="carl")) == 0


def test_nothing_is_promised_without_a_certificate(client):
    (answer,) = client.explain(small.TRAINING[3:4])
    assert answer.status == "already_valid"
    with pytest.raises(RefusedError, match="nothing to promise"):
        client.issue(answer, "dora")
    with pytest.raises(RefusedError, match="nothing can be promised"):
        client.issue(dataclasses.replace(answer, certificate=None), "dora")


def test_certificates_are_checked(client):
    (answer,) = client.explain(PEOPLE[:1])
    found = client.check(answer.certificate)
    assert (found.accepted, found.claim) == (True, "robust")
    facts = answer.certificate.facts
    (point,) = [name for name in ("x", "point", "input") if name in facts]
    forged = pp.Certificate(json.dumps(facts | {point: [0.0, 1.0]}))
    found = client.check(forged)
    assert not found.accepted
    assert found.reason


def test_roles(service):
    with service.client("reads", "reader") as reader:
        (answer,) = reader.explain(PEOPLE[:1])
        for call in (
            lambda: reader.issue(answer, "emil"),
            reader.promises,
            reader.verify,
            lambda: reader.erase("emil"),
            lambda: reader.withdraw(1, "no"),
        ):
            with pytest.raises(PermissionError, match="role reader") as caught:
                call()
            assert caught.value.status == 403
    with pytest.raises(AccessError, match="not known") as caught:
        Client(service.url, "pp_nobody").models()
    assert caught.value.status == 401


def test_a_job_that_is_interrupted_is_given_up(client):
    class Enough(Exception):
        pass

    def stop(done, total):
        raise Enough

    with pytest.raises(Enough):
        client.explain(small.refused(50), progress=stop)
    job = client.jobs()[0]
    assert job.state == "cancelled"
    assert job.done < job.total == 50


# -- a service that is busy, away or something else --------------------------------------------------


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers in a given order: (status, headers, body), or None to break the connection."""

    script: ClassVar[list] = []
    seen: ClassVar[list] = []

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append((self.command, self.path))
        step = self.script.pop(0)
        if step is None:
            self.connection.close()
            self.close_connection = True
            return
        status, headers, body = step
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        pass

    def finish(self):
        with contextlib.suppress(OSError, ValueError):
            super().finish()


@pytest.fixture
def scripted():
    """A client of a service that answers by a script."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    clients = []

    def make(*script, **options):
        Scripted.script, Scripted.seen = list(script), []
        clients.append(Client(f"http://127.0.0.1:{server.server_port}", "pp_x", **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    server.shutdown()
    thread.join()
    server.server_close()


GOOD = (200, {}, b"[]")
BUSY = (429, {"retry-after": "0"}, b'{"error": "too many searches wait"}')
AWAY = (503, {"retry-after": "0"}, b'{"error": "the process of the search died"}')


@pytest.mark.parametrize("before", [BUSY, AWAY, None], ids=["429", "503", "broken"])
def test_what_may_be_done_twice_is_asked_again(scripted, before):
    client = scripted(before, before, GOOD)
    assert client.models() == []
    assert len(Scripted.seen) == 3


@pytest.mark.parametrize("before", [AWAY, None], ids=["503", "broken"])
def test_what_must_not_be_done_twice_is_not(scripted, before):
    client = scripted(before, (204, {}, b""))
    with pytest.raises(ServiceError, match="not known whether" if before is None else "died"):
        client.withdraw(1, "by mistake")
    assert len(Scripted.seen) == 1


def test_a_busy_service_has_done_nothing_yet(scripted):
    client = scripted(BUSY, (204, {}, b""))
    client.withdraw(1, "by mistake")
    assert len(Scripted.seen) == 2


def test_patience_ends(scripted):
    client = scripted((429, {"retry-after": "3600"}, b'{"error": "wait a little"}'), patience=1.0)
    with pytest.raises(ServiceError, match="wait a little") as caught:
        client.models()
    assert caught.value.status == 429
    assert len(Scripted.seen) == 1  # an hour is longer than the patience: said at once


def test_other_errors_are_not_asked_again(scripted):
    client = scripted((500, {}, b'{"error": "the service failed"}'))
    with pytest.raises(ServiceError, match="the service failed"):
        client.models()
    client = scripted((502, {}, b"<h1>Bad Gateway</h1>"))
    with pytest.raises(ServiceError, match=r"status 502.*Bad Gateway"):
        client.models()


def test_something_else_at_the_address(scripted):
    with pytest.raises(ServiceError, match="did not answer in JSON"):
        scripted((200, {}, b"<html>")).models()
    with pytest.raises(UnreachableError, match="no service answers"):
        Client("http://127.0.0.1:9", "pp_x", patience=0.1).models()


QUESTIONS = {
    "models": lambda c: c.models(),
    "schema": lambda c: c.schema(),
    "predict": lambda c: c.predict({"a": 1}),
    "predict a table": lambda c: c.predict(pd.DataFrame({"a": [1]})),
    "certify": lambda c: c.certify({"a": 1}),
    "explain": lambda c: c.explain({"a": 1}),
    "jobs": lambda c: c.jobs(),
    "promises": lambda c: c.promises(),
    "promise": lambda c: c.promise(1),
    "redeem": lambda c: c.redeem(1, {"a": 1}),
    "erase": lambda c: c.erase("anna"),
    "decide": lambda c: c.decide(1, go=True),
    "verify": lambda c: c.verify(),
}
ODD = {
    "number": b"1",
    "list": b"[1]",
    "object": b'{"a": 1}',
    "deep": b"[" * 100_000,
    "answers": b'{"answers": [[{"certificate": null, "certificate_digest": null}]]}',
    "certificate": b'{"promise": 1, "person": "", "state": "", "issued": "", "expires": null, "target":'
    b' 1, "history": [], "certificate": {"a": NaN}}',
    "job": b'{"job": 3, "answers": {"0": 1}, "promises": "ab", "entry": "two", "problems": 1}',
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_that_is_not_understood(scripted, question):
    taken = {
        ("schema", "object"),
        ("schema", "answers"),
        ("schema", "certificate"),
        ("schema", "job"),
    }
    for name, body in ODD.items():
        client = scripted(
            (200, {}, body), (200, {}, body), (200, {}, body), model="loans", patience=0
        )
        if (question, name) in taken:  # any object
            continue
        with pytest.raises(ServiceError, match=r"not understood|in JSON"):
            QUESTIONS[question](client)


def test_an_error_of_the_caller_stays_what_it_is(client):
    def stop(done, total):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.explain(small.refused(50), progress=stop)


@pytest.mark.parametrize(
    "after", ["\u00b2", "Mon, 99 Foo 2026 00:00:00 GMT", "", "soon", "9" * 400]
)
def test_odd_times_to_come_back(scripted, after):
    client = scripted((429, {"retry-after": after}, b'{"error": "wait"}'), patience=0.0)
    with pytest.raises(ServiceError, match="wait"):
        client.models()


def test_a_certificate_that_changed_on_its_way(service, client, scripted):
    (answer,) = client.explain(PEOPLE[:1])
    facts = json.loads(json.dumps(dict(answer.facts)))
    facts["certificate"]["target"] = 0
    body = json.dumps({"answers": [[facts]]}).encode()
    changed = scripted((200, {}, body), model="loans")
    with pytest.raises(ServiceError, match="changed on its way"):
        changed.explain({"income": 0, "debt": 20})


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("http://example.org", "pp_x", "in the open"),
        ("127.0.0.1:8765", "pp_x", "no address"),
        ("ftp://127.0.0.1", "pp_x", "no address"),
        ("http://127.0.0.1:port", "pp_x", "no address"),
        (8765, "pp_x", "no address"),
        ("http://user:pw@127.0.0.1:8765", "pp_x", "no name and no password"),
        ("https://user@example.org", "pp_x", "no name and no password"),
        ("http://127.0.0.1:8765", "", "one word"),
        ("http://127.0.0.1:8765", "pp x", "one word"),
        ("http://127.0.0.1:8765", "pp\r\nx: y", "one word"),
    ],
)
def test_addresses_and_keys(url, key, said):
    with pytest.raises(RequestError, match=said) as caught:
        Client(url, key)
    assert "pw" not in str(caught.value)


def test_other_machines():
    Client("https://example.org", "pp_x").close()
    Client("http://example.org", "pp_x", insecure=True).close()
