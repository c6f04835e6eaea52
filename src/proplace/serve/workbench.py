"""The functions behind the pages: people, searches, verdicts and promises.

Searches run one after another in a separate thread. Everything else is computed in the calling thread,
also while a search runs. The ledger contains all permanent data. The latest people and answers are in
memory, under keys without personal data.
"""

from __future__ import annotations

import datetime
import hmac
import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pandas as pd

from proplace.certification import prove
from proplace.core.errors import LedgerError, OptionError, ProplaceError
from proplace.core.request import DEFAULT_TIME_LIMIT, Request
from proplace.core.text import short
from proplace.explain.proplace import Proplace
from proplace.explain.results import Explanations
from proplace.ledger.ledger import Ledger
from proplace.schema import Schema
from proplace.schema.features import Binary, Continuous, Ordinal
from proplace.schema.values import to_python
from proplace.serve import uploads
from proplace.serve.forms import FieldErrors, hint_of, read_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proplace.core.network import Array
    from proplace.explain.results import Explanation
    from proplace.ledger.promise import Promise
    from proplace.ledger.redeem import Redemption
    from proplace.project import OpenedProject
    from proplace.schema.rules import AnyFeature

    Values = Mapping[str, Any]

log = logging.getLogger("proplace.serve")

MOST_FOUND = 20
"""People that a lookup lists."""
STATES = ("open", "expired", "redeemed", "renewed", "withdrawn", "erased")
_LARGEST = 2**62
_REMEMBERED = 200  # people, and answers
_WAITING = 40  # searches
_VERDICT_SECONDS = 2.0
_RANGE = (0.01, 0.99)  # quantiles of the training rows at the ends of a bar

K = TypeVar("K")


class NotReadyError(ProplaceError):
    """Raised while the model and its tables are being read."""


class BusyError(ProplaceError):
    """Raised if too many searches are waiting."""


class GoneError(ProplaceError, LookupError):
    """Raised if a person or an answer is no longer in memory."""


@dataclass(frozen=True, eq=False)
class Case:
    """A person and today's decision.

    Attributes
    ----------
    key
        Address of the person in this process, without personal data.
    id
        The user's own id. Empty if the person was entered by hand.
    given, row
        The person in original units, and encoded.
    accepted
        True if the model gives the target class today.
    """

    key: str
    id: str
    given: dict[str, Any]
    row: Array
    accepted: bool


@dataclass(frozen=True, eq=False)
class Answer:
    """A search for one person, running or done."""

    key: str
    case: Case
    request: Request
    result: Future[Explanations]
    started: float = field(default_factory=time.monotonic)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the search. Return False if it still runs."""
        try:
            self.result.result(timeout=seconds)
        except TimeoutError:
            return False
        return True

    def share(self, seconds: float) -> float:
        """Return how much of its time a search has used, between 0 and 1."""
        return min((time.monotonic() - self.started) / seconds, 1.0)


class Recent(Generic[K]):
    """The most recently used values, by key."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, K] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> K | None:
        """Return a value and mark it as the most recent one. None if it is unknown."""
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
            return found

    def put(self, key: str, value: K) -> K:
        """Store a value and drop the oldest ones."""
        with self._lock:
            self._known[key] = value
            self._known.move_to_end(key)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return value


