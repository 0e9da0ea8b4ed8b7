"""Strings with units, as files and options hold them, to SI numbers and back.

Inside the package there are only seconds, bytes, FLOPs and their quotients. A `B` is a byte, `GB` is 10**9 and `GiB`
2**30; a `b` is a bit, of bandwidths alone. From 1,000 on a size without a unit is in bytes; fewer need one, as who
writes them most likely means MiB or GB. A million tokens or more need none; all else but zero does.

>>> parse("200 Gb/s", BYTES_PER_S)
25000000000.0
>>> format_seconds(0.0012345)
'1.23 ms'
"""

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from scaleout.config.documents import LARGEST_NUMBER, LEAST_NUMBER, MAX_RANKS, NUMBER, not_tiny
from scaleout.errors import ConfigError, shown

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_NUMBER = re.compile(rf"\s*({NUMBER.pattern})\s*([^\s0-9_]\S*)?\s*", re.ASCII)


@dataclass(frozen=True)
class Quantity:
    """A physical quantity: its name, the units that are understood, and one example for messages."""

    name: str
    factors: dict[str, float] = field(hash=False)
    example: str
    smallest: float = 1e-9  # above zero, in SI units
    largest: float = 1e18
    plain_from: float = math.inf  # from here on a number needs no unit

    @property
    def unit(self) -> str:
        """The unit of `example`."""
        return re.sub(r"^[\d. ]+", "", self.example)


def _with_prefixes(unit: str, scale: float, prefixes: dict[str, float]) -> dict[str, float]:
    return {prefix + unit: scale * factor for prefix, factor in prefixes.items()}


_BYTE_UNITS = _with_prefixes("B", 1.0, _DECIMAL | _BINARY)
_BIT_UNITS = _with_prefixes("b", 1 / 8, _DECIMAL | _BINARY)

BYTES = Quantity("a size", _BYTE_UNITS, "64MiB", plain_from=1e3)
FEW_BYTES = replace(BYTES, plain_from=0.0)
"""Sizes that need no unit however small they are: those of messages, as benchmarks count them from 8 bytes on."""
BYTES_PER_S = Quantity("a bandwidth", {f"{unit}/s": f for unit, f in (_BYTE_UNITS | _BIT_UNITS).items()}, "200 Gb/s")
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "day": 86400.0}
SECONDS = Quantity("a time", _TIMES, "700 ns", 1e-15, 1e9)
FAILURES = Quantity(
    "a rate of failures",
    {"/s": 1.0, "/h": 1 / 3600, "/day": 1 / 86400, "/year": 1 / (365.25 * 86400)},
    "0.17/year",
    1e-18,
    1e3,
)
TOKENS = Quantity("a number of tokens", {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}, "15T", 1.0, 1e18, 1e6)
HERTZ = Quantity("a clock", _with_prefixes("Hz", 1.0, _DECIMAL), "1.41 GHz")
WATTS = Quantity("a power", _with_prefixes("W", 1.0, _DECIMAL), "700 W")
JOULES = Quantity("an energy", {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "nJ": 1e-9, "pJ": 1e-12}, "1 pJ", 1e-18, 1e9)
DOLLARS = Quantity("a price", _with_prefixes("USD", 1.0, {"": 1.0, "k": 1e3, "M": 1e6}), "36 kUSD", 1e-3, 1e15)
RENT = Quantity("a rent", {"USD/h": 1 / 3600, "USD/day": 1 / 86400}, "2.50 USD/h", 1e-9, 1e6)
_FLOP_UNITS = _with_prefixes("FLOP/s", 1.0, _DECIMAL) | _with_prefixes("FLOPS", 1.0, _DECIMAL)
FLOPS_PER_S = Quantity("a compute rate", _FLOP_UNITS, "989 TFLOP/s", largest=1e24)


