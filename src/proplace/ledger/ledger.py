"""A ledger of promises: what was promised to whom, on which terms, and what became of it."""

from __future__ import annotations

import datetime
import json
import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import LedgerError
from proplace.core.text import listing
from proplace.explain.results import Explanation, Explanations
from proplace.ledger import tables
from proplace.ledger.chain import Entry, Head, Verification, Verifier
from proplace.ledger.database import Database
from proplace.ledger.issue import (
    Draft,
    Issued,
    IssuedFolder,
    Skipped,
    check_answers,
    check_current,
    draft,
    growing_features,
    issue_drafts,
    known_promises,
    nothing_to_promise,
    parts_of,
    people_of,
    setting_of,
)
from proplace.ledger.promise import (
    HEAD,
    audited,
    latest_model,
    open_groups,
    page_rows,
    person_id,
    promise_of,
    promise_rows,
    renewed_into,
)
from proplace.ledger.redeem import (
    Redemption,
    check_named,
    check_open,
    model_in_use,
    presented,
    reading,
    write,
)
from proplace.ledger.tables import PARAMETERS, now, sa
from proplace.ledger.terms import Archive, common_shifts, model_documents, terms_documents
from proplace.ledger.verdicts import reimputed
from proplace.loaders.coordinates import one_cutoff, recoded, with_classes_of
from proplace.loaders.model import Model
from proplace.retrain.promised import Promised

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping
    from types import TracebackType

    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.explain.words import Wording
    from proplace.ledger.audit import Audit
    from proplace.ledger.issue import Existing, Ids
    from proplace.ledger.promise import OpenPromises, Promise, State
    from proplace.ledger.redeem import Seen
    from proplace.ledger.verdicts import Verdict
    from proplace.schema import Schema


_COLUMNS = ["id", "person", "state", "issued", "expires", "target", "sentence", "model", "terms"]