class Workbench:
    """One model, its people, its searches and its ledger.

    Parameters
    ----------
    opening
        Function that returns the opened project. It runs in a thread, so that pages are served at once.
    time_limit
        Seconds for each search.
    """

    def __init__(
        self, opening: Callable[[], OpenedProject], *, time_limit: float = DEFAULT_TIME_LIMIT
    ) -> None:
        self._opening, self.seconds = opening, time_limit
        self._secret = secrets.token_bytes(32)
        self._searches = ThreadPoolExecutor(1, "search")
        self._waiting, self._asking, self._auditing = 0, threading.Lock(), threading.Lock()
        self.cases, self.answers = Recent[Case](), Recent[Answer]()
        self.opened, self.ready = threading.Event(), threading.Event()
        self.step, self.error = "reading the model and its tables", ""

    def start(self) -> None:
        """Read all files and prepare the first search. Call it once, from any thread."""
        try:
            self.project = self._opening()
            self.ledger = None
            if self.project.ledger is not None:
                self.ledger = Ledger(self.project.ledger, actor="workbench", create=False)
            model, target = self.project.model, self.project.target
            self.schema, self.target = model.schema, model.target(target)
            self.ranges = _ranges(self.schema, self.project.train)
            self.step = "reading the training rows"
            self.opened.set()
            options = {**self.project.explainer, "time_limit": self.seconds}
            self._explainer = Proplace(model, self.project.delta, **options)
            self._explainer.fit(self.project.train)
            self.step = "finding people who are accepted robustly"
            self._explainer.prepare_once(self._complete(self.request({})))
            self.schema = self._explainer.schema_
            self.ready.set()
        except Exception as error:
            self.error = str(error) if isinstance(error, ProplaceError) else repr(error)
            raise

    def close(self) -> None:
        """End the searches and close the ledger."""
        self._searches.shutdown(wait=False, cancel_futures=True)
        if getattr(self, "ledger", None) is not None:
            self.book.close()

    @property
    def book(self) -> Ledger:
        """The ledger. Raises if the project has none."""
        self.check_opened()
        if self.ledger is None:
            raise LedgerError(
                "The project has no ledger, so nothing can be promised. Add the key ledger to its file."
            )
        return self.ledger

    @property
    def explainer(self) -> Proplace:
        """The fitted explainer. Waits for it, because fitting takes a moment after the start."""
        if not self.ready.wait(self.seconds):
            raise NotReadyError(f"Not ready yet: {self.step}. Try again in a moment.")
        return self._explainer

    def check_opened(self) -> None:
        """Raise unless the model and the tables are read."""
        if not self.opened.is_set():
            raise NotReadyError(f"Not ready yet: {self.step}. Try again in a moment.")

    def outcome(self, *, accepted: bool) -> str:
        """Return the word for today's decision."""
        classes = self.project.model.classes
        if accepted:
            return self.project.wording.outcome(self.target, classes)
        if len(classes) == 2:
            return self.project.wording.outcome(1 - self.target, classes)
        return f"not {self.project.wording.outcome(self.target, classes)}"

    def facts(self) -> dict[str, Any]:
        """Describe the model and its features as JSON can hold it."""
        self.check_opened()
        project, delta = self.project, self.project.delta
        return {
            "model": project.model.origin.name,
            "target": project.target,
            "outcome": self.outcome(accepted=True),
            "delta": delta if isinstance(delta, float) else delta.digest,
            "ledger": self.ledger is not None,
            "features": [_feature_facts(f, self.ranges.get(f.name)) for f in self.schema.features],
        }

    # -- people --------------------------------------------------------------------------------

    def find(self, text: str) -> tuple[list[str], int]:
        """Return the first ids that contain a text, and the number of such ids."""
        self.check_opened()
        people, text = self.project.people, text.strip().casefold()
        if people is None or not text:
            return [], 0
        found = [name for name in people.index if text in name.casefold()]
        found.sort(key=lambda name: (name.casefold() != text, len(name)))
        return found[:MOST_FOUND], len(found)

    def known(self, name: str) -> dict[str, Any] | None:
        """Return the values of a person of the table. None if the table has no such id."""
        self.check_opened()
        people = self.project.people
        if people is None or name not in people.index:
            return None
        row = people.loc[name]
        return {n: _plain(row[n]) for n in self.schema.by_name}

    def case(self, values: Values, name: str = "") -> Case:
        """Return a person with today's decision. Raise FieldErrors about all invalid values."""
        values = self.person(values)
        key = self._key("person", name, values)
        found = self.cases.get(key)
        if found is not None:
            return found
        frame, row = self._encoded(values)
        accepted = bool(self._labels(frame, row)[0] == self.project.target)
        return self.cases.put(key, Case(key, name, values, row[0], accepted))

    def person(self, values: Values) -> dict[str, Any]:
        """Return the values of a person as numbers and labels. Raise FieldErrors about invalid ones."""
        self.check_opened()
        missing = dict.fromkeys(self.schema.by_name)
        return self._read({**missing, **values})

    def _read(self, values: Values) -> dict[str, Any]:
        """Read values of some features. Raise FieldErrors about all invalid ones."""
        errors, found = FieldErrors(), dict[str, Any]()
        for name, given in values.items():
            feature = self.schema.by_name.get(name)
            if feature is None:
                errors.unknown(name, self.schema.by_name)
                continue
            if given is None or (isinstance(given, str) and not given.strip()):
                if feature.missing is None:
                    errors.add(name, f"give {hint_of(feature)}")
                found[name] = None
                continue
            found[name] = read_value(feature, given)
            frame = pd.DataFrame({name: pd.Series([found[name]])})
            if Schema([feature]).encode_people(frame)[1]:
                errors.add(name, f"{short(given)} cannot be used. Give {hint_of(feature)}")
        errors.raise_any()
        return found

    def _encoded(self, values: Values) -> tuple[pd.DataFrame, Array]:
        frame = pd.DataFrame({name: pd.Series([values[name]]) for name in self.schema.by_name})
        rows, problems = self.schema.encode_people(frame)
        if problems:
            raise FieldErrors({"": problems[0].reason})
        return frame, rows

    def _labels(self, frame: pd.DataFrame, rows: Array) -> Any:
        """Return the class of each row by the original model, or by its network without one."""
        model = self.project.model
        found = model.predict_original(frame)
        if found is not None:
            return found
        return [model.classes[number] for number in model.network.predict(rows)]

    def outside(self, case: Case) -> list[str]:
        """Return the titles of the person's numbers that lie outside their ranges."""
        numbers = np.flatnonzero(self.schema.outside(case.row[None])[0])
        return [self.schema.features[self.schema.columns[j].feature].title for j in numbers]

    # -- verdicts ------------------------------------------------------------------------------

    def verdict(
        self, case: Case, changes: Values, request: Request | None = None
    ) -> dict[str, Any]:
        """Decide about a person with other values: possible, accepted, and guaranteed."""
        schema = self.schema if request is None else self.schema.restrict(**request.restrictions)
        values = {**case.given, **self._read(changes)}
        frame, row = self._encoded(values)
        accepted = bool(self._labels(frame, row)[0] == self.project.target)
        problems = _problems(schema, case.row, row[0])
        guaranteed: bool | None = False
        margin = None
        if accepted and not problems:
            asked = self.explainer.for_request(self._complete(request or self.request({})))
            deadline = time.monotonic() + _VERDICT_SECONDS
            found = prove(asked.guarantee_, row, self.target, deadline=deadline)
            guaranteed = None if found.undecided[0] else bool(found.robust[0])
            margin = float(found.lower[0]) if np.isfinite(found.lower[0]) else None
        return {
            "possible": not problems,
            "problems": problems,
            "accepted": accepted,
            "outcome": self.outcome(accepted=accepted),
            "guaranteed": guaranteed,
            "margin": margin,
            "sentence": self._verdict_sentence(problems, guaranteed, accepted=accepted),
        }

    def _verdict_sentence(
        self, problems: list[str], guaranteed: bool | None, *, accepted: bool
    ) -> str:
        if problems:
            return f"Not possible: {'; '.join(problems)}."
        word = self.outcome(accepted=accepted)
        word = word[:1].upper() + word[1:]
        if not accepted:
            return f"{word}."
        if guaranteed is None:
            return f"{word} today. The guarantee was not decided in time."
        return f"{word}, and guaranteed." if guaranteed else f"{word} today, but not guaranteed."

    # -- searches ------------------------------------------------------------------------------

    def request(self, wishes: Mapping[str, Any]) -> Request:
        """Return a request, with the defaults of the workbench for all other fields."""
        own = {"count": 3, "prefer": "sparse", **self.project.request}
        usual = Request(self.target, **own)
        request = Request.from_dict(usual.to_dict() | dict(wishes))
        self.schema.restrict(**request.restrictions)  # raises about unknown features
        return request

    def _complete(self, request: Request) -> Request:
        """Return a request after the checks of the explainer."""
        wishes = request.to_dict()
        del wishes["target"]
        return self._explainer.request(self.project.target, **wishes)

    def explain(self, case: Case, request: Request) -> Answer:
        """Search for counterfactuals, or return the answer to an equal request."""
        self.check_opened()
        key = self._key("answer", case.key, request.to_dict())
        with self._asking:
            known = self.answers.get(key)
            if known is not None and not _failed(known):
                return known
            if self._waiting >= _WAITING:
                raise BusyError(f"{_WAITING} searches are waiting already. Try again in a moment.")
            self._waiting += 1
            result = self._searches.submit(self._search, case, request)
            return self.answers.put(key, Answer(key, case, request, result))

    def _search(self, case: Case, request: Request) -> Explanations:
        try:
            frame = pd.DataFrame(
                {name: pd.Series([case.given[name]]) for name in self.schema.by_name}
            )
            wishes = request.to_dict()
            del wishes["target"]
            return self.explainer.explain(frame, self.project.target, **wishes)
        finally:
            with self._asking:
                self._waiting -= 1

    def answer(self, key: str) -> Answer:
        """Return an answer by its address."""
        found = self.answers.get(key)
        if found is None:
            raise GoneError(
                "This answer is no longer in memory. Look up the person and search again."
            )
        return found

    # -- promises ------------------------------------------------------------------------------

    def issue(
        self, answer: Answer, way: int, person: str, expires: str | None, existing: str = "refuse"
    ) -> tuple[int, bool]:
        """Promise an alternative. Return the number, and True if the promise is new."""
        errors = FieldErrors()
        person = person.strip()
        if not person:
            errors.add("person", "Enter the id that this person has in your own files.")
        if expires is not None and not _is_day_to_come(expires):
            errors.add("expires", "Enter a future day, such as 2027-05-31.")
        errors.raise_any()
        if not answer.wait(self.seconds):
            raise BusyError("The search still runs. Try again in a moment.")
        book, result = self.book, answer.result.result()
        chosen = [e for e in result if e.found and e.rank == way]
        if not chosen or answer.case.accepted or chosen[0].status == "already_valid":
            raise LedgerError(
                "Nothing can be promised: this person needs no change, or none was found."
            )
        issued = book.issue(
            Explanations(chosen, provenance=result.provenance),
            [person],
            expires=expires,
            existing=existing,  # type: ignore[arg-type]
            wording=self.project.wording,
        )
        return issued.ids[0], bool(issued.new)

    def promises(
        self, person: str, state: str | None, before: int | None, size: int
    ) -> pd.DataFrame:
        """Return one page of promises, the latest first."""
        if state is not None and state not in STATES:
            raise OptionError(f"state must be one of {', '.join(STATES)}", name="state")
        number = None if before is None else max(0, min(before, _LARGEST))
        return self.book.page(size, before=number, person=person[:200], state=state)  # type: ignore[arg-type]

    def promise(self, number: int) -> Promise:
        """Return one promise."""
        return self.book.promise(min(number, _LARGEST))

    def promise_facts(self, number: int) -> dict[str, Any]:
        """Return one promise as JSON can hold it."""
        found = self.promise(number)
        explanation = found.explanation
        return {
            "id": found.id,
            "person": found.person,
            "state": found.state,
            "issued": found.issued,
            "expires": found.expires,
            "target": found.target,
            "explanation": None if explanation is None else explanation.to_dict(found.wording),
        }

    def redeem(self, number: int, values: Values, *, record: bool = True) -> Redemption:
        """Compare a returning person with their promise."""
        return self.book.redeem(min(number, _LARGEST), self.person(values), record=record)

    def audit(self, name: str, content: bytes) -> dict[str, Any]:
        """Audit an uploaded model in a child process, one at a time."""
        book = self.book
        with self._auditing:
            return uploads.audit(book, str(self.project.ledger), name, content)

    # -- keys ----------------------------------------------------------------------------------

    def _key(self, *parts: object) -> str:
        """Return a secret address for some values. Only this process can compute it."""
        text = json.dumps(parts, sort_keys=True, default=str)
        return hmac.new(self._secret, text.encode(), "sha256").hexdigest()[:24]


