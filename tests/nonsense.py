"""Nonsense that files and options may hold: values by kind of field, whole files by format, and command lines.

`VALUES` are texts as they may stand behind a key of a YAML file, or behind ``KEY=`` of ``--set``; `ALWAYS` are those
that no number is. `FILES` are whole files by format. Tests put each where it may stand and expect one message. Add
what was found once, so that it is found again. `FOREIGN` and `OBJECTS` are values of Python, for its functions.
"""

import datetime
import decimal
import enum
import fractions

import numpy as np

HUGE = "9" * 5000
LONG = "x" * 1_000_000

_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
_BOMB_OF_LISTS = "[" + ", ".join(f"{line[3:]}" for line in _BOMB.splitlines()) + "]"

ALWAYS = [
    "010", "00", "-010", "08", "0_1", "0x10", "0o17", "0b11", "1:30", "190:20:30", "1:30.5", "yes", "no", "on",
    "off", "Yes", "NO", "y", "true", "false", "True", "FALSE", "'true'", "null", "~", "''", '""', "[]", "{}", "[1]",
    "[[1]]", "{a: 1}", "{value: 1}", "1,000", "1 000", "1.000,5", "1'000", "'1'000'", "+ 1", "--1", "1-", "1e", "e5",
    "1e+", "1.2.3", "0x1p3", "1d5", "1f", "1L", '\xbd', '\xb2', "\u0663", "\uff11\uff12", '1\xa0', "\u200b1",
    "\u221e", "NaN", "nan", ".nan", ".NaN", "-.nan", "inf", ".inf", "-.inf", "+.Inf", "Infinity", "-Infinity",
    "1e400", "-1e400", "1e999999999", HUGE, "-" + HUGE, "1" + "0" * 400 + ".5", "2024-13-45", "2024-01-01",
    "2024-01-01T00:00:00Z", "12:30:45", "!!int abc", "!!int 5", "!!float x", "!!timestamp 2024-13-45",
    "!!binary aGk=", "!!python/object:os.system x", "!!set {a}", "!local 5", "&a 5 x", "*nothing", "&a [*a]",
    "[1, 2", "{a: 1", "]", "}", "'", '"', "'a", '"\\x', '"\\e[31mred"', '"\\0"', "@", "`", "%", "|", ">", "? ", "- ",
    "- 1", "a: b", "a: b: c", "<<: 1", "? [1]", "#", "# comment", "null null", "text", "a b c", "{{ranks}}",
    "${HOME}", "$(id)", "../../etc/passwd", "/dev/zero", "-", "--", "=", "=5", ",", ";", ":", "::", "...", "---",
    "5; 6", "5%", "50 %", "1/2", "1+1", "2**10", "1e5x", "5 5", "0.5.5", "[5", "5]", "(5)", "five", "one", "None",
    "nil", "undefined", "NULL ", "1 B B", "B", "GB", "GB/s", "1 GB/s/s", "1 gb", "1 Gbit", "1 GiB/S", "1 hr", "1 m",
    "1 Mips", "-1 B", "-1 GB/s", "-1 ns", "-5", "-0.5", "-1e-300", "-9223372036854775809", "9223372036854775808",
    "18446744073709551616", "1e30", "1e306", "1e306 B", "1e306 B/s", "1e306 s", "1e-320 B/s", "1e-320 s", "1e-320",
    "4.9e-324", "1e308 PB", "1e300 GB/s", "999999 PB/s", "1e25 s", LONG, f"'{LONG}'", "[" * 40_000,
    "[" * 70 + "]" * 70, "{a: " * 70 + "1" + "}" * 70, "[" + "1," * 100_000 + "]", "{a: 1, a: 1, a: 1, }",
    _BOMB_OF_LISTS,
    "0x", "1e+5+", "++1", "1..2", "1.e", ".e5", ".", "..", "1 2 3", "tru", "nul", "$5", "5~", "5\\", "5/", "5,5",
    "1 B/", "/s", "B/s 1", "1/s", "1 kB kB", "1e5e5", "00.5", "-.5",
]  # fmt: skip
"""Values that are neither a count, a number nor a quantity."""

VALUES = {
    "count": [
        *ALWAYS,
        "0", "-1", "1.5", "8192.9", "8.0", "1e3", "1e18", "1099511627777", "4611686018427387904", "5 B", "1 s",
    ],
    "size": [
        *ALWAYS,
        "8192.9", "0.5", "1e19", "5 GB/s", "5 s", "5 W", "20 EB", "100000 PB",
    ],
    "rate": [
        *ALWAYS,
        "5", "8192.9", "5 GB", "5 s", "1e10", "1e19 B/s", "99999 PB/s", "1e-10 B/s",
    ],
    "time": [
        *ALWAYS,
        "5", "0.5", "5 GB", "5 GB/s", "1e10 s", "1e-20 s", "1e-16 s",
    ],
    "number": [
        *ALWAYS,
        "1e16", "-1", "5 B", "1 s",
    ],
}  # fmt: skip
"""Kind of field to values that it cannot have."""