def parse(text: str | float, quantity: Quantity) -> float:
    """Turn a string with a unit, such as ``"64MiB"`` or ``"200 Gb/s"``, into SI units, or raise `ConfigError`."""
    is_number = isinstance(text, int | float) and not isinstance(text, bool)
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if not (is_number or match):
        raise ConfigError(f"{shown(text)} is not {quantity.name}; write it like {quantity.example!r}")
    number, unit = (match[1].replace("_", ""), match[2]) if match else (text, None)
    if unit and unit not in quantity.factors:
        raise ConfigError(f"{shown(text)}: unknown unit {shown(unit)} for {quantity.name}; {_meant(unit, quantity)}")
    try:
        value = float(number) * quantity.factors.get(unit or "", 1.0)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{shown(text)} is not {quantity.name}: it must be finite and not negative")
    if value and not unit and value < quantity.plain_from:
        few = f"'{number}MiB' or '{number}GB', or as '{number}B' if bytes are meant"
        like = few if quantity is BYTES else repr(quantity.example)
        raise ConfigError(f"{shown(text)} has no unit, and is to be {quantity.name}; write it like {like}")
    if quantity.name == BYTES.name and not unit and value != int(value):
        raise ConfigError(f"{shown(text)} is no whole number of bytes; write it like {quantity.example!r}")
    if value and not quantity.smallest <= value <= quantity.largest:
        unit, factor = next(iter(quantity.factors.items()))
        raise ConfigError(
            f"{shown(text)} is not {quantity.name}: it must be 0, or from {quantity.smallest / factor:g} to "
            f"{quantity.largest / factor:g} {unit}"
        )
    return value


def _meant(unit: str, quantity: Quantity) -> str:
    """Say which unit is meant by one that is spelled otherwise, or else which there are.

    >>> _meant("Gb", BYTES), _meant("GBps", BYTES_PER_S)
    ("did you mean 'GB'? a b is a bit, a B a byte", "did you mean 'GB/s'?")
    """
    spelled = (unit, unit.replace("ps", "/s"), f"{unit}/s", f"{unit}B", f"{unit}B/s")
    for alike in (str, str.casefold):
        for known in quantity.factors:
            if alike(known) in map(alike, spelled):
                return f"did you mean {known!r}?" + (" a b is a bit, a B a byte" if unit in _BIT_UNITS else "")
    return f"use one of {', '.join(quantity.factors)}"


def _validator(quantity: Quantity, *, by_level: bool = False) -> BeforeValidator:
    """Parse a value of a file; `by_level` one value or a list of them, to a tuple.

    A few bytes that are a float are a validated model's own, which is validated again.
    """

    def validate(value: Any) -> float | tuple[float, ...]:
        try:
            if quantity is BYTES and isinstance(value, float):
                return parse(value, FEW_BYTES)
            if by_level:
                return tuple(parse(each, quantity) for each in (value if isinstance(value, list) else [value]))
            return parse(value, quantity)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(validate)


Bytes = Annotated[float, _validator(BYTES), BYTES]
BytesPerSecond = Annotated[float, _validator(BYTES_PER_S), BYTES_PER_S]
Seconds = Annotated[float, _validator(SECONDS), SECONDS]
Watts = Annotated[float, _validator(WATTS), WATTS]
Joules = Annotated[float, _validator(JOULES), JOULES]
Failures = Annotated[float, _validator(FAILURES), FAILURES]
Tokens = Annotated[float, _validator(TOKENS), Field(gt=0), TOKENS]
Dollars = Annotated[float, _validator(DOLLARS), DOLLARS]
DollarsPerSecond = Annotated[float, _validator(RENT), RENT]
FlopsPerSecond = Annotated[float, _validator(FLOPS_PER_S), FLOPS_PER_S]
Hertz = Annotated[float, _validator(HERTZ), HERTZ]
BytesPerSecondByLevel = Annotated[tuple[float, ...], _validator(BYTES_PER_S, by_level=True), BYTES_PER_S]
SecondsByLevel = Annotated[tuple[float, ...], _validator(SECONDS, by_level=True), SECONDS]
"""One value for all levels of a network, or a list of one each."""