def _failed(answer: Answer) -> bool:
    return answer.result.done() and answer.result.exception() is not None


def _is_day_to_come(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text) >= datetime.datetime.now(datetime.UTC).date()
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    value = to_python(value)
    if isinstance(value, float) and np.isnan(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _problems(schema: Schema, before: Array, after: Array) -> list[str]:
    """Describe why a person cannot become another row. Empty if they can."""
    person, legal = schema.person(before), schema.widened(before).canonical(after)[0]
    found = []
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if not np.array_equal(legal[span], after[span]):
            found.append(f"{feature.title} is {hint_of(feature)}")
    return found or list(person.broken_rules(after))


def _ranges(schema: Schema, train: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the range of each number in the training rows."""
    found = {}
    for feature in schema.features:
        if isinstance(feature, Continuous):
            low, high = pd.to_numeric(train[feature.name]).quantile(list(_RANGE))
            found[feature.name] = (float(low), float(high))
    return found


def _feature_facts(feature: AnyFeature, people: tuple[float, float] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": feature.name,
        "title": feature.title,
        "kind": feature.kind,
        "hint": hint_of(feature),
        "immutable": feature.immutable,
    }
    if isinstance(feature, Continuous):
        facts |= {"lower": feature.lower, "upper": feature.upper, "step": feature.step}
        facts |= {"unit": feature.unit, "direction": feature.direction, "people": people}
    else:
        facts["values"] = list(feature.labels)
    if isinstance(feature, (Binary, Ordinal)):
        facts["direction"] = feature.direction
    return facts


def way_of(answer: Answer, way: int) -> Explanation:
    """Return one alternative of an answer that is done."""
    result = answer.result.result(timeout=0)
    for each in result:
        if each.rank == way:
            return each
    raise OptionError(f"This answer has no way {way + 1}.", name="way", value=way)
