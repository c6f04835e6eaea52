"""A ledger of promises: their recipients, terms and history."""

from __future__ import annotations

import datetime
import json
import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd

from proplace.core.errors import LedgerError
from proplace.core.network import Network
from proplace.core.options import integer, one_of
from proplace.core.progress import progress_bar
from proplace.core.text import listing
from proplace.explain.results import Explanation, Explanations
from proplace.ledger import tables
from proplace.ledger.chain import KINDS, Entry, Head, Verification, Verifier
from proplace.ledger.database import Database
from proplace.ledger.issue import (
    Draft,
    Existing,
    Issued,
    IssuedFolder,
    Skipped,
    check_answers,
    check_current,
    draft,
    growing_features,
    issue_drafts,
    parts_of,
    people_of,
    setting_of,
    skip_reason,
)
from proplace.ledger.promise import (
    HEAD,
    audited,
    entry_number,
    latest_model,
    open_groups,
    page_rows,
    person_id,
    promise_of,
    promise_rows,
    renewed_into,
    without_verdict,
)
from proplace.ledger.redeem import (
    Redemption,
    check_named,
    check_open,
    compare,
    model_in_use,
    reading,
    write,
)
from proplace.ledger.tables import PARAMETERS, now, sa
from proplace.ledger.terms import Archive, common_shifts, model_documents, terms_documents
from proplace.ledger.verdicts import VERDICTS, reimputed
from proplace.loaders.model import Model
from proplace.retrain.promised import Part, Promised, joined

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping
    from types import TracebackType

    from proplace.core.shifts import Shifts
    from proplace.explain.words import Wording
    from proplace.ledger.audit import Audit
    from proplace.ledger.issue import Ids
    from proplace.ledger.promise import OpenPromises, Promise, State
    from proplace.ledger.redeem import Applicant
    from proplace.ledger.verdicts import Verdict
    from proplace.schema import Schema


_COLUMNS = ["id", "person", "state", "issued", "expires", "target", "sentence", "model", "terms"]


