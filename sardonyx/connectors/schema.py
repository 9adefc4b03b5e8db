"""Spark's schema strings, read without a JVM: ``"carrier string, dep_delay double"`` as an Arrow schema. Pure.

The types mean what they mean to Spark: ``timestamp`` is a moment (microseconds, UTC), ``timestamp_ntz`` has no zone,
``int`` has 32 bits. Column names may be quoted with backticks; ``NOT NULL`` and ``COMMENT '...'`` may follow a type.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sardonyx.core.errors import JobInvalid, SardonyxError
from sardonyx.core.text import near

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from sardonyx.runtime.lazy import lazy_module

    pa = lazy_module("pyarrow")

_SIMPLE = {
    "string": "string",
    "boolean": "bool_",
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
    "date": "date32",
    "binary": "binary",
}
"""Type -> its function in pyarrow, by name: pyarrow takes long to import and is loaded with the first schema."""
_TIMES = {"timestamp": "UTC", "timestamp_ltz": "UTC", "timestamp_ntz": None}
"""Type -> its time zone."""
_DECIMALS = ("decimal", "dec", "numeric")
_KNOWN = (*_SIMPLE, *_TIMES, *_DECIMALS, "varchar", "char", "array", "map", "struct")
_MAX_PRECISION = 38

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>[\w.-]+)"
    r"|(?P<sign>[<>(),:]))"
)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def arrow_schema(ddl: str) -> pa.Schema:
    """An Arrow schema from Spark's DDL form.

    Raises:
        JobInvalid: ``SX-JOB-SCHEMA``, with the place and, for a mistyped type, the nearest known one.
    """
    return _Parser(ddl).schema()


class _Parser:
    """Recursive descent over one schema string."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._scan()
        self._next = 0

    def schema(self) -> pa.Schema:
        fields = self._fields(end="")
        if not fields:
            raise self._wrong("it names no column", 0)
        return pa.schema(fields)

    def _scan(self) -> list[_Token]:
        tokens: list[_Token] = []
        at, end = 0, len(self._ddl.rstrip())
        while at < end:
            match = _TOKEN.match(self._ddl, at)
            if match is None:
                rest = self._ddl[at:]
                at += len(rest) - len(rest.lstrip())
                raise self._wrong(f"{self._ddl[at]!r} is not allowed here", at)
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return [*tokens, _Token("end", "", end)]

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _accept(self, text: str) -> bool:
        if self._token.kind in ("sign", "word") and self._token.text.lower() == text:
            self._take()
            return True
        return False

    def _expect(self, text: str, after: str) -> None:
        if not self._accept(text):
            raise self._wrong(f"{text!r} is missing {after}", self._token.at)

    def _fields(self, *, end: str) -> list[pa.Field]:
        """Columns up to the sign ``end`` (which stays), or to the end of the string."""
        fields: list[pa.Field] = []
        names: set[str] = set()
        while self._token.kind != "end" and self._token.text != end:
            if fields:
                self._expect(",", f"after column {fields[-1].name!r}")
            token = self._take()
            if token.kind not in ("word", "quoted"):
                raise self._wrong("a column's name should come here", token.at)
            name = token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text
            if name.lower() in names:
                raise self._wrong(f"column {name!r} is there twice (Spark ignores case)", token.at)
            names.add(name.lower())
            self._accept(":")
            if self._token.kind == "end" or self._token.text in (",", end):
                raise self._wrong(f"column {name!r} has no type", token.at)
            kind = self._type()
            fields.append(pa.field(name, kind, nullable=self._nullable()))
        return fields

    def _nullable(self) -> bool:
        """What may follow a type: NOT NULL, COMMENT 'text'."""
        nullable = True
        if self._accept("not"):
            self._expect("null", "after NOT")
            nullable = False
        if self._accept("comment"):
            token = self._take()
            if token.kind != "text":
                raise self._wrong("a quoted text should follow COMMENT", token.at)
        return nullable

    def _type(self) -> pa.DataType:
        token = self._take()
        name = token.text.lower()
        if token.kind != "word":
            raise self._wrong("a type should come here", token.at)
        if name in _DECIMALS:
            return self._decimal(token)
        if name in ("varchar", "char"):
            self._numbers(name, token, 1)
            return pa.string()
        if name == "array":
            self._expect("<", "after array")
            item = self._type()
            self._expect(">", "at the end of array<...>")
            return pa.list_(pa.field("element", item))
        if name == "map":
            self._expect("<", "after map")
            key = self._type()
            self._expect(",", "between the types of map<key, value>")
            value = self._type()
            self._expect(">", "at the end of map<...>")
            return pa.map_(key, value)
        if name == "struct":
            self._expect("<", "after struct")
            fields = self._fields(end=">")
            self._expect(">", "at the end of struct<...>")
            return pa.struct(fields)
        if name not in _SIMPLE and name not in _TIMES:
            raise self._wrong(f"there is no type {token.text!r}{near(name, _KNOWN)}", token.at)
        found: pa.DataType = pa.timestamp("us", tz=_TIMES[name]) if name in _TIMES else getattr(pa, _SIMPLE[name])()
        return found

    def _decimal(self, token: _Token) -> pa.DataType:
        numbers = self._numbers("decimal", token, 2) if self._token.text == "(" else []
        precision, scale = [*numbers, *[10, 0][len(numbers) :]]
        if not 1 <= precision <= _MAX_PRECISION or not 0 <= scale <= precision:
            raise self._wrong(
                f"decimal({precision}, {scale}) does not exist: 1 to {_MAX_PRECISION} digits, "
                "and no more of them after the point than there are",
                token.at,
            )
        return pa.decimal128(precision, scale)

    def _numbers(self, name: str, token: _Token, most: int) -> list[int]:
        self._expect("(", f"after {name}")
        numbers: list[int] = []
        while len(numbers) < most:
            number = self._take()
            if not number.text.isdecimal():
                raise self._wrong(f"{name}(...) should contain a whole number", number.at)
            numbers.append(int(number.text))
            if not self._accept(","):
                break
        if not self._accept(")"):
            raise self._wrong(f"')' is missing at the end of {name}(...)", self._token.at)
        if not numbers:
            raise self._wrong(f"{name} needs a length", token.at)
        return numbers

    def _wrong(self, what: str, at: int) -> JobInvalid:
        start, end = max(0, at - 15), at + 25
        shown = ("..." if start else "") + self._ddl[start:at] + "^" + self._ddl[at:end]
        return JobInvalid(
            [
                SardonyxError(
                    "SX-JOB-SCHEMA",
                    f"schema: {what}",
                    cause=f"at character {at + 1}: {shown + ('...' if end < len(self._ddl) else '')}",
                    fix='write columns as "name type, name type"; '
                    "types are Spark's: string, int, bigint, double, boolean, date, timestamp, decimal(10,2), "
                    "array<string>, map<string,int>, struct<a:int> ...",
                )
            ]
        )
