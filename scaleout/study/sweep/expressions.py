"""Expressions of study files, such as ``ranks == 128 and fits``, to functions of a case's columns.

Numbers, texts, truth values, columns by their name, which may have dots (``set.global_batch``, or ``bandwidth[0]``
where what follows the dot is no word); ``+ - * / // % **``, comparisons and ``in``, ``and or not``, ``a if b else c``,
and the functions of `FUNCTIONS`. What is not there makes whatever is computed with it missing (None), and so does what
has no finite value, as a division by zero. Python reads the text, and nothing of it runs but what is in the tables
here.
"""

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scaleout.config.documents import LARGEST_INTEGER
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, shown

Columns = Mapping[str, Any]
_Function = Callable[[Columns], Any]

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs, "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "max": max, "min": min, "round": round,
    "sqrt": math.sqrt,
}  # fmt: skip

_NUMBERS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: lambda base, power: float(base) ** power,
    ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip
_COMPARISONS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}  # fmt: skip
_LONGEST = 1000


@dataclass(frozen=True)
class Expression:
    """An expression of a file: where it stands, its text, the columns that it reads, and what it makes of them."""

    where: str
    text: str
    names: frozenset[str]
    evaluate: _Function
    tree: ast.expr

    def __call__(self, columns: Columns) -> Any:
        """Return its value for a case; None where that is missing, or no finite number.

        `ConfigError` if it computes with what is no number.
        """
        try:
            value = self.evaluate(columns)
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                value = float(value)
        except (ZeroDivisionError, OverflowError, ValueError):
            return None
        except TypeError as error:
            raise ConfigError(f"{self.where}: {shown(self.text)}: {error}; compute with numbers alone") from None
        if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
            return None
        return value

    def types(self, columns: Mapping[str, Collection[type]]) -> frozenset[type]:
        """Return of which types its values can be, from those of the columns; all numbers are floats to it."""
        return _types(self.tree, columns)

    def check(self, example: Columns) -> None:
        """Refuse columns that no case has, and to compute with texts as those of an example are (`ConfigError`)."""
        for name in sorted(self.names - example.keys()):
            raise ConfigError(f"{self.where}: {shown(self.text)}: unknown column {name!r}; {nearest(name, example)}")
        self(example)


def parse(text: str, *, where: str) -> Expression:
    """Read an expression; `ConfigError` says what of it is none.

    >>> parse("set.batch / 2 if fits else 0", where="columns")({"set.batch": 8, "fits": True})
    4.0
    """
    if len(text) > _LONGEST:
        raise ConfigError(f"{where}: {shown(text)} has more than {_LONGEST} characters; write less")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        names: set[str] = set()
        evaluate = _compiled(tree, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"{where}: {shown(text)} is no expression ({why}); write it as `ranks == 128`") from None
    return Expression(where, text, frozenset(names), evaluate, tree)


def _types(tree: ast.expr, columns: Mapping[str, Collection[type]]) -> frozenset[type]:
    """Return of which types the values of a part of an expression can be."""
    if isinstance(tree, ast.Name | ast.Attribute | ast.Subscript):
        return frozenset(columns[_dotted(tree)])
    chosen = [tree.body, tree.orelse] if isinstance(tree, ast.IfExp) else []
    if isinstance(tree, ast.Call) and ast.unparse(tree.func) in ("max", "min"):
        chosen = tree.args
    if chosen:
        return frozenset[type]().union(*(_types(each, columns) for each in chosen))
    if isinstance(tree, ast.Constant):
        return frozenset({type(tree.value)})
    truth = isinstance(tree, ast.Compare | ast.BoolOp) or (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    )
    return frozenset({bool if truth else tuple if isinstance(tree, ast.List | ast.Tuple) else float})


def _compiled(tree: ast.expr, names: set[str]) -> _Function:
    """Return a function of columns; the names of those that it reads are added to `names`."""
    for kinds, compile_ in _COMPILERS.items():
        if isinstance(tree, kinds):
            return compile_(tree, names)
    raise ValueError(f"{ast.unparse(tree)} is none of what may stand there")


def _constant(tree: ast.Constant, _names: set[str]) -> _Function:
    if not isinstance(tree.value, bool | int | float | str):
        raise ValueError(f"{ast.unparse(tree)} is neither number nor text")  # noqa: TRY004 - as for all else
    return lambda _columns: tree.value