class Ledger:
    """A database of promises, whose history cannot be changed unnoticed (extra ``ledger``).

    Parameters
    ----------
    place
        The path of a SQLite file, made if it is not there, or ``postgresql://user@host/name``.
    actor
        Who writes: a person or a program; it is noted in every entry.
    create
        False: an error where there is no ledger yet.

    Examples
    --------
    >>> import tempfile, os
    >>> import pandas as pd
    >>> from proplace import Continuous, Ledger, Network, Proplace, Schema
    >>> schema = Schema([Continuous("income", 0, 100, step=1), Continuous("debt", 0, 50, step=1)])
    >>> people = pd.DataFrame({"income": [20, 60, 80, 90], "debt": [30, 10, 5, 20]})
    >>> net = Network([([[2.0, -1.0]], [-0.4])])
    >>> result = Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people[:1])
    >>> ledger = Ledger(os.path.join(tempfile.mkdtemp(), "promises.db"))
    >>> issued = ledger.issue(result, ids=["anna"], expires="2999-12-31")
    >>> print(issued)
    1 promise issued
    >>> ledger.promises()[["person", "state", "expires"]].values.tolist()
    [['anna', 'open', '2999-12-31']]
    >>> ledger.verify().valid
    True
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        actor: str | None = None,
        create: bool = True,
    ) -> None:
        self._database, self._actor = Database(place, create=create), actor

    # -- opening and closing ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Where it is; without a password."""
        return self._database.name

    @property
    def identity(self) -> str:
        """The name that was given to it when it was made; a copy has the same."""
        return self._database.identity

    def close(self) -> None:
        """Close all connections to the database."""
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.name!r})"

    # -- issuing ---------------------------------------------------------------------------------

    def issue(
        self,
        result: Explanations,
        ids: Ids = None,
        *,
        expires: datetime.date | str | None = None,
        existing: Existing = "refuse",
        replacing: Collection[int] | None = None,
        wording: Wording | None = None,
        check: bool = True,
    ) -> Issued:
        """Promise the answers of a result to their people: all of them, or none if any is refused.

        Rows without an answer, and people who are accepted today, are passed over. An answer that is in
        the ledger already, for the same person, on the same terms and until the same day, is not issued
        twice, so that a call that was interrupted can be repeated.

        Parameters
        ----------
        result
            Answers with certificates.
        ids
            Who the people are: the name of an id column of the results, a mapping from the label of a
            row to the id, or one id for each answer. Left out: the one id column.
        expires
            The last day on which the promises hold, ``2027-03-31`` or a date; None: no end.
        existing
            What to do where a person has another open promise of the same class, or stands in several
            rows: ``refuse``
            (nothing at all is issued), ``add`` (all of them hold), or ``renew`` (the new ones take the
            place of those before).
        replacing
            Numbers of the promises whose place new ones may take; others stay. None: all.
        wording
            What to call things in the sentence that is kept.
        check
            Whether to check every certificate in exact arithmetic first.

        Raises
        ------
        LedgerError
            Somebody has no id, an answer has no certificate, or one that proves less than is said;
            a last day that is over; a person has an open promise; or the promises of the ledger are
            about another table.
        """
        _check_existing(existing)
        if isinstance(result, Explanation):
            result = Explanations([result])
        if not len(result):
            return Issued((), ())
        people, skipped, drafts = people_of(result, ids), [], list[Draft]()
        setting = setting_of(result)
        documents = terms_documents(setting, result[0].target, result.provenance)
        (_, model), terms = documents[:2], documents[-1].digest
        label = result[0].label
        check_answers(result, setting.model)
        row = -1
        for e, person in zip(result, people, strict=True):
            row += e.rank == 0 or row < 0  # several answers of one row follow each other
            if e.target != result[0].target:
                raise LedgerError(
                    "answers for several classes are issued one class at a time", name="result"
                )
            if reason := nothing_to_promise(e):
                skipped.append(Skipped(e.index, reason))
            else:
                drafts.append(draft(e, person, terms, wording, row=row, check=check))
        if not drafts:
            return Issued((), (), tuple(skipped))
        with self._database.write(self._actor) as writer:
            last = _day(expires, writer.time)
            _check_same_table(latest_model(writer.connection), setting.schema)
            check_current(writer.connection, setting.model, model.digest)
            writer.keep(documents)
            known = known_promises(writer.connection, drafts, writer.time)
            ids_, new = issue_drafts(
                writer, drafts, last, known, existing, label=label, replacing=replacing
            )
        growing = () if last is None else growing_features(result, setting.schema)
        return Issued(tuple(ids_), tuple(new), tuple(skipped), growing)

    def issue_folder(
        self,
        folder: str | os.PathLike[str],
        ids: str | Mapping[Any, object] | None = None,
        *,
        expires: datetime.date | str | None = None,
        existing: Existing = "refuse",
        wording: Wording | None = None,
        check: bool = True,
    ) -> IssuedFolder:
        """Promise the answers of a folder of results (``proplace explain --out``), of any size.

        The folder is read part by part, and each part is one transaction. A call that was interrupted,
        or refused in the middle, is repeated: what is in the ledger is not issued twice.

        Parameters
        ----------
        folder
            Results with certificates.
        ids
            The id column, or ids by the number of the row; no two rows may have the same. Left out:
            the one id column.
        expires, existing, wording, check
            As for :meth:`issue`.
        """
        _day(expires, now())  # wrong options are told before anything is read
        _check_existing(existing)
        new, known, skipped, growing = 0, 0, 0, tuple[str, ...]()
        for part in parts_of(folder, ids):
            some = [e for e in part if not nothing_to_promise(e)]
            issued = self.issue(
                Explanations(some, provenance=part.provenance),
                ids,
                expires=expires,
                existing=existing,
                wording=wording,
                check=check,
            )
            new += len(issued.new)
            known += len(issued.ids) - len(issued.new)
            skipped += len(part) - len(some)
            growing = issued.growing or growing
        return IssuedFolder(new, known, skipped, growing)

    # -- reading ---------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The end of the chain: keep it elsewhere, and ``verify(head)`` can tell later."""
        with self._database.read() as connection:
            return Head(*connection.execute(HEAD).one())

    def promises(
        self,
        person: object = None,
        state: State | None = None,
        *,
        as_of: datetime.date | str | None = None,
    ) -> pd.DataFrame:
        """Table of promises, one row each, with its number as index.

        Parameters
        ----------
        person, state
            Only those of a person, or in this state.
        as_of
            The day whose state is asked for; today if left out. It decides what is expired, nothing
            else.
        """
        day = _day(as_of, None)
        with self._database.read() as connection:
            rows = promise_rows(connection, person, state, day)
            return pd.DataFrame(rows, columns=_COLUMNS).set_index("id")

    def page(
        self,
        size: int = 50,
        *,
        before: int | None = None,
        person: str = "",
        state: State | None = None,
        as_of: datetime.date | str | None = None,
    ) -> pd.DataFrame:
        """One page of the table of promises, the latest first, whatever the size of the ledger.

        Parameters
        ----------
        size
            Largest number of rows.
        before
            Only promises with a smaller number: the last number of the page before.
        person
            Only people whose id holds this text, in upper or lower case.
        state
            Only promises in this state.
        as_of
            The day whose state is asked for; today if left out.
        """
        day = _day(as_of, None)
        with self._database.read() as connection:
            rows = page_rows(connection, size, before, person, state, day)
            return pd.DataFrame(rows, columns=_COLUMNS).set_index("id")

    def promise(self, number: int, *, as_of: datetime.date | str | None = None) -> Promise:
        """One promise, by its number."""
        with self._database.read() as connection:
            return promise_of(connection, number, _day(as_of, None))

    def entries(
        self,
        promise: int | None = None,
        *,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Entry]:
        """Iterate over everything that happened, in order, in bounded memory.

        Parameters
        ----------
        promise
            Only what happened to this one.
        kinds
            Only entries of these kinds, such as ``audited``.
        """
        e = tables.entries.c
        query = sa.select(tables.entries).order_by(e.seq)
        if promise is not None:
            query = query.where(e.promise == int(promise))
        if kinds is not None:
            query = query.where(e.kind.in_(list(kinds)))
        with self._database.read() as connection:
            found = connection.execute(query.execution_options(yield_per=PARAMETERS))
            yield from (Entry(*row) for row in found)

    def promised(self, model: object, *, as_of: datetime.date | str | None = None) -> Promised:
        """All open promises as a model encodes them: for :func:`proplace.retrain.repair`.

        Answers of models that encode their tables in another way are encoded anew.
        """
        whole = Model.of(model)
        names: list[str] = []
        people: list[str] = []
        targets: list[int] = []
        parts: list[tuple[Array, Array, Array]] = []
        bases: dict[str, Model] = {}
        with self._database.read() as connection:
            groups = open_groups(connection, _day(as_of, None), facts=True)
            for group in groups:
                bases[group.terms.digest] = base = group.terms.model
                point, _ = recoded(base, whole, group.points, group.points)
                low, high = recoded(base, whole, *_with_fills(group, whole))
                parts.append((point, np.minimum(low, point), np.maximum(high, point)))
                names += [str(number) for number in group.ids]
                named = with_classes_of(base, whole)
                targets += [named.target(group.terms.label)] * len(group.ids)
                people += group.people
        if not parts:
            empty = np.empty((0, whole.network.inputs))
            return Promised((), empty, np.array([], dtype=np.intp))
        points, lows, highs = (np.vstack(part) for part in zip(*parts, strict=True))
        boxed = bool((lows < highs).any())
        return Promised(
            tuple(names),
            points,
            np.array(targets, dtype=np.intp),
            lows if boxed else None,
            highs if boxed else None,
            tuple(people),
            None if whole.threshold is not None else one_cutoff([*bases.values()]),
        )

    def promised_set(self, model: object, *, as_of: datetime.date | str | None = None) -> Shifts:
        """The set of networks within which every open promise is proved, for a model.

        Where promises were made for several sets, it is what they have in common. Give it, or the
        ledger itself, to ``stay_within``, ``StayWithin`` and ``refit_within``: however often a model is
        retrained within it, every promise stays proved.

        Raises
        ------
        LedgerError
            Nothing is promised.
        DeltaError, InputError
            A promise is about models that this one cannot be compared with, or the sets have nothing in
            common.
        """
        with self._database.read() as connection:
            groups = open_groups(connection, _day(as_of, None))
            terms = {group.terms.digest: group.terms for group in groups}
        return common_shifts(Model.of(model), list(terms.values()))

    # -- a retrained model -----------------------------------------------------------------------

    def audit(
        self,
        new_model: object,
        *,
        as_of: datetime.date | str | None = None,
        record: bool = True,
    ) -> Audit:
        """Say of every open promise what a retrained model makes of it.

        Parameters
        ----------
        new_model
            The retrained model: a pipeline, a module, a file, a :class:`Model` or a bare
            :class:`Network` that takes the rows of the promised model. It is read with the cut-off of
            the promises, unless it states its own: ``Model.of(new_model, cutoff=...)``.
        as_of
            The day on which promises must be open; today if left out.
        record
            Whether to write the audit down: the model, the verdicts, their counts.
        """
        from proplace.ledger.audit import Auditor  # noqa: PLC0415  (it knows ledgers)

        day = _day(as_of, None)
        auditor = Auditor(new_model)
        with self._database.read() as connection:
            head = Head(*connection.execute(HEAD).one())
            for group in open_groups(connection, day, facts=True):
                auditor.judge(group)
            auditor.describe(latest_model(connection))
        audit = auditor.audit(self, str(day), head)
        if not record:
            return audit
        with self._database.write(self._actor) as writer:
            return auditor.recorded(audit, writer)

    # -- what becomes of promises ----------------------------------------------------------------

    def set_current_model(self, model: object, note: str = "") -> Entry:
        """Set the model that decides from now on: :meth:`redeem` uses it unless another is given.

        Parameters
        ----------
        model
            Anything that :meth:`proplace.Model.of` takes. Its columns must have names, be described
            (:meth:`proplace.Model.with_schema`), or be those of the latest promise.
        note
            Reason. It stays in the ledger forever, so give no personal data.
        """
        with self._database.read() as connection:
            base = latest_model(connection)
        named = check_named(Model.of(model)) if base is None else reading(model, base)
        documents = model_documents(named)
        with self._database.write(self._actor) as writer:
            writer.keep(documents)
            return writer.append("adopted", {"model": documents[-1].digest, "note": note})

    def approve(self, audit: int, note: str = "") -> Entry:
        """Approve an audited model and make it the current one.

        Parameters
        ----------
        audit
            Number of the audit (:attr:`Audit.number`).
        note
            Reason. It stays in the ledger forever, so give no personal data.

        Raises
        ------
        LedgerError
            There is no such audit, or the columns of the model are not those of the promises.
        """
        with self._database.write(self._actor) as writer:
            model = str(audited(writer.connection, audit)["model"])
            entry = writer.append("decided", {"audit": int(audit), "go": True, "note": note})
            base = latest_model(writer.connection)
            read = Archive(writer.connection).model(model).schema.by_name
            if base is not None and not set(read) & set(base.schema.by_name):
                raise LedgerError(
                    f"audit {audit} is of a model whose columns do not have the names of the promises; "
                    "describe them with Model.of(model).with_schema(schema), audit it and approve "
                    "that audit",
                    name="audit",
                    value=audit,
                )
            writer.append("adopted", {"model": model, "note": f"audit {audit}: {note}"})
        return entry

    def reject(self, audit: int, note: str = "") -> Entry:
        """Record that an audited model does not become the current one.

        Parameters
        ----------
        audit
            Number of the audit (:attr:`Audit.number`).
        note
            Reason. It stays in the ledger forever, so give no personal data.

        Raises
        ------
        LedgerError
            There is no such audit.
        """
        with self._database.write(self._actor) as writer:
            audited(writer.connection, audit)
            return writer.append("decided", {"audit": int(audit), "go": False, "note": note})

    def verdicts(
        self, audit: int, only: Collection[Verdict] | None = None, *, size: int | None = None
    ) -> pd.DataFrame:
        """Return the verdicts of an audit, one row per promise, with person and margin.

        The index is the number of the promise. The person and the sentence are None once the person is
        erased.

        Parameters
        ----------
        audit
            Number of the audit.
        only
            The verdicts to return; None for all.
        size
            Largest number of rows; None for any.
        """
        v, own, p = tables.verdicts.c, tables.personal.c, tables.promises.c
        query = (
            sa.select(v.promise, own.person, v.verdict, v.margin, p.expires, own.facts)
            .join_from(tables.verdicts, tables.promises, p.id == v.promise)
            .join(tables.personal, own.entry == v.promise, isouter=True)
            .where(v.audit == int(audit))
            .order_by(v.promise)
            .limit(size)
        )
        if only is not None:
            query = query.where(v.verdict.in_(list(only)))
        rows = []
        with self._database.read() as connection:
            audited(connection, audit)  # raises if there is no such audit
            for *row, facts in connection.execute(query):
                rows.append([*row, None if facts is None else json.loads(facts)["sentence"]])
        columns = ["promise", "person", "verdict", "margin", "expires", "sentence"]
        frame = pd.DataFrame(rows, columns=columns, dtype=object).set_index("promise")
        return frame.astype({"margin": float})

    def redeem(
        self,
        promise: int,
        person: object,
        model: object = None,
        *,
        as_of: datetime.date | str | None = None,
        record: bool = True,
    ) -> Redemption:
        """Look whether a person who comes back has what was promised, and write it down.

        A person whom the model in use accepts has redeemed the promise, which is closed then; a person
        whom it refuses was presented, and the promise stays open.

        Parameters
        ----------
        promise
            Number of the promise.
        person
            What the person is now, in original units: a dictionary, a row of a table, or a table of one
            row, with all the columns that the models look at.
        model
            The model that decides. Left out: the current one (:meth:`set_current_model`), else that of
            the promise.
        as_of
            The day on which the person came; today if left out.
        record
            False: look only.

        Raises
        ------
        LedgerError
            The promise is expired, or no longer open.
        InputError
            A cell is missing or cannot be read.
        """
        day = str(_day(as_of, None))
        with self._database.read() as connection:
            redemption, seen, in_use = _presented(connection, promise, person, model, day)
        if not record:
            return redemption
        given = None if model is None else in_use
        with self._database.write(self._actor) as writer:
            # the promise may be closed by now, and another model may be the current one
            redemption, seen, in_use = _presented(
                writer.connection, promise, person, model, day, in_use=given
            )
            entry = write(writer, redemption, seen, model_documents(in_use))
        return replace(redemption, entry=entry)

    def attempts(self, promise: int) -> pd.DataFrame:
        """List each return of the person: the day, the verdict, and the person at that time.

        The index is the number of the entry. The table is empty once the person is erased.
        """
        e, own = tables.entries.c, tables.personal.c
        query = (
            sa.select(e.seq, e.time, e.body, own.facts)
            .join_from(tables.entries, tables.personal, own.entry == e.seq)
            .where(e.promise == int(promise), e.kind.in_(("redeemed", "presented")))
            .order_by(e.seq)
        )
        rows = []
        with self._database.read() as connection:
            for seq, time, body, facts in connection.execute(query):
                said, seen = json.loads(body), json.loads(facts)
                rows.append([seq, time, said["day"], said["verdict"], seen["words"], seen["row"]])
        columns = ["entry", "time", "day", "verdict", "words", "row"]
        return pd.DataFrame(rows, columns=columns).set_index("entry")

    def withdraw(self, promise: int, reason: str) -> None:
        """Take a promise back; the reason stays in the ledger for good (no personal data in it)."""
        with self._database.write(self._actor) as writer:
            found = promise_of(writer.connection, promise, writer.time[:10])
            if found.state != "open":
                raise LedgerError(
                    f"promise {found.id} is {found.state}, no longer open",
                    name="promise",
                    value=found.id,
                )
            if re.search(
                rf"(?<!\w){re.escape(found.person or '')}(?!\w)",
                unicodedata.normalize("NFC", reason),
            ):
                raise LedgerError(
                    "the reason names the person, and it stays when the person is erased; say it "
                    "without the id",
                    name="reason",
                )
            writer.append("withdrawn", {"reason": reason}, int(promise))

    def erase(self, *people: object) -> tuple[int, ...]:
        """Erase all that is known about people, for good: promises, answers, certificates, their ids.

        What stays is that there were promises, when, and on which terms. The chain holds as before. The
        database writes its files anew, once for all of the people, so that none of the bytes are left in
        them; its backups are yours to care for, and so is PostgreSQL's write-ahead log. A call that was
        interrupted, or that found the files in use, is to be repeated.

        Returns
        -------
            The numbers of the promises that were theirs; empty where nobody of them is known.
        """
        own, who = (
            tables.personal.c,
            sorted({one for one in map(person_id, people) if one is not None}),
        )
        theirs: dict[int, list[int]] = {}
        with self._database.write(self._actor) as writer:
            for start in range(0, len(who), PARAMETERS):
                part = who[start : start + PARAMETERS]
                found = writer.connection.execute(
                    sa.select(own.entry, tables.entries.c.promise)
                    .join_from(tables.personal, tables.entries, own.entry == tables.entries.c.seq)
                    .where(own.person.in_(part))
                    .order_by(own.entry)
                )
                for entry, number in found:
                    theirs.setdefault(number, []).append(entry)
                writer.connection.execute(tables.personal.delete().where(own.person.in_(part)))
            for number, entries in sorted(theirs.items()):
                writer.append("erased", {"entries": entries}, number)
        self._database.forget()
        return tuple(sorted(theirs))

    def verify(self, head: Head | str | None = None) -> Verification:
        """Look whether everything is as it was written.

        Parameters
        ----------
        head
            A head of the chain that was kept elsewhere: entries up to it must be the same today.
        """
        expected = Head.parse(head) if isinstance(head, str) else head
        with self._database.read() as connection:
            return Verifier(connection, expected).verify()


