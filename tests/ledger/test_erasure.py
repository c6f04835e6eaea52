"""Erasing a person: no byte of theirs is left in the files, and the chain holds as before."""

from __future__ import annotations

import multiprocessing
import os
import random
import secrets
import signal
import sqlite3
import zlib
from pathlib import Path

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import LedgerError
from proplace.ledger import tables
from proplace.ledger.chain import commitment, personal_parts
from proplace.ledger.database import Database
from support.errors import raises
from support.lenders import changed, open_promises

fork = multiprocessing.get_context("fork")
PEOPLE = ["Anna-8f1c", "Bert-77aa", "Carla-02d4"]


@pytest.fixture(scope="module")
def unlike(result):
    """Answers whose certificates differ from person to person, as bytes do."""
    import json

    for n, e in enumerate(result):
        facts = json.loads(e.certificate.to_json()) | {"note": secrets.token_hex(40)}
        reason = f"reason-{secrets.token_hex(8)}"
        certificate = pp.Certificate(json.dumps(facts))
        result = changed(result, n, certificate=certificate, reason=reason)
    return result


def traces(promise):
    """Bytes that would give a person away: the id, the words, the reason, the point, the proof."""
    text = promise.certificate.to_json().encode()
    return {
        "id": promise.person.encode(),
        "reason": promise.facts["reason"].encode(),
        "proof": text[-60:],
        "packed": zlib.compress(text, 6)[-40:],
    }


def content_of(path):
    """All bytes of a SQLite ledger: the file, its write-ahead log, its shared memory."""
    places = [Path(f"{path}{end}") for end in ("", "-wal", "-shm", "-journal")]
    return b"".join(place.read_bytes() for place in places if place.exists())


def test_no_byte_is_left_in_file(tmp_path, unlike):
    path = tmp_path / "promises.db"
    ledger = pp.Ledger(path)
    anna, bert, _ = ledger.issue(unlike, PEOPLE, check=False).ids
    left, gone = traces(ledger.promise(anna)), traces(ledger.promise(bert))
    salt = sqlite3.connect(path).execute("SELECT hex(salt) FROM personal").fetchall()[1][0]
    gone["salt"] = bytes.fromhex(salt)
    del gone["proof"], left["proof"]  # it is packed
    before, head = content_of(path), ledger.head
    assert all(trace in before for trace in (*left.values(), *gone.values()))
    assert ledger.erase(PEOPLE[1]) == (bert,)
    after = content_of(path)
    assert {what: trace in after for what, trace in gone.items()} == dict.fromkeys(gone, False)
    assert all(trace in after for trace in left.values())
    found = ledger.verify(head)
    assert (found.valid, found.erased) == (True, 1)
    ledger.close()
    assert not any(trace in content_of(path) for trace in gone.values())


def test_erased_promise_keeps_number_dates_and_terms(place, unlike):
    with pp.Ledger(place) as ledger:
        number = ledger.issue(unlike, PEOPLE, expires="2999-12-31", check=False).ids[1]
        assert ledger.erase(PEOPLE[1]) == (number,)
        promise = ledger.promise(number)
        assert (promise.person, promise.state, promise.expires) == (None, "erased", "2999-12-31")
        assert (promise.point, promise.certificate, promise.answer) == (None, None, None)
        assert promise.explanation is None
        assert promise.sentence == ""
        assert promise.terms.request.target == 1
        assert ledger.promises(person=PEOPLE[1]).empty
        assert sum(len(group.ids) for group in open_promises(ledger)) == 2
        head = ledger.head
        assert ledger.erase(PEOPLE[1]) == ()  # no other copy exists
        assert ledger.head == head
        assert ledger.verify().valid