FILES = {
    "yaml": [
        "", " ", "\n\n", "---", "...", "--- a\n--- b", "5", "[]", "- 1", "text", "null", "a", "a: 1\na: 2",
        "1: 2\n1: 3", "? [1]\n: 2", "? {a: 1}\n: 2", "a: {b: 1, b: 2}", "a: [{b: 1, b: 2}]", "true: 1\nTrue: 2",
        "1: a", "null: a", "1.5: a", "a: *b", "a: &a [*a]", "a: &a {b: *a}", _BOMB, "a: " + "[" * 40_000,
        "a: " + "{b: " * 40_000, "- " * 40_000, "".join(" " * level + "a:\n" for level in range(2000)),
        "a: 2024-13-45", "a: !!int abc", "a: !!python/object/apply:os.getcwd []", "a: " + HUGE, "a: -" + HUGE,
        "a: .nan", f"a: '{LONG}'", f"'{LONG}': 1", LONG, 'a: \x00', '\x1b[31m: 1', '"\\e[31mred": 1', "a: \ufffe",
        "\ufeffa: 1\n\ufeffb: 2", "a\tb: 1\n\tc: 2", "a: 'x", 'a: "\\q"', "<<: 1", "<<: [1]", "<<: {a: 1}",
        "%YAML 3.0\n---\na: 1", "%TAG ! x\n---\n!y a: 1", "a: |\n  x\n y", "[a: 1", "{a: 1", "a: b: c", "a:1",
        "like: " + LONG, "like: 5", "like: []", "like: {}", "like: nowhere.yaml", "like: ../nowhere", "like: ''",
        "kind: 5", "kind: []", "kind: {}", "kind: nothing", "dimensions: 5", "dimensions: []", "dimensions: {}",
        "dimensions: [5]", "dimensions: [[]]", "peak_flops: 5", "peak_flops: []", '\x85', "\u2028: 1",
        "".join(f"k{number}: 1\n" for number in range(50_000)),
    ],
    "json": [
        "", " ", "{", "}", "[", "[]", "5", "null", "true", '"a"', "NaN", "Infinity", '{"a": NaN}', '{"a": Infinity}',
        '{"a": -Infinity}', '{"a": 1e999}', '{"a": ' + HUGE + "}", '{"a": -' + HUGE + "}", '{"a": 1, "a": 2}',
        '{"b": {"a": 1, "a": 2}}', '{"b": [{"a": 1, "a": 2}]}', "[" * 40_000, "[" * 100_000 + "]" * 100_000,
        '{"a":' * 40_000, "[" * 70 + "]" * 70, '{"a": ' * 70 + "1" + "}" * 70, '{"a": 01}', '{"a": +1}', '{"a": .5}',
        '{"a": 0x10}', "{a: 1}", "{'a': 1}", '{"a": 1,}', '{"a": 1} {"b": 2}', '{"a": "' + LONG + '"}',
        '{"' + LONG + '": 1}', '{"a": "\x1b[31m"}', '{"a": "\\u001b[31m"}', '{"\\u001b[31m": 1}', '{"a": "\\ud800"}',
        '{"a": "\x00"}', '{"a": undefined}', '{"a": None}', '{"a": True}', "\ufeff{}", '"' + '\\"' * 100_000,
        '{"a": "' + "[" * 5000 + '"}', LONG,
    ],
}  # fmt: skip
"""Format to whole files that hold nothing of use."""

FOREIGN = [object(), object, len, 1j, b"text", bytearray(b"text"), enum.Enum("Colour", "RED").RED, NotImplemented]
"""Objects that no argument is of."""

_ITSELF: list[object] = []
_ITSELF.append(_ITSELF)

OBJECTS = [
    None, True, False, 0, 1, -1, 10**9, 2**63, 10**400, -(10**400), 0.0, 0.5, 1.5, 3.0, -0.5, float("nan"),
    float("inf"), float("-inf"), 1e308, 5e-324, 1e-300,
    decimal.Decimal("NaN"), decimal.Decimal(1), fractions.Fraction(1, 2), datetime.date(2024, 1, 1),
    np.int64(-1), np.int64(1), np.uint8(200), np.float64("nan"), np.float32(0.5), np.bool_(True), np.str_("nonsense"),
    np.datetime64("NaT"), np.array(5), np.array([]), np.array([0.5]), np.array([-1]), np.zeros((2, 2), np.int64),
    np.array(["nonsense"]), np.array([None]), np.arange(4), np.arange(4)[::-1],
    [], (), {}, set(), frozenset(), range(0), range(4), range(4, 0, -1), _ITSELF, [[]], [None], [True], [0.0], [1.5],
    [float("nan")], [-1], [0, 0], [0, 1, 2, 10**9], [10**400], ["nonsense"], [""], ["baseline"] * 2,
    ["0-1"] * 2,
    [{}], (None,), {1, 2}, {None: None}, {0: None}, {0: float("nan")}, {0: -1}, {0: 0}, {0: 1e308}, {0: 5e-324},
    {0: 10**400}, {0: "2"}, {-1: 2}, {4: 2}, {10**400: 2}, {1.0: 2}, {True: 2}, {"0": 2}, {np.int64(0): np.float64(2)},
    {"": 1}, {"0-1": None}, {"0-1": float("nan")}, {"0-1": 0}, {"0-1": 2}, {"0-1": ""}, {"0-1": "nan"}, {"0-1": "5 s"},
    {"0-1": 10**400}, {"0-1": 0.5, "1-0": 0.5}, {"nonsense": 1}, {"nonsense": _ITSELF}, {"all_reduce": "nonsense"},
    {"all_reduce": ""}, {"all_reduce": None}, {("a",): 1}, "", " ", "nonsense", "\0", "a\nb", "\ud800", "0-1", "auto",
]  # fmt: skip
"""What an argument may be given by mistake; some arguments can have some of them."""
