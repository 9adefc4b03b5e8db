"""What counts as a secret, by name and by value; and that no text quotes one that is known."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx.core.secrets import MASK, Secrets, is_secret, masked, without_passwords
from sardonyx.runtime.settings import load_settings


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "sasl.jaas.config",
        "ssl.key.password",
        "api_key",
        "apikey",
        "X-Api-Key",
        "fs.s3a.access.key",
        "aws_secret_access_key",
        "private_key",
        "passwd",
        "db_pwd",
        "passphrase",
        "Authorization",
        "dsn",
        "connection_string",
        "connectionString",
        "storage.account.key",
        "schema.registry.basic.auth.user.info",
        "bearer_token",
        "client_secret",
    ],
)
def test_the_name_of_a_key_tells_that_it_is_a_secret(key: str) -> None:
    """In the spellings that are usual."""
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "topic",
        "key",
        "group_by",
        "keyed",
        "partitions",
        "path",
        "url",
        "zookeeper.auth.tls",
        "zookeeper.auth.verify",
        "ssl.ca.location",
        "monkey",
        "primary_key",
        "format",
        "start",
        "end",
        "mode",
        "author",
    ],
)
def test_other_names_are_no_secrets(key: str) -> None:
    """What a user must be able to read stays: also the keys of rows, and all that a decision reads."""
    assert not is_secret(key)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@host:1/x", f"https://user:{MASK}@host:1/x"),
        ("jdbc:postgresql://u:p%40w@h/db?ssl=true", f"jdbc:postgresql://u:{MASK}@h/db?ssl=true"),
        ("https://h/x?api_key=abc&n=1", f"https://h/x?api_key={MASK}&n=1"),
        ("Server=h;Password=abc;Database=d", f"Server=h;Password={MASK};Database=d"),
        ("https://user@host/x", "https://user@host/x"),
        ("http://127.0.0.1:8484/a@b", "http://127.0.0.1:8484/a@b"),
        ("a = b, c@d: e", "a = b, c@d: e"),
        ("no password here", "no password here"),
    ],
)
def test_a_value_tells_that_it_holds_a_password(text: str, shown: str) -> None:
    """A URL or a connection string, whatever its key is called. What is no password stays."""
    assert without_passwords(text) == shown
    assert masked({"address": [text]}) == {"address": [shown]}


def test_a_long_text_is_searched_in_a_moment() -> None:
    """A record in an error, say: the search takes time in proportion to the text, not to its square."""
    for text in (
        "x" * 1_000_000 + "=://",
        "a://b:" * 100_000,
        "a://" + "b" * 1_000_000,
        "&password" * 100_000,
        "=" * 1_000_000,
    ):
        assert without_passwords(text) == text


def test_a_known_secret_is_found_wherever_it_is_quoted() -> None:
    """Those under secret keys, also deep ones, and passwords of URLs; the longest first; short ones are left."""
    secrets = Secrets()
    secrets.learn({"deep": [{"token": ["planted-1", "planted-1-long"]}], "url": "x://u:planted-2@h", "pwd": "abc"})
    quoted: dict[str, Any] = {
        "a": ["planted-1-long planted-1"],
        "b": 'could not log in with "planted-2"',
        "n": 3,
        "c": "abc",
    }
    assert secrets.plain(quoted) == {
        "a": [f"{MASK} {MASK}"],
        "b": f'could not log in with "{MASK}"',
        "n": 3,
        "c": "abc",
    }


def test_settings_show_no_password_of_an_address() -> None:
    """That of the schema registry can only stand in its URL."""
    settings = load_settings(
        kafka={"schema_registry": "https://user:REGPW@reg:8081"}, spark={"conf": {"fs.s3a.access.key": "AKIA"}}
    )
    shown = {key: value for key, value, _ in settings.shown()}
    assert shown["kafka.schema_registry"] == f"https://user:{MASK}@reg:8081"
    assert "REGPW" not in repr(settings)
    assert "AKIA" not in str(shown)