MOST_COUNT = 2**40
Count = Annotated[int, Field(strict=True, gt=0, le=MOST_COUNT)]
CountOrZero = Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)]
MOST_WRITTEN = 10_000
"""Of what is written one by one, such as layers."""
LayerCount = Annotated[int, Field(strict=True, gt=0, le=MOST_WRITTEN)]
RankCount = Annotated[int, Field(strict=True, gt=0, le=MAX_RANKS)]
"""Ranks, or a degree of parallelism."""
Rank = Annotated[int, Field(strict=True, ge=0, lt=MAX_RANKS)]
Positive = Annotated[float, Field(strict=True, ge=LEAST_NUMBER, le=LARGEST_NUMBER)]
Number = Annotated[float, Field(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER), AfterValidator(not_tiny)]
NotNegative = Annotated[float, Field(strict=True, ge=0, le=LARGEST_NUMBER), AfterValidator(not_tiny)]
LogRatio = Annotated[float, Field(strict=True, ge=0, le=7), AfterValidator(not_tiny)]
"""``ln(actual / predicted)`` to one side: 7 is a factor of a thousand."""
Slowdown = Annotated[float, Field(strict=True, ge=1, le=LARGEST_NUMBER)]
Share = Annotated[float, Field(strict=True, ge=LEAST_NUMBER, le=1)]
ShareOrZero = Annotated[float, Field(strict=True, ge=0, le=1), AfterValidator(not_tiny)]
Size = Annotated[Bytes, Field(gt=0)]
Rate = Annotated[BytesPerSecond, Field(gt=0)]
ComputeRate = Annotated[FlopsPerSecond, Field(gt=0)]
Duration = Annotated[Seconds, Field(gt=0)]
"""Numbers of files and options: finite and with a maximum; no text, word or truth value is one."""


_DECIMAL_UP = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY_UP = ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"))
_DOWN = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
_OF_TIME = ((86400.0, "day"), (3600.0, "h"))
_OF_MONEY = ((1e9, "B"), (1e6, "M"), (1e3, "k"))
_OF_TOKENS = ((1e12, "T"), *_OF_MONEY)


def _three_digits(*values: float) -> list[str]:
    """Write numbers at three digits: without zeros at their ends where all are exact, else with them.

    >>> _three_digits(4.8), _three_digits(4.7983), _three_digits(119.6), _three_digits(1337)
    (['4.8'], ['4.80'], ['120'], ['1340'])
    >>> _three_digits(48, 32), _three_digits(48, 32.04, 0)
    (['48', '32'], ['48.0', '32.0', '0'])
    """
    rounded = [float(f"{value:.3g}") for value in values]
    exact = all(math.isclose(number, value, rel_tol=1e-9) for number, value in zip(rounded, values, strict=True))
    return [
        f"{number:.10g}" if exact or number == 0 or abs(number) >= 1000 else f"{number:#.3g}".rstrip(".")
        for number in rounded
    ]


def _scaled(value: float, unit: str, prefixes: tuple[tuple[float, str], ...], space: str = " ") -> str:
    """Write a number at three significant digits, with the prefix after which one stands before its point, at least.

    >>> _scaled(999_960, "B", _DECIMAL_UP), _scaled(1023, "B", _BINARY_UP), _scaled(64, "B", _BINARY_UP)
    ('1.00 MB', '1020 B', '64 B')
    """
    rounded = ((float(f"{value / factor:.3g}"), factor, prefix) for factor, prefix in prefixes)
    least = (float(f"{value:.3g}"), 1.0, "")
    _, factor, prefix = next((each for each in rounded if abs(each[0]) >= 1), least)
    return _three_digits(value / factor)[0] + (f"{space}{prefix}{unit}" if prefix or unit else "")


def counted(number: int, one: str) -> str:
    """Write a number of things, given the word for one.

    >>> counted(1, "rank"), counted(1024, "file"), counted(2, "switch")
    ('1 rank', '1,024 files', '2 switches')
    """
    return f"{number:,} {one}{'' if number == 1 else 'es' if one.endswith('ch') else 's'}"


def format_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """Write ranks, those that follow each other as a range; of many ranges the first.

    >>> format_ranks([0, 1, 2, 4, 7, 6]), format_ranks(range(0, 64, 4))
    ('0-2, 4, 6-7', '0, 4, 8, 12, 16, 20, 24, 28 and 8 more')
    """
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][-1] + 1:
            found[-1] = [found[-1][0], rank]
        else:
            found.append([rank])
    words = ", ".join("-".join(map(str, each)) for each in found[:most])
    more = sum(each[-1] - each[0] + 1 for each in found[most:])
    return f"{words} and {more:,} more" if more else words


def ranks_in_words(ranks: Collection[int]) -> str:
    """Name ranks.

    >>> ranks_in_words([5]), ranks_in_words([0, 1, 2, 7])
    ('rank 5', 'ranks 0-2, 7')
    """
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {format_ranks(ranks)}"


