"""Whatever the API is asked, it answers as its OpenAPI document says: with what the address gives, or with a problem of ours."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from web_site import of_report

from sardonyx.web.api import ADDRESSES
from sardonyx.web.openapi import document
from sardonyx.web.problems import Problem
from tests.sizes import histories

PATHS = {path.removeprefix("/api/v1"): found["get"] for path, found in document()["paths"].items() if "get" in found}
KNOWN = [
    "doubles",
    "bad",
    "doubles-sof2db",
    "d",
    "double",
    "make",
    "bad-wg2vme",
    "make.double",
    "1",
    "42",
    "",
    "incident",
    "asc",
]


def values(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """What a parameter may be, what it nearly may be, and anything at all."""
    number = st.one_of(st.integers(), st.integers(-2, 50), st.floats()).map(str)
    return st.one_of(st.sampled_from([*KNOWN, *map(str, schema.get("enum", ()))]), number, st.text(max_size=20))


@st.composite
def questions(draw: st.DrawFn) -> tuple[Any, str]:
    """An address of the API with some of its parameters, and now and then with one that it does not have."""
    address = draw(st.sampled_from(ADDRESSES))
    path, query = address.path, []
    for each in PATHS[address.path]["parameters"]:
        value = draw(values(each["schema"]))
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", value.replace("/", "") or "x")
        elif draw(st.booleans()):
            query.append((each["name"], value))
    if draw(st.integers(0, 9)) == 0:
        query.append((draw(st.text(max_size=5)), "1"))
    return address, f"/api/v1{path}?{urlencode(query)}" if query else f"/api/v1{path}"


@settings(max_examples=histories(200, whole=600), deadline=None)
@given(asked=questions())
def test_every_question_has_an_answer_of_its_kind(asked: tuple[Any, str]) -> None:
    """Never an error of ours that was not expected, nor a field that the document does not have."""
    address, where = asked
    answer = SITE.get(where)
    if answer.status == 200:
        msgspec.convert(answer.json(), address.answer, strict=True)
    else:
        problem = answer.json(Problem)
        assert 400 <= answer.status < 500, (quote(where), problem)
        assert (problem.status, answer.headers["content-type"]) == (answer.status, "application/problem+json")


SITE = of_report()
