"""Questions about many people: read, checked and answered in a process of their own.

To parse some megabytes and to make thousands of rows of them takes long enough for everybody else to
notice. Bodies that are not small are handed over as they came, and come back as what is answered.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from proplace.apps.serve import questions as q
from proplace.apps.serve.access import Refused
from proplace.apps.serve.models import Engines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from proplace.apps.serve.config import Config
    from proplace.apps.serve.live import Live
    from proplace.apps.serve.models import Source

SMALL = 32_768
"""Bytes of a body that is read where it came."""

Asked = TypeVar("Asked", bound=q.People)


def bulk_functions(config: Config, lives: Mapping[str, Live]) -> dict[str, Callable[..., Any]]:
    """What the process can be asked; each takes a body, and returns JSON."""
    engines, most = Engines(config, lives), config.limits.people

    def predict(source: Source, body: bytes) -> bytes:
        people = _read(q.People, body, most).people
        return _written(engines.get(source).predict(people))

    def certify(source: Source, body: bytes) -> bytes:
        asked = _read(q.Certify, body, most)
        return _written(engines.get(source).certify(asked.people, asked.target))

    def explain(source: Source, body: bytes) -> tuple[int, str]:
        """How many people there are, and the question for the job."""
        asked = _read(q.Explain, body, most)
        engines.get(source).frame(asked.people)
        return len(asked.people), json.dumps(explain_question(source, asked.people, asked.options))

    return {"predict": predict, "certify": certify, "explain": explain}


def explain_question(
    source: Source, people: Sequence[q.Person], options: q.Options
) -> dict[str, Any]:
    """What is kept of a job that explains: with the model that all of its people are asked of."""
    name, live = source
    return {
        "model": name,
        "live": None if live is None else vars(live),
        "people": list(people),
        "options": options.model_dump(),
    }


def check_count(people: Sequence[Any], most: int) -> None:
    """Refuse more people than one request may have."""
    if len(people) > most:
        raise Refused(413, f"{len(people)} people are more than the {most} of one request")


def told(errors: Sequence[Any], *place: str) -> Refused:
    """Which fields are wrong, without repeating what was sent: it may be personal."""
    said = [f"{'.'.join(map(str, (*place, *one['loc'])))}: {one['msg']}" for one in errors[:10]]
    return Refused(422, "; ".join(said))


def _read(kind: type[Asked], body: bytes, most: int) -> Asked:
    try:
        asked = kind.model_validate(json.loads(body))
    except ValidationError as error:
        raise told(error.errors(), "body") from None
    except (ValueError, RecursionError):
        raise Refused(422, "body: is no JSON") from None
    check_count(asked.people, most)
    return asked


def _written(answer: object) -> bytes:
    return json.dumps(answer, allow_nan=False).encode()
