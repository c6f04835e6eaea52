"""Small damage to inputs, at random: bytes, numbers, text, JSON trees.

Every function takes a ``random.Random``, so that a case follows from its number alone.
"""

from __future__ import annotations

import json
import math
import re

NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1),
    *(-(2**53) - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, -0.0, 0.1, 0.5, 1.0 - 2**-53),
    *(1.0 + 2**-52, 1e15, 1e16, 1e22, 1e100, -1e100, 1e308, -1e308, 1.7976931348623157e308),
    *(5e-324, -5e-324, 1e-310, 2.2250738585072014e-308, math.nan, math.inf, -math.inf),
)
WORDS = (
    *("", " ", "a", "W0", "b0", "W1", "weight", "0.weight", "bias", "name", "kind"),
    *("__proto__", "nan", "NaN", "inf", "-Infinity", "1e999", "0x10", "017", "1:30", "1_000"),
    *("１", "٣", "true", "~", "../x", "/etc/passwd", "..\\x", "a/b", "\x00", "\ud800", "é"),
    *("\u202e", "\x1b[31m", "=1+1", "[/b]", "<script>", "${x}", "{0}", "%s", "x" * 300, "\n"),
    *("\r", "\ufeff", "os", "system", "Lambda", "builtins"),
)
NUMERALS = (
    *("1e400", "-1e400", "1e-400", "0x1F", "017", "1_0", "1:30", "-0", "+1", ".5", "5."),
    *("1E5", "NaN", "Infinity", "-Infinity", "9007199254740993", "1" * 400, "0." + "1" * 400),
    *("1e", "--1", "١", "1,5", ""),
)
_NUMERAL = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def some(rng, most=4):
    """How many things to do: mostly one, rarely many."""
    n = 1
    while n < most and rng.random() < 0.4:
        n += 1
    return n


_NEAR = (
    lambda rng, v: math.nextafter(v, math.inf),
    lambda rng, v: math.nextafter(v, -math.inf),
    lambda rng, v: -v,
    lambda rng, v: v + rng.choice((1, -1)),
    lambda rng, v: v * rng.choice((0.5, 2.0, 1.0 + 1e-9, 1.0 - 1e-9, 1e-3, 1e3)),
    lambda rng, v: v + rng.gauss(0.0, 1.0) * 10.0 ** rng.randint(-17, 1),
    lambda rng, v: int(v) if v.is_integer() else v,
    lambda rng, v: rng.choice(NUMBERS),
)


def nudged(rng, value):
    """A number near the given one, or a hostile one."""
    if type(value) not in (int, float) or abs(value) > 1e308:
        return rng.choice(NUMBERS)
    near = rng.choice(_NEAR)(rng, float(value))
    whole = type(value) is int and type(near) is float and near.is_integer()
    return int(near) if whole else near


# -- bytes -----------------------------------------------------------------------------------------


def damaged(rng, data, others=()):
    """Bytes with a few bits, bytes or ranges changed."""
    data = bytearray(data)
    for _ in range(some(rng)):
        _damage(rng, data, others)
    return bytes(data)


def _damage(rng, data, others):
    at, kind = rng.randrange(len(data) + 1), rng.randrange(10)
    end = min(len(data), at + rng.choice((1, 2, 4, 8, 16, 64)))
    if kind <= 1 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 2 and at < len(data):
        data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 3:
        data[at:at] = rng.randbytes(end - at)
    elif kind == 4:
        del data[at:end]
    elif kind == 5:
        data[at:at] = data[at:end]
    elif kind == 6:
        del data[at:]
    elif kind == 7:
        size = rng.choice((2, 4, 8))
        number = rng.choice((0, 1, -1, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**63, 2**62))
        data[at : at + size] = (number % 256**size).to_bytes(size, "little")
    elif kind == 8 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        data[at:end] = other[start : start + rng.choice((1, 8, 64, 1024))]
    else:
        numerals = list(_NUMERAL.finditer(bytes(data)))
        if numerals:
            found = rng.choice(numerals)
            data[found.start() : found.end()] = rng.choice(NUMERALS).encode()


# -- trees of lists and dictionaries -----------------------------------------------------------------


def slots_of(tree):
    """Every place in a tree, as (container, key)."""
    found, stack = [], [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            found += [(value, key) for key in value]
            stack += value.values()
        elif isinstance(value, list):
            found += [(value, i) for i in range(len(value))]
            stack += value
    return found


def change_tree(rng, tree, others=()):
    """Change a tree in place at one of its places."""
    if slots := slots_of(tree):
        where, key = rng.choice(slots)
        rng.choice(_CHANGES)(rng, where, key, slots, others)


def _nudge(rng, where, key, slots, others):
    where[key] = nudged(rng, where[key])


def _other_type(rng, where, key, slots, others):
    where[key] = rng.choice((None, True, False, "", [], {}, [[]], [{}], "0", 1.5, -1))


def _word(rng, where, key, slots, others):
    where[key] = rng.choice(WORDS)


def _remove(rng, where, key, slots, others):
    del where[key]


def _repeat(rng, where, key, slots, others):
    if isinstance(where, list):
        where[key:key] = [where[key]] * rng.choice((1, 1, 2, 20))
    else:
        where[rng.choice(WORDS)] = where[key]


def _rename(rng, where, key, slots, others):
    if isinstance(where, dict):
        names = (*WORDS, *(name for _, name in slots if isinstance(name, str)))
        where[rng.choice(names)] = where.pop(key)


def _swap(rng, where, key, slots, others):
    other, there = rng.choice(slots)
    a, b = where[key], other[there]
    if not isinstance(a, (dict, list)) and not isinstance(b, (dict, list)):  # so no circles arise
        where[key], other[there] = b, a


def _splice(rng, where, key, slots, others):
    if others:
        where[key] = json.loads(json.dumps(_any_part(rng, rng.choice(others))))


def _nest(rng, where, key, slots, others):
    for _ in range(rng.choice((1, 2, 30, 600)) if rng.random() < 0.1 else 1):
        where[key] = [where[key]] if rng.random() < 0.5 else {"x": where[key]}


_CHANGES = (
    *(_nudge, _nudge, _nudge, _nudge, _other_type, _word, _remove, _repeat, _rename, _swap),
    *(_splice, _nest),
)


def _any_part(rng, tree):
    where, key = rng.choice(slots_of(tree))
    return where[key]


def json_text(rng, tree):
    """A tree as JSON, rarely with a field given twice or the text itself damaged."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=rng.random() < 0.7)
    kind = rng.randrange(30)
    if kind == 0:
        at = rng.choice([m.end() for m in re.finditer(r"[{,]", text)] or [0])
        fields = re.findall(r'"[^"]*":(?:[^,{}\[\]]+)', text) or ['"x":1']
        text = f"{text[:at]}{rng.choice(fields)},{text[at:]}"
    data = text.encode("utf-8", errors="surrogatepass")
    if kind == 1:
        return damaged(rng, data)
    if kind == 2:
        return rng.choice((b"\xef\xbb\xbf", b" ", b"[", b"\xff\xfe", b"null")) + data
    if kind == 3 and rng.random() < 0.1:
        return rng.choice((b"[", b'{"x":')) * rng.choice((900, 5_000, 100_000))
    return data
