"""Who may do what with the pages: each role on each address, what is refused before that, and the file of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from web_site import EVENTS, Running, Site

from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.web.access import Visitor, read_tokens
from sardonyx.web.actions import ACTIONS, wish_of
from sardonyx.web.api import ADDRESSES
from sardonyx.web.app import PAGES

TOKENS = {"viewer": "v" * 40, "operator": "o" * 40}
ASKS = {
    "nobody": {},
    "a stranger": {"authorization": f"Bearer {'x' * 40}"},
    "a cookie": {"cookie": f"sardonyx={TOKENS['operator']}"},
    "another scheme": {"authorization": f"Basic {TOKENS['operator']}"},
    "viewer": {"authorization": f"Bearer {TOKENS['viewer']}"},
    "operator": {"authorization": f"Bearer {TOKENS['operator']}"},
}
READS = (
    *(f"/api/v1{each.path}" for each in ADDRESSES),
    "/api/v1/session",
    "/api/v1/stream?topics=none",
    "/api/v1/openapi.json",
    "/sd/prometheus",
    "/metrics",
)
DEEDS = tuple(f"/api/v1{each.path}" for each in ACTIONS)
OPEN = (*PAGES, "/static/main.js", "/static/app.css")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Pages with a viewer and an operator."""
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text("# name role token\n\n" + "".join(f"{role[:3]} {role} {token}\n" for role, token in TOKENS.items()))
    return Site(Running(EVENTS), access=read_tokens(path))


def filled(path: str) -> str:
    values = {"{job}": "j-1", "{n}": "2", "{n:int}": "2", "{task}": "read", "{link}": "l", "{offset}": "0"}
    for name, value in values.items():
        path = path.replace(name, value)
    return path


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("path", READS)
def test_what_is_read_asks_for_a_token_of_any_role(guarded: Site, path: str, asks: str) -> None:
    """Every address below ``/api``. A request without a token is refused before anything is looked up, also with a cookie."""
    answer = guarded.get(filled(path), ASKS[asks])
    if asks in TOKENS:
        assert answer.status not in (401, 405)
        assert answer.status != 403 or answer.json()["code"] == "SX-WEB-ROWS"
    else:
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["code"] == "SX-WEB-LOGIN"


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("path", DEEDS)
def test_only_an_operator_changes_anything(guarded: Site, path: str, asks: str) -> None:
    """A viewer may not, and the answer says so. Where an operator comes through, it is said that there is nothing to act on."""
    answer = guarded.get(filled(path), {**ASKS[asks], "idempotency-key": "a" * 32}, "POST")
    wanted = {"viewer": (403, "SX-WEB-ROLE"), "operator": (405, "SX-WEB-METHOD")}.get(asks, (401, "SX-WEB-LOGIN"))
    assert (answer.status, answer.json()["code"]) == wanted
    assert asks != "operator" or "no ZooKeeper here" in answer.json()["detail"]


@pytest.mark.parametrize("path", OPEN)
def test_the_pages_themselves_hold_no_data_and_ask_for_no_token(guarded: Site, path: str) -> None:
    """They are the same files for everyone: the browser needs them to ask for the token."""
    assert guarded.get(filled(path)).status == 200
    assert guarded.get(filled(path)).body == Site(Running(EVENTS)).get(filled(path)).body


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PURGE"])
def test_an_operator_too_may_only_do_what_there_is(guarded: Site, method: str) -> None:
    """No other method on an action, and no POST on anything else."""
    for path in (*READS, *OPEN, *(DEEDS if method != "POST" else ())):
        assert guarded.get(filled(path), ASKS["operator"], method).status == 405, (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"host": "evil.example:8484"},
    ],
)
def test_an_action_comes_from_our_own_pages_or_from_a_script(guarded: Site, headers: dict[str, str]) -> None:
    """A page elsewhere does not get through, even with a token and on a plain link."""
    for path in DEEDS:
        answer = guarded.get(filled(path), {**ASKS["operator"], "idempotency-key": "a" * 32, **headers}, "POST")
        assert answer.json()["code"] == ("SX-WEB-HOST" if "host" in headers else "SX-WEB-ORIGIN")


def test_who_one_is_and_whether_one_may_act(guarded: Site) -> None:
    """Pages without tokens take everyone for a viewer; an operator acts only where a deployment runs."""
    assert Site(Running(EVENTS)).get("/api/v1/session").json() == {"name": "", "role": "viewer", "acts": False}
    seen = [guarded.get("/api/v1/session", ASKS[role]).json() for role in TOKENS]
    assert seen == [
        {"name": "vie", "role": "viewer", "acts": False},
        {"name": "ope", "role": "operator", "acts": False},
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line"),
        ("# ana operator x\n", "no line"),
        ("ana operator", "line 1 has 2 words"),
        ("ana boss " + "t" * 40, "line 1, the role"),
        ("a/b viewer " + "t" * 40, "line 1, the name"),
        ("ana viewer " + "t" * 31, "fewer than 32"),
        ("ana viewer {0}\nbo operator {0}".format("t" * 40), "line 2 has the token"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used_is_refused_and_not_quoted(
    tmp_path: Path, text: str | None, says: str
) -> None:
    """The pages do not begin, rather than let in whom they should not."""
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SetupError) as caught:
        read_tokens(path)
    assert caught.value.code == "SX-WEB-TOKENS"
    assert says in str(caught.value)
    assert "tttt" not in str(caught.value)


def test_a_repeated_action_is_the_same_wish_and_any_other_is_not() -> None:
    """Visitor, action, job and key together make it: none of them may be mixed up with another."""
    ana, bo = Visitor("ana", "operator"), Visitor("bo", "operator")
    key, parts = "0123456789abcdef", {"job": "j-1"}
    first = wish_of(ana, ACTIONS[0], parts, key)
    assert wish_of(ana, ACTIONS[0], parts, key) == first
    others = [
        wish_of(bo, ACTIONS[0], parts, key),
        wish_of(ana, ACTIONS[1], parts, key),
        wish_of(ana, ACTIONS[0], {"job": "j-2"}, key),
        wish_of(ana, ACTIONS[0], parts, key + "0"),
    ]
    assert len({first.token, *(each.token for each in others)}) == 5
    assert first.by.startswith("ana@")
    assert first.by.endswith(" web")
    for wrong in ("", "short", "a b" * 10, "ä" * 20, "a" * 101):
        with pytest.raises(SardonyxError, match="Idempotency-Key"):
            wish_of(ana, ACTIONS[0], parts, wrong)