def test_erase_removes_promises_of_named_people_alone(place, result, boxed):
    with pp.Ledger(place) as ledger:
        anna, _, bert = ledger.issue(result, ["anna", "annabel", "bert"]).ids
        (again,) = ledger.issue(result[:1], ["anna"], expires="2999-12-31", existing="renew").ids
        other, emil = ledger.issue(boxed, ["ANNA", "emil"]).ids
        assert ledger.erase("emil", "bert", "nobody", "anna", "anna") == (anna, bert, again, emil)
        assert ledger.promises()["person"].dropna().tolist() == ["annabel", "ANNA"]
        assert ledger.verify().erased == 4
        kept = ledger.promise(other)
        assert kept.point.tolist() == boxed[0].encoded_counterfactual.tolist()
        assert np.all(kept.low < kept.point)
        assert [entry.kind for entry in list(ledger.entries(emil))] == ["issued", "erased"]
        with raises(LedgerError, name="ids"):
            ledger.erase(["annabel", "ANNA"])
        assert ledger.erase(None) == ()
        assert ledger.verify().valid


def test_erase_removes_attempts(tmp_path, result):
    """Also the values of the day on which they came back."""
    path = tmp_path / "promises.db"
    with pp.Ledger(path) as ledger:
        number = ledger.issue(result[:1], [PEOPLE[0]]).ids[0]
        ledger.redeem(number, {"income": 33.25, "debt": 20})
        assert PEOPLE[0].encode() in content_of(path)
        assert b"33.25" in content_of(path)
        ledger.erase(PEOPLE[0])
        assert PEOPLE[0].encode() not in content_of(path)
        assert b"33.25" not in content_of(path)
        assert ledger.verify().valid


def test_person_who_was_erased_can_come_back(place, result):
    with pp.Ledger(place) as ledger:
        ledger.issue(result, ["a", "b", "c"])
        ledger.erase("b")
        (new,) = ledger.issue(result[1:2], ["b"]).new
        assert ledger.promise(new).person == "b"
        assert ledger.verify().valid


def test_commitment_without_salt_reveals_nothing(place, result):
    """Two promises of the same content have nothing in common."""
    with pp.Ledger(place) as ledger:
        one, two = ledger.issue(result[:1], ["a"]).ids[0], None
        ledger.withdraw(one, "once more")
        two = ledger.issue(result[:1], ["a"]).ids[0]
        said = [next(ledger.entries(number)).facts["commitment"] for number in (one, two)]
        assert said[0] != said[1]


def many(path, seed):
    """A ledger of rows of all sizes, whose pages were split and joined again and again."""
    draw, database, people = random.Random(seed), Database(path), {}
    for _ in range(12):
        with database.write() as writer:
            for _ in range(100):
                person = f"P{draw.randbytes(draw.choice([4, 8, 20, 60])).hex()}"
                row = {"person": person, "facts": f"F{person * draw.choice([1, 5, 50])}"}
                row |= {"point": b"point", "low": None, "high": None}
                row |= {"certificate": draw.randbytes(draw.choice([50, 300, 3000, 9000]))}
                salt = draw.randbytes(32)
                said = commitment(salt, personal_parts(row))
                facts = {"terms": "t", "issued": "now", "expires": None, "commitment": said}
                number = writer.append("issued", facts, writer.next).seq
                writer.add("promises", {"id": number, **facts})
                writer.add("personal", {"entry": number, "salt": salt, **row})
                people[person] = (row["certificate"], salt)
    database.close()
    return people


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_byte_is_left_of_many_people(tmp_path, seed):
    """SQLite copies rows when pages are split, and leaves bytes behind in spite of secure_delete."""
    path = tmp_path / "promises.db"
    people = many(path, seed)
    database = Database(path)
    gone = random.Random(seed).sample(sorted(people), 600)
    with database.write() as writer:
        for person in gone:
            own = tables.personal.c
            writer.connection.execute(tables.personal.delete().where(own.person == person))
    with pp.Ledger(path) as ledger:
        ledger.erase("nobody")  # rewrites the file
    content = content_of(path)
    for person in gone:
        certificate, salt = people[person]
        for trace in (person.encode(), certificate[:24], certificate[-24:], salt):
            assert trace not in content
    assert all(person.encode() in content for person in set(people) - set(gone))
    database.close()