class Ledger:
    """A database of promises with a tamper-evident history (extra ``ledger``).

    Parameters
    ----------
    place
        Path of a SQLite file, or ``postgresql://user@host/name``.
    actor
        Person or program that writes, noted in every entry. Default: none.
    create
        Create the ledger if it is missing. With False a missing ledger is an error.

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
        """The path or address, without a password."""
        return self._database.name

    @property
    def identity(self) -> str:
        """The identifier in the first entry. A copy of the ledger has the same one."""
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
        replaces: Collection[int] | None = None,
        wording: Wording | None = None,
        check: bool = True,
    ) -> Issued:
        """Promise the counterfactuals of a result to their people: all of them, or none.

        Rows without a counterfactual, and people who are accepted today, are skipped. A counterfactual
        that the same person already holds, with the same terms and expiry date, is not issued twice, so
        an interrupted call can be repeated.

        Parameters
        ----------
        result
            Explanations with certificates.
        ids
            Name of an id column, mapping from the label of a row to the id, or one id per explanation.
            Default: the only id column.
        expires
            Expiry date, ``2027-03-31`` or a date. The promises are valid through this day. None: no end.
        existing
            Treatment of people with another open promise of the same class, or with several rows:
            ``refuse`` (issue nothing), ``add`` (all promises hold), or ``renew`` (the new promises
            replace the old ones).
        replaces
            Numbers of the promises that may be replaced. None: all.
        wording
            Words for the stored sentence.
        check
            Check every certificate in exact arithmetic first.

        Raises
        ------
        LedgerError
            A person has no id, or an open promise. A certificate is missing or proves too little. The
            expiry date is over. The ledger is about another table, or its current model is another one.
        """
        one_of("existing", existing, get_args(Existing))
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
            row += e.rank == 0 or row < 0  # alternatives of one row follow each other
            if e.target != result[0].target:
                raise LedgerError(
                    "the result has several target classes. Issue one class at a time",
                    name="result",
                )
            if reason := skip_reason(e):
                skipped.append(Skipped(e.index, reason))
            else:
                drafts.append(draft(e, person, terms, wording, row=row, check=check))
        if not drafts:
            return Issued((), (), tuple(skipped))
        with self._database.write(self._actor) as writer:
            last = _expiry(expires, writer.time)
            latest = latest_model(writer.connection)
            if latest is not None and not _same_table(latest, setting.schema):
                raise LedgerError(
                    "the promises of this ledger are about a table with "
                    f"{listing(latest.schema.by_name)}, and the new counterfactuals have none of these "
                    "columns. Issue them into a ledger of their own",
                    name="result",
                )
            check_current(writer.connection, setting.model, model.digest)
            writer.store_documents(documents)
            ids_, new = issue_drafts(writer, drafts, last, existing, label=label, replaces=replaces)
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
        progress: bool = False,
    ) -> IssuedFolder:
        """Promise the counterfactuals of a results folder (``proplace explain --out``) of any size.

        Each part of the folder is one transaction. An interrupted call can be repeated, since nothing is
        issued twice.

        Parameters
        ----------
        folder
            Results with certificates.
        ids
            Id column, or ids by the number of the row. No two rows may have the same id. Default: the
            only id column.
        expires, existing, wording, check
            As for :meth:`issue`.
        progress
            Show progress on standard error.
        """
        _expiry(expires, now())  # reject wrong options before anything is read
        one_of("existing", existing, get_args(Existing))
        new, known, skipped, growing = 0, 0, 0, tuple[str, ...]()
        rows, parts = parts_of(folder, ids)
        with progress_bar("issue", rows, show=progress) as advance:
            for part in parts:
                some = [e for e in part if not skip_reason(e)]
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
                advance(len(part))
        return IssuedFolder(new, known, skipped, growing)

    # -- reading ---------------------------------------------------------------------------------

    @property
    def head(self) -> Head:
        """The end of the hash chain. Store it elsewhere for a later ``verify(head)``."""
        with self._database.read() as connection:
            return Head(*connection.execute(HEAD).one())

    def promises(
        self,
        person: object = None,
        state: State | None = None,
        *,
        as_of: datetime.date | str | None = None,
    ) -> pd.DataFrame:
        """Return a table of promises, indexed by their numbers.

        Parameters
        ----------
        person, state
            Person or state of the promises to return. Default: all.
        as_of
            Day of the state, which decides only about expiry. Default: today.
        """
        with self._database.read() as connection:
            rows = promise_rows(connection, _day(as_of), person, state)
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
        """Return one page of the table of promises, the latest first, from a ledger of any size.

        Parameters
        ----------
        size
            Largest number of rows.
        before
            Number above all numbers of the page: the last one of the previous page.
        person
            Part of the id of a person, in upper or lower case. Default: all people.
        state
            State of the promises. Default: all.
        as_of
            Day of the state. Default: today.
        """
        with self._database.read() as connection:
            rows = page_rows(connection, _day(as_of), person, state, size, before)
            return pd.DataFrame(rows, columns=_COLUMNS).set_index("id")

    def promise(self, number: int, *, as_of: datetime.date | str | None = None) -> Promise:
        """Return one promise by its number."""
        with self._database.read() as connection:
            return promise_of(connection, number, _day(as_of))

    def entries(
        self,
        promise: int | None = None,
        *,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Entry]:
        """Iterate over the entries in order, in bounded memory.

        Parameters
        ----------
        promise
            Number of a promise. Default: entries of all promises, and of none.
        kinds
            Kinds of entries, such as ``audited``. Default: all.
        """
        e = tables.entries.c
        query = sa.select(tables.entries).order_by(e.seq)
        if promise is not None:
            query = query.where(e.promise == entry_number("promise", promise))
        if kinds is not None:
            query = query.where(e.kind.in_([one_of("kinds", kind, KINDS) for kind in kinds]))
        query = query.execution_options(yield_per=PARAMETERS)
        # A caller may stop early, and PostgreSQL needs its cursor closed then.
        with self._database.read() as connection, connection.execute(query) as found:
            yield from (Entry(*row) for row in found)

    def promised(self, model: object, *, as_of: datetime.date | str | None = None) -> Promised:
        """Return all open promises as a model encodes them, for :func:`proplace.retrain.repair`."""
        whole = Model.of(model)
        with self._database.read() as connection:
            groups = open_groups(connection, _day(as_of), facts=True)
            return joined(whole, (_part(group, whole) for group in groups))

    def promised_set(self, model: object, *, as_of: datetime.date | str | None = None) -> Shifts:
        """Return the shift set in which every open promise is proved, for a model.

        It is the intersection of the promised shift sets. Pass it, or the ledger, to ``stay_within``,
        ``StayWithin`` and ``refit_within``: every promise stays proved after any number of retrainings
        within it.

        Raises
        ------
        LedgerError
            No promise is open.
        DeltaError, InputError
            The model cannot be compared with a promised one, or the intersection is empty.
        """
        with self._database.read() as connection:
            groups = open_groups(connection, _day(as_of))
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
        """Evaluate a retrained model against every open promise.

        Parameters
        ----------
        new_model
            Retrained pipeline, module, file, :class:`Model`, or :class:`Network` for the rows of the
            promised model. It gets the cut-off of the promises, unless it states its own:
            ``Model.of(new_model, cutoff=...)``.
        as_of
            Day on which the promises must be open. Default: today.
        record
            Record the model, the verdicts and their counts.
        """
        from proplace.ledger.audit import Auditor  # noqa: PLC0415  (it imports ledgers)

        day = _day(as_of)
        auditor = Auditor(new_model)
        with self._database.read() as connection:
            head = Head(*connection.execute(HEAD).one())
            for group in open_groups(connection, day, facts=True):
                auditor.evaluate(group)
            auditor.describe(latest_model(connection))
        audit = auditor.audit(self, day, head)
        if not record:
            return audit
        with self._database.write(self._actor) as writer:
            return auditor.record(audit, writer)

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
        # read before the transaction, so that others need not wait
        source = model if isinstance(model, Network) else Model.of(model)
        with self._database.write(self._actor) as writer:
            base = latest_model(writer.connection)
            named = check_named(Model.of(source)) if base is None else reading(source, base)
            if not _same_table(base, named.schema):
                raise LedgerError(
                    "the columns of the model do not have the names of the promises. Describe them with "
                    "Model.of(model).with_schema(schema), or start a ledger for each decision",
                    name="model",
                )
            documents = model_documents(named)
            writer.store_documents(documents)
            return writer.append("model_set", {"model": documents[-1].digest, "note": note})

    def approve(self, audit: int, note: str = "") -> Entry:
        """Approve an audited model and make it the current one.

        The audit must have a verdict on every promise that is open today.

        Parameters
        ----------
        audit
            Number of the audit (:attr:`Audit.number`).
        note
            Reason. It stays in the ledger forever, so give no personal data.

        Raises
        ------
        LedgerError
            There is no such audit, it has no verdict on an open promise, or the columns of the model
            are not those of the promises.
        """
        with self._database.write(self._actor) as writer:
            model = str(audited(writer.connection, audit)["model"])
            if missed := without_verdict(writer.connection, audit, writer.time[:10]):
                raise LedgerError(
                    f"audit {audit} has no verdict on {missed:,} of the open promises. Audit the model "
                    "again and approve that audit",
                    name="audit",
                    value=audit,
                )
            entry = writer.append("approved", {"audit": int(audit), "note": note})
            read = Archive(writer.connection).model(model).schema
            if not _same_table(latest_model(writer.connection), read):
                raise LedgerError(
                    f"audit {audit} is of a model whose columns do not have the names of the promises. "
                    "Describe them with Model.of(model).with_schema(schema), audit it and approve "
                    "that audit",
                    name="audit",
                    value=audit,
                )
            writer.append("model_set", {"model": model, "note": f"audit {audit}: {note}"})
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
            return writer.append("rejected", {"audit": int(audit), "note": note})

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
            The verdicts to return. None for all.
        size
            Largest number of rows. None for all.
        """
        v, own, p = tables.verdicts.c, tables.personal.c, tables.promises.c
        query = (
            sa.select(v.promise, own.person, v.verdict, v.margin, p.expires, own.facts)
            .join_from(tables.verdicts, tables.promises, p.id == v.promise)
            .join(tables.personal, own.entry == v.promise, isouter=True)
            .where(v.audit == entry_number("audit", audit))
            .order_by(v.promise)
            .limit(None if size is None else integer("size", size))
        )
        if only is not None:
            query = query.where(v.verdict.in_([one_of("only", name, VERDICTS) for name in only]))
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
        """Compare a returning person with their promise, and record the outcome.

        If the model accepts the person, the promise is redeemed and closed. Otherwise the attempt is
        recorded, and the promise stays open.

        Parameters
        ----------
        promise
            Number of the promise.
        person
            The person today, in original units: a dictionary, a row of a table, or a table of one row,
            with all columns of the models.
        model
            Model that decides. Default: the current one (:meth:`set_current_model`), else that of the
            promise.
        as_of
            Day of the visit. Default: today.
        record
            Record the outcome.

        Raises
        ------
        LedgerError
            The promise is expired, or no longer open.
        InputError
            A cell is missing, unreadable, or of a column that no model has.
        """
        day = _day(as_of)
        with self._database.read() as connection:
            redemption, seen, in_use = _compared(connection, promise, person, model, day)
        if not record:
            return redemption
        given = None if model is None else in_use
        with self._database.write(self._actor) as writer:
            # the promise may be closed by now, and another model may be the current one
            redemption, seen, in_use = _compared(
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
            .where(
                e.promise == entry_number("promise", promise),
                e.kind.in_(("redeemed", "attempted")),
            )
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
        """Withdraw a promise.

        Parameters
        ----------
        promise
            Number of the promise.
        reason
            Reason. It stays in the ledger forever, so give no personal data.
        """
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
                    "the reason contains the id of the person, and it stays after an erasure. Leave "
                    "the id out",
                    name="reason",
                )
            writer.append("withdrawn", {"reason": reason}, found.id)

    def erase(self, *people: object) -> tuple[int, ...]:
        """Erase all personal data of people: ids, values, counterfactuals, certificates.

        The number, dates and terms of their promises stay, and the hash chain stays valid. The database
        rewrites its files once, so that no bytes are left in them. Backups and the write-ahead log of
        PostgreSQL are not covered. Repeat a call that was interrupted, or that found the files in use.

        Returns
        -------
        tuple of int
            Numbers of the promises of these people.
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
        self._database.vacuum()
        return tuple(sorted(theirs))

    def verify(self, head: Head | str | None = None) -> Verification:
        """Confirm that nothing was changed since it was written.

        Parameters
        ----------
        head
            Chain head that was stored elsewhere. The entries up to it must be the same today.
        """
        expected = Head.parse(head) if isinstance(head, str) else head
        with self._database.read() as connection:
            return Verifier(connection, expected).verify()


def _compared(
    connection: sa.Connection,
    number: int,
    person: object,
    model: object,
    day: str,
    *,
    in_use: Model | None = None,
) -> tuple[Redemption, Applicant, Model]:
    """Compare a person with an open promise, and return the model that decides."""
    found = promise_of(connection, number, day)
    check_open(found, renewed_into(connection, found.id), day)
    in_use = in_use or model_in_use(connection, found, model)
    return (*compare(found, person, in_use, day), in_use)


def _same_table(latest: Model | None, schema: Schema) -> bool:
    """Test if the latest promise, if any, shares a column with a schema: a ledger is for one table."""
    return latest is None or bool(set(latest.schema.by_name) & set(schema.by_name))


def _part(group: OpenPromises, model: Model) -> Part:
    """Return open promises, with boxes that hold the values a model imputes for missing cells."""
    low, high = group.low, group.high
    again = reimputed(group, model)
    if again is not None:
        low, high = low.copy(), high.copy()
        low[again.rows] = np.minimum(low[again.rows], again.low)
        high[again.rows] = np.maximum(high[again.rows], again.high)
    names, labels = [str(number) for number in group.ids], [group.terms.label] * len(group.ids)
    return Part(group.terms.model, names, group.people, labels, group.points, low, high)


def _day(given: datetime.date | str | None) -> str:
    """Read a day. None is today."""
    if given is None:
        return now()[:10]
    try:
        date = given if isinstance(given, datetime.date) else datetime.date.fromisoformat(given)
        return datetime.date(date.year, date.month, date.day).isoformat()  # fails for pd.NaT
    except (TypeError, ValueError):
        raise LedgerError(
            f"{given!r} is no day. Give one such as 2027-03-31", name="day", value=given
        ) from None


def _expiry(given: datetime.date | str | None, time: str) -> str | None:
    """Read an expiry date, which must not be over at a time. None is no end."""
    if given is None:
        return None
    day = _day(given)
    if day < time[:10]:
        raise LedgerError(
            f"the expiry date {day} is over: today is {time[:10]}. Give a later one",
            name="expires",
            value=given,
        )
    return day
