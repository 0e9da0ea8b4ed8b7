"""Values, texts and bytes to others nearby: what files hold, changed as a grammar or as bytes.

A `tree` is a plain value with its mappings as lists of pairs, so that a key can stand twice; `Literal` is a text that
is written as it is, such as ``010``. Every function takes a `random.Random` and draws nothing from elsewhere.
"""

import copy
import json
import math
import re

from nonsense import ALWAYS, FILES, VALUES

_SHORT = 300
_QUICK = [text for text in ALWAYS if len(text) < _SHORT]
_SLOW = [text for text in ALWAYS if len(text) >= _SHORT]
_BY_KIND = [text for kind in ("count", "size", "rate", "time", "number") for text in VALUES[kind] if len(text) < _SHORT]
_PLAIN = re.compile(r"[A-Za-z][\w./+-]*( [\w./+-]+)*|[0-9.]+ [A-Za-z/]+", re.ASCII)
_WORDS = {"true", "false", "null", "nan", "inf"}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_UNITS = ["B", "GB", "GiB", "Gb/s", "GB/s", "B/s", "ns", "us", "ms", "s", "W", "TFLOP/s", "GHz", "%", ""]
_STRANGE = [
    "\x00", "\x1b[31m", "\n", "\t", " ", "\u2028", "\ufeff", "\x85", "{", "}", "[", "]", ":", ",", "#", "&a ", "*a",
    "'", '"', "\\", "- ", "? ", "|", "%", "@", "!x ", "\u0663", "e", "-", "+", ".", "_", "0", "/", "~",
    "$\\frac{$",
]  # fmt: skip
_SMALLEST, _LARGEST = -25, 25


class Pairs(list):
    """A mapping as a list of ``[key, value]``."""


class Literal(str):
    """A text that is written into a file as it is."""


def tree(value):
    """Return a plain value with its mappings as `Pairs`."""
    if isinstance(value, dict):
        return Pairs([key, tree(one)] for key, one in value.items())
    return [tree(one) for one in value] if isinstance(value, list) else value


def as_yaml(value, indent=0):
    """Write a tree as YAML, in blocks."""
    lead = "\n" + " " * indent
    if isinstance(value, Pairs) and value:
        return "".join(f"{lead}{_yaml_scalar(key)}: {as_yaml(one, indent + 2)}" for key, one in value)
    if isinstance(value, list) and value and any(isinstance(one, list) for one in value):
        return "".join(f"{lead}- {as_yaml(one, indent + 2)}" for one in value)
    if isinstance(value, list):
        pairs = isinstance(value, Pairs)
        return "{}" if pairs else f"[{', '.join(map(_yaml_scalar, value))}]"
    return _yaml_scalar(value)


def _yaml_scalar(value):
    if isinstance(value, Literal):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)


_MOST_SLOTS = 20_000
"""Of a tree that is changed further."""
_MOST_LETTERS = 10_000_000
"""Of what is repeated: more takes all memory."""


def as_json(value):
    """Write a tree as JSON, on one line."""
    if isinstance(value, Literal):
        return value
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{_json_key(key)}: {as_json(one)}" for key, one in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return json.dumps(value)


def _json_key(key):
    return key if isinstance(key, Literal) else json.dumps(str(key))


class Grammar:
    """Mutations of trees that may take keys, values and sections from all seeds of a format."""

    def __init__(self, seeds):
        self.seeds = seeds
        pairs = [pair for seed in seeds for _, pair in _slots(seed) if isinstance(pair, list)]
        self.sections = [copy.deepcopy(pair) for pair in pairs if len(pair) == 2 and isinstance(pair[0], str)]
        self.keys = sorted({key for key, _ in self.sections})

    def mutated(self, random):
        """Return a seed after a few changes, seldom none or many."""
        value = [copy.deepcopy(random.choice(self.seeds))]
        for _ in range(random.choice((0, 1, 1, 1, 1, 1, 2, 2, 3, 5, 8))):
            slots = _slots(value)
            if len(slots) > _MOST_SLOTS:  # copies of copies would take all memory
                break
            container, slot = random.choice(slots)
            self._change(random, container, slot)
            value = value or [None]
        return value[0]

    def _change(self, random, container, slot):
        """Change one element of a list, or one pair of a mapping."""
        at = next(index for index, one in enumerate(container) if one is slot)
        keyed = isinstance(container, Pairs)
        what = random.random()
        if what < 0.08:
            del container[at]
        elif what < 0.14:
            container.insert(random.randint(0, len(container)), copy.deepcopy(slot))
        elif keyed and what < 0.22:
            slot[0] = self._other_key(random, slot[0])
        elif keyed and what < 0.30:
            container.insert(at, copy.deepcopy(random.choice(self.sections)))
        elif keyed and what < 0.40:
            same = [one for key, one in self.sections if key == slot[0]]
            slot[1] = copy.deepcopy(random.choice(same or [None]))
        elif not keyed and what < 0.30:
            container[at:at] = _repeated(slot, random.choice((1, 2, 10, 100, 1000)))
        elif keyed:
            slot[1] = self._other_value(random, slot[1])
        else:
            container[at] = self._other_value(random, slot)

    def _other_key(self, random, key):
        return random.choice((
            random.choice(self.keys), random.choice(self.keys), str(key).upper(), str(key).replace("_", "-"),
            f" {key}", f"{key}s", "<<", "like", "", 5, None, True, 1.5, Literal("? [a]"), f"{key}\x1b[31m", "x" * 3000,
        ))  # fmt: skip

    def _other_value(self, random, value):
        what = random.random()
        if what < 0.35 and isinstance(value, int | float | str):
            return other_text(random, value) if isinstance(value, str) else other_number(random, value)
        if what < 0.60:
            return Literal(random.choice(_QUICK if random.random() < 0.5 else _BY_KIND))
        if what < 0.603:
            return Literal(random.choice(_SLOW))
        if what < 0.75:
            return copy.deepcopy(random.choice(self.sections)[1])
        if what < 0.80:
            return _repeated(value, random.choice((0, 1, 2, 3, 17, 1000)))
        changed = (str(value), True, False, None, [], Pairs(), [[value]], 0, 1, -1, 1.0, f"{value} GB/s", "")
        return random.choice((*changed, Pairs([[random.choice(self.keys), value]])))