@pytest.mark.slow
def test_erasure_that_is_killed_is_repeated(tmp_path, unlike):
    path = tmp_path / "promises.db"
    with pp.Ledger(path) as ledger:
        number = ledger.issue(unlike, PEOPLE, check=False).ids[1]
        gone = traces(ledger.promise(number))

    def job():
        Database.vacuum = lambda self: os.kill(os.getpid(), signal.SIGKILL)
        pp.Ledger(path).erase(PEOPLE[1])

    process = fork.Process(target=job)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with pp.Ledger(path) as ledger:
        assert ledger.promise(number).state == "erased"
        assert ledger.verify().valid
        ledger.erase(PEOPLE[1])
        assert not any(trace in content_of(path) for trace in gone.values())


def test_erase_reports_reader_of_earlier_state(tmp_path, unlike, monkeypatch):
    """The write-ahead log cannot be emptied during a read, which is reported as an error."""
    monkeypatch.setattr(pp.ledger.database, "_WAIT", 50)
    path = tmp_path / "promises.db"
    with pp.Ledger(path) as ledger:
        ledger.issue(unlike, PEOPLE, check=False)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM personal").fetchone()
        with raises(LedgerError, name=str(path), match="erase again"):
            ledger.erase(PEOPLE[1])
        assert ledger.promises()["state"].tolist() == ["open", "erased", "open"]
        assert PEOPLE[1].encode() in content_of(path)
        reader.close()
        assert ledger.erase(PEOPLE[1]) == ()
        assert PEOPLE[1].encode() not in content_of(path)


def test_erasing_in_postgresql_rewrites_its_files(server, unlike):
    """The table, its index and its long values. The write-ahead log belongs to the server."""
    place = server.new()
    database = place.partition("?")[0].rpartition("/")[2]
    with pp.Ledger(place) as ledger:
        numbers = ledger.issue(unlike, PEOPLE, check=False).ids
        left, gone = traces(ledger.promise(numbers[0])), traces(ledger.promise(numbers[1]))
        server.execute(database, "ANALYZE", "CHECKPOINT")
        assert gone["id"] in files_of(server)
        ledger.erase(PEOPLE[1])
        server.execute(database, "ANALYZE", "CHECKPOINT")
        content = files_of(server)
        for what in ("id", "reason", "packed"):
            assert left[what] in content, what
            assert gone[what] not in content, what
        assert ledger.verify().valid


def files_of(server):
    return b"".join(path.read_bytes() for path in server.files.rglob("*") if path.is_file())


def test_statistics_of_postgresql_hold_nothing_of_person(server, result):
    """ANALYZE stores frequent values of columns, but none of people."""
    import psycopg

    place = server.new()
    big = type(result)(list(result) * 100, provenance=result.provenance)
    with pp.Ledger(place) as ledger:
        ledger.issue(big, [f"p{n}" for n in range(len(big))], check=False)
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute("ANALYZE")
        found = connection.execute("SELECT attname FROM pg_stats WHERE tablename = 'personal'")
        assert {name for (name,) in found} <= {"entry"}


def test_only_owner_can_rewrite_files(server, result):
    """PostgreSQL only warns if it does nothing. Here it is an error that names who can do it."""
    place = server.new()
    database = place.partition("?")[0].rpartition("/")[2]
    with pp.Ledger(place) as ledger:
        ledger.issue(result, PEOPLE)
    server.execute(
        database,
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk",
    )
    try:
        with pp.Ledger(server.url(database, "clerk")) as ledger:
            with pytest.raises(LedgerError, match="VACUUM FULL"):
                ledger.erase(PEOPLE[0])
            assert ledger.promises()["state"].tolist() == ["erased", "open", "open"]
    finally:
        server.execute(database, "DROP OWNED BY clerk", "DROP ROLE clerk")