def _presented(
    connection: sa.Connection,
    number: int,
    person: object,
    model: object,
    day: str,
    *,
    in_use: Model | None = None,
) -> tuple[Redemption, Seen, Model]:
    """Compare a person with an open promise; return the deciding model, read from ``model``, too."""
    found = promise_of(connection, number, day)
    check_open(found, renewed_into(connection, found.id), day)
    in_use = in_use or model_in_use(connection, found, model)
    return (*presented(found, person, in_use, day), in_use)


def _check_same_table(latest: Model | None, schema: Schema) -> None:
    """Refuse promises of another table: a model decides about all promises of a ledger."""
    if latest is not None and not set(latest.schema.by_name) & set(schema.by_name):
        raise LedgerError(
            f"the promises of this ledger are about a table with {listing(latest.schema.by_name)}, and "
            "none of these columns is in the new answers; a ledger is for one decision, so issue them "
            "into a ledger of their own",
            name="result",
        )


def _check_existing(existing: object) -> None:
    if existing not in ("refuse", "add", "renew"):
        raise LedgerError(
            f"existing must be 'refuse', 'add' or 'renew', not {existing!r}",
            name="existing",
            value=existing,
        )


def _with_fills(group: OpenPromises, model: Model) -> tuple[Array, Array]:
    """Ends of the boxes of promises; with missing cells also as the model fills them in."""
    again = reimputed(group, model)
    if again is None:
        return group.low, group.high
    low, high = group.low.copy(), group.high.copy()
    low[again.rows] = np.minimum(low[again.rows], again.low)
    high[again.rows] = np.maximum(high[again.rows], again.high)
    return low, high


def _day(given: datetime.date | str | None, issued: str | None) -> str | None:
    """Read a day. A last day must not be over when a promise is ``issued``; else None is today."""
    if given is None:
        return now()[:10] if issued is None else None
    try:
        date = given if isinstance(given, datetime.date) else datetime.date.fromisoformat(given)
        day = datetime.date(date.year, date.month, date.day).isoformat()  # there is none of pd.NaT
    except (TypeError, ValueError):
        raise LedgerError(
            f"{given!r} is no day; give one such as 2027-03-31", name="day", value=given
        ) from None
    if issued is not None and day < issued[:10]:
        raise LedgerError(
            f"the last day {day} is over: today is {issued[:10]}; give a later one",
            name="expires",
            value=given,
        )
    return day