def format_bytes(size_bytes: float, *, like: float | None = None) -> str:
    """Write a size with a binary prefix, or with a decimal one if that alone is exact, as of what was written so.

    A size that is compared with another has the prefixes of that, `like`.

    >>> format_bytes(2**26), format_bytes(1e9), format_bytes(1e9 + 1), format_bytes(2**30, like=80e9)
    ('64 MiB', '1 GB', '954 MiB', '1.07 GB')
    """
    return _scaled(size_bytes, "B", _prefixes_of(size_bytes if like is None else like))


def _prefixes_of(*sizes_bytes: float) -> tuple[tuple[float, str], ...]:
    """Return decimal prefixes if they write all sizes exactly and binary ones do not."""

    def exact(prefixes: tuple[tuple[float, str], ...]) -> bool:
        written = (_scaled(size, "B", prefixes).split() for size in sizes_bytes)
        return all(float(n) * _BYTE_UNITS[unit] == size for (n, unit), size in zip(written, sizes_bytes, strict=True))

    return _DECIMAL_UP if exact(_DECIMAL_UP) and not exact(_BINARY_UP) else _BINARY_UP


def format_sizes(sizes_bytes: Iterable[float], *, like: float | None = None) -> list[str]:
    """Write the sizes of one table in one unit: that of the least while the largest is below 10,000, or of the largest.

    Where both are too far apart for that, by a factor of a million or so, each has its own. Prefixes are decimal where
    these alone are exact of all, or of what they are compared with, `like`.

    >>> format_sizes([2**10, 2**20])
    ['1 KiB', '1024 KiB']
    >>> format_sizes([48 * 2**20, 2.53 * 2**30]), format_sizes([60 * 2**20, 0, 140 * 2**30]), format_sizes([4, 2**30])
    (['48.0 MiB', '2590 MiB'], ['0.0586 GiB', '0 GiB', '140 GiB'], ['4 B', '1 GiB'])
    >>> format_sizes([25e6, 1e9])
    ['25 MB', '1000 MB']
    """
    sizes = list(sizes_bytes)
    told = [size for size in sizes if size] or [0.0]
    prefixes = _prefixes_of(*(told if like is None else [like]))
    units = [_scaled(end, "B", prefixes).split()[1] for end in (min(told), max(told))]
    for unit, factor in ((unit, _BYTE_UNITS[unit]) for unit in units):
        if max(told) < 10_000 * factor and min(told) >= 0.001 * factor:
            scaled = [float(size / factor) for size in sizes]
            whole = all(map(float.is_integer, scaled))
            return [
                f"{number} {unit}" for number in (map("{:.0f}".format, scaled) if whole else _three_digits(*scaled))
            ]
    return [_scaled(size, "B", prefixes) for size in sizes]


def format_bytes_per_s(bytes_per_s: float) -> str:
    """Write a bandwidth with a decimal prefix, such as ``'25 GB/s'``."""
    return _scaled(bytes_per_s, "B/s", _DECIMAL_UP)


def format_flops(flops: float) -> str:
    """Write operations with a decimal prefix, such as ``'3.44 PFLOP'``."""
    return _scaled(flops, "FLOP", _DECIMAL_UP)


def format_flops_per_s(flops_per_s: float) -> str:
    """Write a compute rate with a decimal prefix, such as ``'989 TFLOP/s'``."""
    return _scaled(flops_per_s, "FLOP/s", _DECIMAL_UP)


def format_dollars(dollars: float) -> str:
    """Write a price with a decimal prefix, such as ``'$36 k'``."""
    return f"${_scaled(dollars, '', _OF_MONEY)}"


def format_rent(dollars_per_s: float) -> str:
    """Write a rent by the hour, such as ``'$4.92/h'``."""
    return f"{format_dollars(dollars_per_s * 3600)}/h"


def format_tokens(tokens: float) -> str:
    """Write a number of tokens as `TOKENS` are read, such as ``'15T'``."""
    return _scaled(tokens, "", _OF_TOKENS, space="")


def format_hertz(hertz: float) -> str:
    """Write a clock with a decimal prefix, such as ``'1.98 GHz'``."""
    return _scaled(hertz, "Hz", _DECIMAL_UP)


def format_watts(watts: float) -> str:
    """Write a power with a decimal prefix, such as ``'10.2 kW'``."""
    return _scaled(watts, "W", _DECIMAL_UP)


def format_joules(joules: float) -> str:
    """Write an energy with a decimal prefix, such as ``'5.1 kJ'``."""
    return _scaled(joules, "J", (*_DECIMAL_UP, *_DOWN, (1e-12, "p")))


