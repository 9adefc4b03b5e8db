"""The embedded Kafka's jars: only those whose digests are in the repository run."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from sardonyx.core.errors import SetupError
from sardonyx.dev import kafka_jars
from sardonyx.runtime.java import Java

JAVA = Java(Path("/no/java"), 17)
CONTENTS = {"one.jar": b"the first", "two.jar": b"the second"}


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small jars in the cache, as downloaded earlier, and their digests as the pinned ones."""
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(tmp_path))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    monkeypatch.setattr(kafka_jars, "pinned", lambda: digests)
    folder = kafka_jars.jars_dir()
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    return folder


def test_every_jar_of_the_broker_is_pinned() -> None:
    """45 jars with a SHA-256 digest each; the broker and the client are of the version that we name."""
    pinned = kafka_jars.pinned()
    assert len(pinned) == 45
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in pinned.values())
    assert {f"kafka_2.13-{kafka_jars.KAFKA_VERSION}.jar", f"kafka-clients-{kafka_jars.KAFKA_VERSION}.jar"} <= set(
        pinned
    )


def test_jars_with_the_pinned_digests_are_used(jars: Path) -> None:
    """Without a download: there is no Java here that could do it."""
    assert kafka_jars.ensure_kafka(JAVA) == jars


def test_a_tampered_jar_is_refused(jars: Path) -> None:
    """SX-KAFKA-JAR names the file, the digest that it has, and the one that it should have."""
    (jars / "two.jar").write_bytes(b"something else")
    with pytest.raises(SetupError) as caught:
        kafka_jars.ensure_kafka(JAVA)
    error = caught.value
    assert error.code == "SX-KAFKA-JAR"
    assert error.message.startswith("two.jar ")
    assert hashlib.sha256(b"something else").hexdigest() in error.cause
    assert hashlib.sha256(CONTENTS["two.jar"]).hexdigest() in error.cause
    assert str(jars) in error.fix
    assert error.where["path"] == str(jars / "two.jar")


def test_a_jar_that_nobody_asked_for_is_refused(jars: Path) -> None:
    """It would be on the broker's class path."""
    (jars / "zzz.JAR").write_bytes(b"a stranger")
    with pytest.raises(SetupError, match="zzz") as caught:
        kafka_jars.ensure_kafka(JAVA)
    assert "no file of this name is wanted" in caught.value.cause


def test_a_tampered_download_is_not_kept(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ivy brought is verified before it gets its name; what Ivy keeps is removed, so that the next try asks again."""
    shutil.rmtree(jars)
    ivy = jars.parent / "ivy"

    def tampered(java: Java, cache: Path, lib: Path) -> list[str]:
        cache.mkdir()
        lib.mkdir(parents=True)
        for name in CONTENTS:
            (lib / name).write_bytes(b"from a wrong mirror")
        return ["true"]

    monkeypatch.setattr(kafka_jars, "_ivy_command", tampered)
    with pytest.raises(SetupError) as caught:
        kafka_jars.ensure_kafka(JAVA)
    assert caught.value.code == "SX-KAFKA-JAR"
    assert not jars.exists()
    assert not ivy.exists()
    assert not list(jars.parent.glob(".kafka-*"))


def test_an_incomplete_directory_counts_as_not_downloaded(jars: Path) -> None:
    """As after a download of an older release that needed fewer jars."""
    assert kafka_jars.cached()
    (jars / "one.jar").unlink()
    assert not kafka_jars.cached()