def _repeated(value, times):
    """Return copies of a value, of which none is another: a change of one would be a change of all."""
    if len(as_json(value)) * times > _MOST_LETTERS:
        times = 1
    return [copy.deepcopy(value) for _ in range(times)]


def _slots(value):
    """Return every container of a tree with each of its slots."""
    found, left = [], [value]
    while left:
        container = left.pop()
        if isinstance(container, list):
            found += [(container, slot) for slot in container]
            left += [slot[1] if isinstance(container, Pairs) else slot for slot in container]
    return found


def other_number(random, value):
    """Return a number that is another in size, sign or type."""
    if not abs(value) < 1e200:
        return random.choice((0, 1, -1.5, -value))
    power = random.randint(_SMALLEST, _LARGEST)
    scaled = value * 10**power if power > 0 and isinstance(value, int) else value * 10.0**power
    return random.choice((
        scaled, scaled, scaled, -value, 0, value + 1, value - 1, value * 2, value / 3, float(value), int(value) // 2,
        2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 5e-324, 1e308, float("nan"), float("inf"), True,
    ))  # fmt: skip


def other_text(random, text):
    """Return a text with a number, a unit or some letters changed."""
    what = random.random()
    numbers = list(_NUMBER.finditer(text))
    if numbers and what < 0.5:
        found = random.choice(numbers)
        number = int(found[0]) if found[0].isdecimal() and len(found[0]) < 20 else float(found[0])
        return f"{text[: found.start()]}{other_number(random, number)}{text[found.end() :]}"
    if numbers and what < 0.65:
        return f"{text[: numbers[0].end()]} {random.choice(_UNITS)}"
    at, to = sorted((random.randint(0, len(text)), random.randint(0, len(text))))
    return random.choice((
        text[:at] + text[to:], text[:at] + text[at:to] * random.choice((2, 3, 100)) + text[to:],
        text[:at] + random.choice(_STRANGE) + text[at:], text[:at] + random.choice(_QUICK) + text[to:],
        text.upper(), text.replace("_", "-"), text[::-1], f" {text}", f"{text} ", f"'{text}'", "",
    ))  # fmt: skip


def other_bytes(random, content, others=()):
    """Return bytes with some flipped, left out, doubled, or taken from other contents."""
    content = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randint(0, len(content))
        to = min(len(content), at + random.choice((1, 1, 2, 4, 8, 64, 1000)))
        what = random.randrange(8)
        if what == 0 and at < len(content):
            content[at] ^= 1 << random.randrange(8)
        elif what == 1 and at < len(content):
            content[at] = random.randrange(256)
        elif what == 2:
            del content[at:to]
        elif what == 3:
            content[at:at] = content[at:to] * random.choice((1, 2, 50))
        elif what == 4:
            content[at:at] = random.randbytes(random.choice((1, 2, 4, 16)))
        elif what == 5:
            del content[at if random.random() < 0.3 else to :]
        elif what == 6:
            content[at:to] = random.choice(_STRANGE).encode()
        elif others:
            other = random.choice(others)
            begin = random.randint(0, len(other))
            content[at:to] = other[begin : begin + random.choice((4, 30, 300))]
    return bytes(content)


def file_of(random, grammar, form):
    """Return the bytes of a file: mostly a mutated seed; seldom its bytes changed as well, or a file of nonsense."""
    what = random.random()
    if what < 0.01:
        texts = FILES["json" if form is as_json else "yaml"]
        quick = [text for text in texts if len(text) < _SHORT] if random.random() < 0.9 else texts
        return random.choice(quick).encode("utf-8", "surrogatepass")
    content = form(grammar.mutated(random)).encode("utf-8", "surrogatepass")
    return other_bytes(random, content) if what < 0.12 else content