def format_seconds(seconds: float) -> str:
    """Write a time in days, h, s, ms, us or ns, such as ``'1.23 ms'``."""
    return _scaled(seconds, "", _OF_TIME) if seconds >= 3600 else _scaled(seconds, "s", _DOWN)


def format_span(seconds: float, low_s: float, high_s: float) -> str:
    """Write a time with the ends between which it is, in the unit of the time, such as ``'52.9 ms (48 to 58, 90%)'``.

    >>> format_span(0.0529, 0.0481, 0.0577)
    '52.9 ms (48 to 58, 90%)'
    >>> format_span(0.2516, 0.23742, 0.2936)
    '252 ms (237 to 294, 90%)'
    >>> format_span(0.0196, 0.01956, 0.01964)
    '19.6 ms (19.6 to 19.6, 90%)'
    >>> format_span(0.99, 0.9, 1.25)
    '990 ms (900 to 1,250, 90%)'
    """
    shown = format_seconds(seconds)
    unit = shown.rpartition(" ")[2]
    scale = SECONDS.factors[unit]
    low, high = (_two_digits(end_s / scale) for end_s in (low_s, high_s))
    if low == high:
        low, high = (f"{end_s / scale:,.3g}" for end_s in (low_s, high_s))
    return f"{shown} ({low} to {high}, 90%)"


def _two_digits(number: float) -> str:
    """Write a number with two digits or, from 100 on, three."""
    return f"{float(f'{number:.{3 if number >= 99.5 else 2}g}'):,.10g}"


def format_count(number: float) -> str:
    """Write how many of something there are; of a mean that is not whole three digits.

    >>> format_count(4512), format_count(1500.4), format_count(2.25), format_count(0)
    ('4,512', '1,500', '2.25', '0')
    """
    whole = round(number)
    exact = math.isclose(number, whole, rel_tol=1e-9, abs_tol=1e-9)
    return f"{whole:,}" if exact or abs(number) >= 100 else f"{number:.3g}"


def format_number(value: float) -> str:
    """Write a number of which no unit is known: four digits, and all before the point.

    >>> format_number(59791.37), format_number(9999.7), format_number(0.123456), format_number(2.0)
    ('59,791', '10,000', '0.1235', '2')
    """
    return f"{value:,.0f}" if abs(float(f"{value:.4g}")) >= 1e4 else f"{value:,.4g}"


def format_rate(per_s: float) -> str:
    """Write how many of something there are in a second, such as ``'5,450'``."""
    rounded = float(f"{per_s:.3g}")
    if abs(rounded) < 1000:
        return _three_digits(per_s)[0]
    return f"{rounded:,.10g}" if abs(per_s) < 999_500 else _scaled(per_s, "", _OF_TOKENS)


def format_share(share: float) -> str:
    """Write a share, such as ``'35.7%'``."""
    return f"{share:.1%}"


def format_difference(after_s: float, before_s: float) -> str:
    """Say how much longer or shorter a time is than another.

    >>> format_difference(1.05, 1.0), format_difference(0.5, 1.0), format_difference(1.0, 1.0)
    ('5.0% longer', '50.0% shorter', 'the same')
    """
    if after_s == before_s or not before_s:
        return "the same"
    return f"{format_share(abs(after_s / before_s - 1))} {'longer' if after_s > before_s else 'shorter'}"


def format_times(ratio: float) -> str:
    """Write how many times as much, such as ``'1.55x'``."""
    return f"{ratio:.2f}x" if abs(ratio) < 9.995 else f"{_scaled(ratio, '', ())}x"


_WRITE: dict[str, Callable[[float], str]] = {
    BYTES.name: format_bytes,
    BYTES_PER_S.name: format_bytes_per_s,
    SECONDS.name: format_seconds,
    WATTS.name: format_watts,
    JOULES.name: format_joules,
    DOLLARS.name: format_dollars,
    RENT.name: format_rent,
    FLOPS_PER_S.name: format_flops_per_s,
    HERTZ.name: format_hertz,
}


def written(value: float, quantity: Quantity) -> str:
    """Write a number of SI units as its quantity is written, such as ``'25 MiB'``; failures by the year."""
    if quantity is FAILURES:
        return f"{value / quantity.factors['/year']:.3g}/year"
    return _WRITE[quantity.name](value)
