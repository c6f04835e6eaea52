"""The texts of the page: one file for each language, beside this module in ``texts``.

A language is added by a file of its own, such as ``de.yaml``. What it leaves out is said in English.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

ENGLISH = "en"


class Catalogue:
    """The texts of one language, by their keys.

    Examples
    --------
    >>> catalogue_for("xx, en;q=0.5")("nav.people")
    'People'
    """

    def __init__(self, language: str, texts: dict[str, str], others: dict[str, str]) -> None:
        self.language = language
        self._texts = others | texts

    def __call__(self, key: str, **values: object) -> str:
        """A text, with its blanks filled in."""
        return self._texts[key].format(**values)

    def count(self, key: str, count: int, **values: object) -> str:
        """A text about a number of things, which has a form for one of them."""
        return self(f"{key}.{'one' if count == 1 else 'more'}", count=f"{count:,}", **values)

    def has(self, key: str) -> bool:
        """Whether there is a text."""
        return key in self._texts

    @property
    def keys(self) -> frozenset[str]:
        """All keys."""
        return frozenset(self._texts)


def catalogue_for(accepted: str) -> Catalogue:
    """The texts of the first language that a browser asks for (``Accept-Language``) and we have."""
    known = catalogues()
    asked = [part.split(";")[0].strip().lower() for part in accepted.split(",")]
    for language in asked:
        for name in (language, language.split("-")[0]):
            if name in known:
                return known[name]
    return known[ENGLISH]


@cache
def catalogues() -> dict[str, Catalogue]:
    """All languages."""
    folder = resources.files("proplace.apps.serve") / "texts"
    found = {
        file.name.removesuffix(".yaml"): _flat(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }
    english = found[ENGLISH]
    return {name: Catalogue(name, texts, english) for name, texts in found.items()}


def _flat(texts: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in texts.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = str(value)
    return flat
