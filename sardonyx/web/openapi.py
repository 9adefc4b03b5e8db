"""The OpenAPI document, made from the table of addresses. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sardonyx.core.version import VERSION
from sardonyx.web.access import Session
from sardonyx.web.actions import ACTIONS, Action, Done
from sardonyx.web.api import ADDRESSES, Address
from sardonyx.web.problems import Problem

_REF = "#/components/schemas/{name}"

_STREAM = (
    "Server-sent events. Each stream begins with the state of its topics and then has each change: `state` (a topic and its "
    "whole state), `gone` (a topic and a problem), `bye` (the server ends)."
)


def document() -> dict[str, Any]:
    """The whole document."""
    schemas, components = msgspec.json.schema_components(
        [*(address.answer for address in ADDRESSES), Problem, Session, Done], ref_template=_REF
    )
    asked = {each.query for each in (*ADDRESSES, *ACTIONS)}
    queries = msgspec.json.schema_components(asked, ref_template=_REF)[1]
    paths: dict[str, Any] = {
        f"/api/v1{address.path}": {"get": _operation(address, schema, queries[address.query.__name__])}
        for address, schema in zip(ADDRESSES, schemas, strict=False)
    }
    paths |= {f"/api/v1{action.path}": {"post": _deed(action, queries[action.query.__name__])} for action in ACTIONS}
    paths["/api/v1/session"] = {
        "get": {
            "summary": "Who the server takes you for, and what you may do",
            "operationId": "session",
            "parameters": [],
            "responses": {"200": _json("The visitor", _REF.format(name="Session")), "default": _problem()},
        }
    }
    paths["/api/v1/stream"] = {
        "get": {
            "summary": "What changes, as it changes",
            "description": _STREAM,
            "operationId": "stream",
            "parameters": [
                {
                    "name": "topics",
                    "in": "query",
                    "schema": {"type": "string", "default": ""},
                    "description": "With commas between them: cluster, job:ID. The topic standing is always there.",
                }
            ],
            "responses": {
                "200": {"description": "The stream", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
                "default": _problem(),
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sardonyx",
            "version": VERSION,
            "description": "A deployment. Within v1 there are only additions. Times are seconds since 1970. "
            "What changes something is a POST of an operator.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "If it asks for tokens."}},
        },
        "security": [{"token": []}],
    }


def _deed(action: Action, query: dict[str, Any]) -> dict[str, Any]:
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": True,
        "schema": {"type": "string", "minLength": 16, "maxLength": 100},
        "description": "A new uuid for each action; the same one when it is asked for again, which does nothing twice.",
    }
    done = _REF.format(name="Done")
    return {
        "summary": action.summary,
        "operationId": re.sub(r"\W+", "_", action.path).strip("_"),
        "parameters": [*_inside(action.path), *_asked(query), key],
        "responses": {
            "200": _json("The coordinator has taken it in", done),
            "202": _json("It is asked for, and no coordinator has taken it in yet", done),
            "default": _problem(),
        },
    }


def _inside(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer" if name in ("n", "offset") else "string"},
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _asked(query: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "query",
            "required": name in query.get("required", ()),
            "schema": {key: value for key, value in found.items() if key != "description"},
            **({"description": found["description"]} if "description" in found else {}),
        }
        for name, found in query.get("properties", {}).items()
    ]


def _operation(address: Address, schema: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": address.summary,
        "operationId": re.sub(r"\W+", "_", address.path).strip("_"),
        "parameters": [*_inside(address.path), *_asked(query)],
        "responses": {
            "200": {"description": address.summary, "content": {"application/json": {"schema": schema}}},
            "default": _problem(),
        },
    }


def _json(what: str, ref: str) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": {"$ref": ref}}}}


def _problem() -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": "A problem", "content": {"application/problem+json": {"schema": schema}}}
