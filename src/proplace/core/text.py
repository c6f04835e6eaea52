r"""Safe display of text from files.

A label, a column name, a path or a cell may contain escape sequences that move a terminal's cursor,
marks that reverse the order of letters, or a million letters. All such text passes through here
before it is shown.
"""

from __future__ import annotations

import difflib
import itertools
import re
from reprlib import Repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VALUE = 100
"""Characters of one value in a message."""

MESSAGE = 2_000
"""Characters of one message on a terminal."""

UNSEEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters: escape sequences, new lines
    "\xad\u200b\u2060-\u2065\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"  # invisible characters
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # change the order of letters, or end a line
    "\ud800-\udfff"  # lone surrogates, which cannot be encoded
    "]"
)
"""Characters that are invisible or act on the screen."""


def visible(text: str) -> str:
    r"""Return a text on one line, with invisible and control characters escaped.

    Joiners inside words (U+200C and U+200D) stay, because some languages need them.

    Examples
    --------
    >>> visible("caf\u00e9 \x1b[31mred\nnext \u202egnp.exe")
    'café \\x1b[31mred\\nnext \\u202egnp.exe'
    """
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def has_unseen(text: str) -> bool:
    """Test if :func:`visible` would escape a character."""
    return UNSEEN.search(text) is not None


def clipped(text: str, length: int) -> str:
    """Shorten a text to a number of characters.

    Examples
    --------
    >>> clipped("a" * 30, 12)
    'aaaaaaaaaaa…'
    """
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def enumerated(parts: Iterable[str]) -> str:
    """Join words to a list in a sentence.

    Examples
    --------
    >>> enumerated(["age"]), enumerated(["age", "income", "debt"])
    ('age', 'age, income and debt')
    """
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def short(value: object) -> str:
    """Format a value for a message as ``repr`` does, but never more than a line of it.

    Examples
    --------
    >>> short("cook"), short(2.5), short(["a"] * 9)
    ("'cook'", '2.5', "['a', 'a', 'a', 'a', 'a', 'a', ...]")
    >>> len(short("x" * 10_000_000))
    100
    """
    return visible(clipped(_BRIEF.repr(value), VALUE))


class _Brief(Repr):
    """``repr`` that reads no more of a value than it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 6
        self.maxother = 2 * VALUE

    def repr1(self, x: Any, level: int) -> str:
        plain = x.item() if getattr(x, "ndim", None) == 0 and hasattr(x, "item") else x
        return super().repr1(plain, level)  # 32, not np.int64(32)

    def repr_str(self, x: str, level: int) -> str:
        return repr(x if len(x) <= 2 * VALUE else x[: 2 * VALUE])

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[: 2 * VALUE])

    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return repr(x) if bits < 1000 else f"a whole number of {bits} bits"


_BRIEF = _Brief()


def whole(value: float) -> float | int:
    """Return 17.0 as 17, because whole numbers read better without a decimal point."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def num(value: float) -> str:
    """Format a number for a message."""
    return str(whole(float(value)))


def listing(values: Iterable[object], limit: int = 12) -> str:
    """Format values for a message, with the first few of a long list."""
    known = list(values)
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return ", ".join(short(value) for value in known[:limit]) + more


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """Return `` (did you mean 'age'?)`` if a known name is close to ``word``, otherwise nothing."""
    if not isinstance(word, str) or len(word) > VALUE:
        return ""
    near = itertools.islice((name for name in known if len(str(name)) <= VALUE), _COMPARED)
    names = {str(name).strip().lower(): name for name in near}
    close = difflib.get_close_matches(word.strip().lower(), list(names), n=1, cutoff=0.7)
    return f" (did you mean {short(names[close[0]])}?)" if close else ""


_COMPARED = 1_000  # known names that are compared, because each takes time
PROBLEMS = 20
"""Largest number of problems in one message."""


def problem_list(title: str, problems: Sequence[str], count: int | None = None) -> str:
    """Return one problem as a sentence, or the first few of several as a numbered list."""
    total = len(problems) if count is None else count
    if total == 1:
        return f"{title}: {problems[0]}"
    told = problems[:PROBLEMS]
    numbered = "; ".join(f"({i}) {problem}" for i, problem in enumerate(told, start=1))
    more = f"; and {total - len(told)} more" if total > len(told) else ""
    return f"{title}: {total} problems: {numbered}{more}"
