"""How the client of a schema registry logs in: by a user's password, with a certificate, and at whose server."""

from __future__ import annotations

import base64
import gc
import json
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from queues import schema_registry
from sardonyx.connectors.registry import topic_format
from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import load_settings
from tests.services.secured import Authority

LOGIN = "app:pass-word-1"
SCHEMA = {"schemaType": "AVRO", "schema": json.dumps({"type": "record", "name": "r", "fields": []})}


class Guarded(BaseHTTPRequestHandler):
    """A registry with one schema, for those that log in."""

    asked: list[str | None]

    def do_GET(self) -> None:
        said = self.headers.get("Authorization")
        self.asked.append(said)
        let_in = said == f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
        body = json.dumps(SCHEMA if let_in else {"error_code": 401, "message": "who?"}).encode()
        self.send_response(200 if let_in else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def registry(context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """Its address, and the login of each request that it gets."""
    asked: list[str | None] = []
    with HTTPServer(("127.0.0.1", 0), type("Handler", (Guarded,), {"asked": asked})) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def read(named: str | None = None, **settings: Any) -> str:
    """Read a record through the registry that a job names, or that of the settings; gives the error's code, or nothing."""
    known = load_settings(**{f"kafka.schema{key}": value for key, value in settings.items()}).kafka.registry
    options = {"topic": "t", "format": "avro", **({} if named is None else {"registry": named})}
    try:
        topic_format(options, known).decode([b"\0\0\0\0\x07"])
    except SetupError as error:
        told = error
    else:
        return ""
    assert LOGIN.partition(":")[2] not in f"{told}{told.cause}{told.where}"
    return told.code


def test_a_login_goes_to_the_registry_of_the_settings_and_to_no_other() -> None:
    """A job can name any address: who submits it would otherwise have the password sent to himself."""
    login = {".registry.basic.auth.user.info": LOGIN}
    with registry() as (address, asked), registry() as (other, heard):
        assert read(_registry=address, **login) == ""
        assert read(address, _registry=address, **login) == ""
        assert read(_registry=address) == "SX-REGISTRY-DENIED"
        assert read(other, _registry=address, **login) == "SX-REGISTRY-DENIED"
        assert asked[0]
        assert heard == [None]


def test_certificates_of_both_sides_are_those_of_the_settings(tmp_path: Path) -> None:
    """The server's is signed by an authority of the user's own; it asks for one of the client. They hold for all registries."""
    authority = Authority(tmp_path)
    server, client = authority.issue("registry", address="127.0.0.1"), authority.issue("peer")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(*map(str, server))
    context.verify_mode = ssl.CERT_REQUIRED
    trusting = {".registry.ssl.ca.location": str(authority.path), ".registry.basic.auth.user.info": LOGIN}
    known = {".registry.ssl.certificate.location": str(client[0]), ".registry.ssl.key.location": str(client[1])}
    with registry(context) as (address, asked):
        url = {".registry.url": address, ".registry.max.retries": 0}
        assert read(**url, **known) == "SX-REGISTRY-UNREACHABLE"
        assert read(**url, **trusting) == "SX-REGISTRY-UNREACHABLE"
        assert asked == []
        assert read(**url, **trusting, **known) == ""
        assert read(address, **{".registry.max.retries": 0}, **trusting, **known) == "SX-REGISTRY-DENIED"


def test_a_client_that_nobody_uses_any_more_closes_its_connections() -> None:
    """The process keeps those of its last few registries. Python warns of each connection that is left to it to close."""
    with registry() as (address, _), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert read(_registry=address) == "SX-REGISTRY-DENIED"
        schema_registry.client.cache_clear()
        gc.collect()
        assert [str(each.message) for each in told if issubclass(each.category, ResourceWarning)] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"basic.auth.user.info": "pass-word-1"}, "username"),
        ({"basic.auth.user": LOGIN}, "basic.auth.user"),
        ({"ssl.ca.location": "/nowhere.pem"}, "No such file"),
    ],
)
def test_what_the_client_does_not_take_is_a_wrong_setting(wrong: dict[str, str], said: str) -> None:
    """And no error of the job."""
    known = load_settings(
        **{f"kafka.schema.registry.{key}": value for key, value in {"url": "http://a", **wrong}.items()}
    )
    with pytest.raises(SetupError, match=r"kafka\.schema\.registry\.") as refused:
        topic_format({"topic": "t", "format": "avro"}, known.kafka.registry)
    assert refused.value.code == "SX-CONFIG-VALUE"
    assert said in str(refused.value.cause)
    assert "pass-word-1" not in str(refused.value.cause)


def test_kafkas_clients_are_not_given_what_is_the_registrys() -> None:
    """They would refuse it. A listing of the settings masks the login."""
    settings = load_settings(**{"kafka.schema.registry.basic.auth.user.info": LOGIN, "kafka.linger.ms": 5})
    assert settings.kafka.client() == {"linger.ms": 5}
    assert LOGIN not in repr(settings.shown()) + repr(settings)