def _column(tree: ast.expr, names: set[str]) -> _Function:
    name = _dotted(tree)
    names.add(name)
    return lambda columns: columns.get(name)


def _choice(tree: ast.IfExp, names: set[str]) -> _Function:
    test, then, other = (_compiled(each, names) for each in (tree.test, tree.body, tree.orelse))

    def evaluate(columns: Columns) -> Any:
        found = test(columns)
        return None if found is None else (then if found else other)(columns)

    return evaluate


def _several(tree: ast.List | ast.Tuple, names: set[str]) -> _Function:
    return _present(lambda *values: values, [_compiled(each, names) for each in tree.elts])


def _one(tree: ast.UnaryOp, names: set[str]) -> _Function:
    operation = operator.not_ if isinstance(tree.op, ast.Not) else _of_numbers(tree.op)
    return _present(operation, [_compiled(tree.operand, names)])


def _two(tree: ast.BinOp, names: set[str]) -> _Function:
    return _present(_of_numbers(tree.op), [_compiled(each, names) for each in (tree.left, tree.right)])


def _call(tree: ast.Call, names: set[str]) -> _Function:
    name = tree.func.id if isinstance(tree.func, ast.Name) else ast.unparse(tree.func)
    if name not in FUNCTIONS or tree.keywords:
        raise ValueError(f"no function {name!r} of plain values; {nearest(name, FUNCTIONS)}")
    return _present(_checked(FUNCTIONS[name]), [_compiled(each, names) for each in tree.args])


def _dotted(tree: ast.expr) -> str:
    if isinstance(tree, ast.Name):
        return tree.id
    if isinstance(tree, ast.Attribute):
        return f"{_dotted(tree.value)}.{tree.attr}"
    if (
        isinstance(tree, ast.Subscript)
        and isinstance(tree.slice, ast.Constant)
        and isinstance(tree.slice.value, str | int)
    ):
        return f"{_dotted(tree.value)}.{tree.slice.value}"
    raise ValueError(f"{ast.unparse(tree)} is no name of a column")


def _present(function: Callable[..., Any], parts: list[_Function]) -> _Function:
    """Return a function whose value is missing where one of its parts is."""

    def evaluate(columns: Columns) -> Any:
        values = [part(columns) for part in parts]
        return None if any(value is None for value in values) else function(*values)

    return evaluate


def _of_numbers(operation: ast.AST) -> Callable[..., Any]:
    if type(operation) not in _NUMBERS:
        raise ValueError(f"{type(operation).__name__} is no operation of numbers")
    return _checked(_NUMBERS[type(operation)])


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes numbers alone; a text times a number would be a text, and however long."""

    def call(*values: Any) -> Any:
        for value in values:
            if not isinstance(value, int | float):
                raise TypeError(f"{shown(value)} is no number")
        return function(*values)

    return call


def _logical(tree: ast.BoolOp, names: set[str]) -> _Function:
    """Return ``and`` or ``or`` of parts: decided by those that are there, missing if they do not decide it."""
    every, parts = isinstance(tree.op, ast.And), [_compiled(each, names) for each in tree.values]

    def evaluate(columns: Columns) -> bool | None:
        missing = False
        for part in parts:
            value = part(columns)
            missing |= value is None
            if value is not None and bool(value) is not every:
                return not every
        return None if missing else every

    return evaluate


def _comparison(tree: ast.Compare, names: set[str]) -> _Function:
    parts = [_compiled(each, names) for each in (tree.left, *tree.comparators)]
    for each in tree.ops:
        if type(each) not in _COMPARISONS:
            raise ValueError(f"{type(each).__name__} is no comparison of values")
    compared = [_COMPARISONS[type(each)] for each in tree.ops]

    def evaluate(columns: Columns) -> bool | None:
        values = [part(columns) for part in parts]
        if any(value is None for value in values):
            return None
        return all(each(*pair) for each, pair in zip(compared, pairwise(values), strict=True))

    return evaluate


_COMPILERS: Mapping[Any, Callable[[Any, set[str]], _Function]] = {
    ast.Constant: _constant,
    (ast.Name, ast.Attribute, ast.Subscript): _column,
    ast.IfExp: _choice,
    ast.BoolOp: _logical,
    ast.Compare: _comparison,
    (ast.List, ast.Tuple): _several,
    ast.UnaryOp: _one,
    ast.BinOp: _two,
    ast.Call: _call,
}
"""Kinds of a part of an expression to what makes a function of it."""
