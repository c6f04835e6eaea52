"""Schema files: YAML or JSON, made to be edited by hand.

::

    format: proplace-schema-1
    features:
    - {kind: continuous, name: age, lower: 17, upper: 90, step: 1, direction: increasing}
    - {kind: binary, name: sex, values: [Female, Male], immutable: true}
    rules:
    - kind: linear
      terms: {savings: 1, debt: -1}
      lower: 0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proplace.core import limits
from proplace.core.errors import SchemaError
from proplace.core.files import atomic_write
from proplace.core.text import VALUE, clipped, short, visible
from proplace.schema._parsers import (
    NotParsed,
    TooMuch,
    json_text,
    parse_json,
    parse_yaml,
    yaml_text,
)
from proplace.schema.validation import did_you_mean, differs, fields_of, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = "proplace-schema-1"
_YAML = (".yaml", ".yml")
_KEYS = ("format", "features", "rules")


def load(path: Path) -> dict[str, Any]:
    """Read a schema file: its features and rules as plain dictionaries."""
    suffix = _suffix(path)
    text = _text(path)
    try:
        raw = parse_yaml(text) if suffix in _YAML else parse_json(text)
    except TooMuch as error:
        raise SchemaError(f"{path.name}: {error}") from None
    except NotParsed as error:
        words = clipped(visible(" ".join(str(error).split())), 4 * VALUE)
        kind = "YAML" if suffix in _YAML else "JSON"
        raise SchemaError(f"{path.name}: not valid {kind}: {words}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else None
        raise SchemaError(
            f"{path.name}: not a schema file of this version: it must have 'format: {FORMAT}', "
            f"not {short(found)}"
        )
    for key in raw:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS)
            raise SchemaError(
                f"{path.name}: {short(key)} is not a known key{hint}; "
                f"known keys are {', '.join(_KEYS)}"
            )
    if not isinstance(raw.get("features"), list):
        raise SchemaError(f"{path.name}: 'features' must be a list of features")
    rules = raw.get("rules")
    # An empty 'rules:' line reads as nothing, and means no rules.
    return {"features": raw["features"], "rules": [] if rules is None else rules}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(limits.SCHEMA_BYTES + 1)
        if len(content) > limits.SCHEMA_BYTES:
            raise SchemaError(
                f"{path.name}: a schema file has at most {limits.SCHEMA_BYTES:,} bytes; is this one?"
            )
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise SchemaError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: cannot be read ({error})") from None


def save(path: Path, features: Sequence[Any], rules: Sequence[Any]) -> None:
    """Write a schema file; it appears whole or not at all."""
    text = text_of(features, rules, _suffix(path))
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def text_of(features: Sequence[Any], rules: Sequence[Any], suffix: str) -> str:
    """Return the text of a schema file: YAML or JSON, by its suffix."""
    data: dict[str, Any] = {"format": FORMAT, "features": [plain(part) for part in features]}
    if rules:
        data["rules"] = [plain(part) for part in rules]
    return yaml_text(data) if suffix in _YAML else json_text(data)


def plain(value: Any) -> Any:
    """Write a feature or rule as a dictionary: its kind first, defaults left out."""
    fields = {
        field.name: _plain(getattr(value, field.name), labels=field.name in _LABELS)
        for field in fields_of(value)
        if field.name != "kind" and differs(getattr(value, field.name), field.default)
    }
    return {"kind": value.kind, **fields}


_LABELS = ("levels", "categories", "values", "category", "when")


def _plain(value: Any, *, labels: bool) -> Any:
    """Write 17.0 as 17 where it is a number; a label stays what it is."""
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, labels=labels) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, labels=labels) for item in value]
    return whole(value) if isinstance(value, float) and not labels else value


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*_YAML, ".json"):
        raise SchemaError(f"{path.name}: the name must end in .yaml, .yml or .json")
    return suffix
