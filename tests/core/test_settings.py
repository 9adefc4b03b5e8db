"""Settings: where they come from, who wins, what is refused, what is never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from sardonyx.cli.call import Call
from sardonyx.core import units
from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import Settings, load_settings, variable
from sardonyx.runtime.settings_sections import SchemaRegistry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in a directory of its own, without any sardonyx.toml above it that could speak."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_stand_without_file_environment_and_flags() -> None:
    """Nothing set: the documented defaults, durations in seconds, no addresses."""
    settings = load_settings()
    assert settings.deployment == "default"
    assert settings.zookeeper.hosts is None
    assert settings.zookeeper.session_timeout == 8.0
    assert settings.peer.heartbeat == 1.0
    assert settings.coordinator.snapshot_every == 1000
    assert settings.coordinator.failure_backoff == 1.0
    assert settings.coordinator.keep_jobs == 1000
    assert settings.kafka.client() == {}
    assert settings.origins == {}


def test_flags_win_over_environment_over_file_over_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four settings is set in one place more; the strongest of them wins, and its origin is known."""
    (folder / "sardonyx.toml").write_text(
        'deployment = "file"\n[coordinator]\nack_timeout = "1 s"\nrevoke_grace = "1 s"\nsnapshot_every = 1\n'
    )
    monkeypatch.setenv("SARDONYX__COORDINATOR__ACK_TIMEOUT", "2 s")
    monkeypatch.setenv("SARDONYX__COORDINATOR__REVOKE_GRACE", "2 s")
    monkeypatch.setenv("SARDONYX__LOG__LEVEL", "DEBUG")
    settings = load_settings(coordinator={"ack_timeout": "3 s"}, log={"format": None})
    assert settings.coordinator.ack_timeout == 3.0
    assert settings.coordinator.revoke_grace == 2.0
    assert settings.coordinator.snapshot_every == 1
    assert settings.deployment == "file"
    assert settings.log.level == "debug"
    origin = {key: where for key, _, where in settings.shown()}
    assert origin["coordinator.ack_timeout"] == "command line or argument"
    assert origin["coordinator.revoke_grace"] == "environment SARDONYX__COORDINATOR__REVOKE_GRACE"
    assert origin["coordinator.snapshot_every"] == str(folder / "sardonyx.toml")
    assert origin["log.format"] == "default"


def test_the_file_is_found_upwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sardonyx.toml above the working directory counts; a nearer one hides it."""
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    (folder / "sardonyx.toml").write_text('deployment = "far"\n')
    monkeypatch.chdir(deep)
    assert load_settings().deployment == "far"
    (folder / "a" / "sardonyx.toml").write_text('deployment = "near"\n')
    assert load_settings().deployment == "near"


def test_flags_may_be_nested_or_dotted_and_none_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of writing a flag give the same; None leaves the setting alone."""
    monkeypatch.setenv("SARDONYX__ZOOKEEPER__HOSTS", "env:1")
    assert load_settings(zookeeper={"hosts": "flag:1"}).zookeeper.hosts == "flag:1"
    assert load_settings(**{"zookeeper.hosts": "flag:1"}).zookeeper.hosts == "flag:1"
    assert load_settings(zookeeper={"hosts": None}).zookeeper.hosts == "env:1"


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files write unset variables as empty ones."""
    monkeypatch.setenv("SARDONYX__DEPLOYMENT", "")
    assert load_settings().deployment == "default"


@pytest.mark.parametrize("place", ["file", "environment", "flags"])
def test_an_unknown_key_is_refused_and_the_nearest_known_one_named(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands: SX-CONFIG-UNKNOWN with the key, where it stands, and what was probably meant."""
    if place == "file":
        (folder / "sardonyx.toml").write_text('[zookeeper]\nhost = "a:1"\n')
    elif place == "environment":
        monkeypatch.setenv("SARDONYX__ZOOKEEPER__HOST", "a:1")
    with pytest.raises(SetupError) as caught:
        load_settings(**({"zookeeper.host": "a:1"} if place == "flags" else {}))
    assert caught.value.code == "SX-CONFIG-UNKNOWN"
    assert "zookeeper.host " in caught.value.message
    assert "did you mean zookeeper.hosts?" in caught.value.message
    where = {"file": "sardonyx.toml", "environment": "SARDONYX__ZOOKEEPER__HOST", "flags": "command line"}[place]
    assert where in caught.value.message


def test_every_unknown_key_of_a_place_is_named(folder: Path) -> None:
    """One error reports two mistakes in one file."""
    (folder / "sardonyx.toml").write_text("deploymint = 1\n[peer]\nheart_beat = 1\n")
    with pytest.raises(SetupError, match=r"deploymint.*peer\.heart_beat"):
        load_settings()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("coordinator.ack_timeout", "5 parsecs", "units are ms, s, min, h, d"),
        ("coordinator.snapshot_every", "0", "greater than or equal to 1"),
        ("coordinator.failure_backoff", "soon", "units are ms, s, min, h, d"),
        ("coordinator.keep_jobs", "-1", "greater than or equal to 0"),
        ("log.level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("deployment", "a.b", "must be a letter"),
        ("kafka.replication_factor", "0", "must be 1 or more"),
        ("peer.virtual_peers", "many", "a number from 1 on, or 'auto'"),
    ],
)
def test_a_bad_value_names_key_value_origin_and_reason(
    key: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SX-CONFIG-VALUE says all that is needed to correct the value."""
    monkeypatch.setenv(variable(key), value)
    with pytest.raises(SetupError) as caught:
        load_settings()
    assert caught.value.code == "SX-CONFIG-VALUE"
    for part in (key, repr(value), variable(key), reason):
        assert part in caught.value.message


def test_a_rule_between_settings_is_told_too() -> None:
    """A heartbeat that the session timeout cannot bear is refused."""
    with pytest.raises(SetupError, match="at most a third") as caught:
        load_settings(peer={"heartbeat": "5 s"})
    assert caught.value.code == "SX-CONFIG-VALUE"


def test_a_broken_file_is_named(folder: Path) -> None:
    """SX-CONFIG-FILE with path and line."""
    (folder / "sardonyx.toml").write_text("deployment = \n")
    with pytest.raises(SetupError, match=r"sardonyx\.toml") as caught:
        load_settings()
    assert caught.value.code == "SX-CONFIG-FILE"
    assert "line 1" in caught.value.cause


def test_kafka_keys_with_a_dot_pass_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of librdkafka go to it unchanged, from file, environment and flags alike; a key without a dot is a mistake."""
    (folder / "sardonyx.toml").write_text('[kafka]\nsecurity.protocol = "SASL_SSL"\n"linger.ms" = 5\n')
    monkeypatch.setenv("SARDONYX__KAFKA__SASL__PASSWORD", "hush")
    settings = load_settings(**{"kafka.bootstrap.servers": "k:9092", "kafka.socket.keepalive.enable": True})
    assert settings.kafka.bootstrap_servers == "k:9092"
    assert settings.kafka.client() == {
        "bootstrap.servers": "k:9092",
        "security.protocol": "SASL_SSL",
        "linger.ms": 5,
        "sasl.password": "hush",
        "socket.keepalive.enable": True,
    }
    with pytest.raises(SetupError, match=r"no setting kafka\.linger_ms"):
        load_settings(**{"kafka.linger_ms": 5})


def test_keys_of_the_schema_registry_are_not_given_to_kafkas_clients() -> None:
    """They would refuse them. The login goes to the address of the settings only: a job can name any."""
    login = {"basic.auth.user.info": "app:hush-1", "ssl.ca.location": "/ca.pem", "url": "https://registry:8081"}
    settings = load_settings(**{f"kafka.schema.registry.{key}": value for key, value in login.items()})
    assert settings.kafka.client() == {}
    known = settings.kafka.registry
    assert known == SchemaRegistry("https://registry:8081", tuple(sorted(login.items()))[:2])
    assert known.at(None) == known.at("https://registry:8081") == known
    assert known.at("https://other") == SchemaRegistry("https://other", (("ssl.ca.location", "/ca.pem"),))
    assert settings.kafka.schema_registry == "https://registry:8081"
    assert "hush" not in f"{settings!r} {settings.shown()}"


def test_spark_conf_keeps_its_keys_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's keys have dots and capitals; values become the texts that Spark takes."""
    (folder / "sardonyx.toml").write_text("[spark.conf]\n'spark.sql.adaptive.enabled' = false\n")
    monkeypatch.setenv("SARDONYX__SPARK__CONF__spark__sql__shuffle__partitions", "3")
    assert load_settings(spark={"conf": {"spark.task.maxFailures": 2}}).spark.conf == {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.task.maxFailures": "2",
    }


def test_durations_are_shown_as_they_are_written() -> None:
    """With a unit, so that what is shown can be copied into the file. A port, or another number, has none."""
    settings = load_settings(
        peer={"heartbeat": "250 ms", "transaction_timeout": "2 min"}, zookeeper={"session_timeout": 8}
    )
    shown = {key: value for key, value, _ in settings.shown()}
    assert shown["peer.heartbeat"] == "250 ms"
    assert shown["peer.transaction_timeout"] == "2 min"
    assert shown["zookeeper.session_timeout"] == "8 s"
    assert shown["coordinator.ack_timeout"] == "15 s"
    assert shown["peer.virtual_peers"] == "auto"


@pytest.mark.parametrize("value", [0, 0.0005, 0.25, 0.3, 1.5, 8.0, 60.0, 90.0, 3600.0, 5400.0, 1234567.5])
def test_a_duration_that_is_written_is_read_as_the_same(value: float) -> None:
    """Whatever unit it is written with."""
    assert units.seconds(units.written(value)) == pytest.approx(value, rel=1e-12)


def test_secrets_are_never_shown() -> None:
    """Neither repr, str, rich, the listing nor an error shows what a secret key holds; the client gets it."""
    settings = load_settings(
        **{"kafka.sasl.password": "hush-1", "kafka.ssl.key.password": "hush-2", "zookeeper.auth.digest": "me:hush-3"},
        zookeeper={"auth": {"sasl": {"password": "hush-4"}, "key_password": "hush-5"}},
    )
    for shown in (repr(settings), str(settings), pretty_repr(settings), repr(settings.shown()), repr(settings.kafka)):
        assert "hush" not in shown
    assert settings.kafka.client()["sasl.password"] == "hush-1"
    with pytest.raises(SetupError) as caught:
        load_settings(**{"kafka.sasl.password": ["hush-6"], "zookeeper.auth.key_password": 1})
    assert "hush" not in str(caught.value)


def test_a_missing_address_names_the_three_ways_to_give_it() -> None:
    """SX-CONFIG-MISSING: flag, variable, file."""
    settings = load_settings(**{"zookeeper.hosts": "a:1"})
    settings.require("zookeeper")
    with pytest.raises(SetupError) as caught:
        settings.require("zookeeper", "kafka")
    assert caught.value.code == "SX-CONFIG-MISSING"
    for way in ("--kafka", "SARDONYX__KAFKA__BOOTSTRAP_SERVERS", "sardonyx.toml"):
        assert way in caught.value.fix


def test_another_process_gets_the_same_settings_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`environment()` carries everything that was given, over what the process would inherit otherwise."""
    monkeypatch.setenv("SARDONYX__DEPLOYMENT", "inherited")
    given = load_settings(
        deployment="default",
        zookeeper={"hosts": ["a:1", "b:2"], "auth": {"sasl": {"username": "me"}}},
        spark={"conf": {"spark.sql.adaptive.enabled": True}},
        peer={"virtual_peers": 7, "heartbeat": "100 ms"},
        **{"kafka.sasl.password": "hush"},
    )
    for name, value in given.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings().flat() == given.flat()
    assert os.environ["SARDONYX__DEPLOYMENT"] == "default"


def test_a_value_may_stand_in_a_file_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As secrets of Docker and Kubernetes do: by a variable ``..._FILE``, or by a reference in the settings file, as in jobs. It
    is a value like another: masked, with its origin, and overruled in a process that is handed other settings.
    """
    (folder / "sardonyx.toml").write_text(
        '[kafka]\nssl.key.password = {"$env" = "KEY_PASSWORD"}\n'
        f'[zookeeper.auth]\ndigest = {{"$file" = "{folder}/digest"}}\n[metrics]\nfile = "m"\n'
    )
    (folder / "digest").write_text("me:hush-1\n")
    (folder / "kafka").write_text("hush-2")
    monkeypatch.setenv("KEY_PASSWORD", "hush-3")
    monkeypatch.setenv("SARDONYX__KAFKA__SASL__PASSWORD_FILE", f"{folder}/kafka")
    monkeypatch.setenv("SARDONYX__METRICS__FILE", "/metrics")  # this setting is called so
    settings = load_settings()
    assert settings.zookeeper.auth.digest == "me:hush-1"
    assert settings.kafka.client() == {"sasl.password": "hush-2", "ssl.key.password": "hush-3"}
    assert settings.metrics.file == Path("/metrics")
    assert "hush" not in f"{settings!r} {settings.shown()}"
    origin = settings.origins["kafka.sasl.password"]
    assert origin == f"file {folder}/kafka, which environment SARDONYX__KAFKA__SASL__PASSWORD_FILE names"
    for name, value in load_settings(**{"kafka.sasl.password": "other"}).environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings().kafka.client()["sasl.password"] == "other"


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"SARDONYX__KAFKA__SASL__PASSWORD_FILE": "/nowhere"}, "SX-CONFIG-FILE", "kafka.sasl.password.*/nowhere"),
        ({"SARDONYX__KAFKA__SASL__PASSWROD__FILE": "x", "SARDONYX__LOG__LEVLE_FILE": "/x"}, "SX-CONFIG-UNKNOWN", "log"),
        (
            {"SARDONYX__DEPLOYMENT": "a", "SARDONYX__DEPLOYMENT_FILE": "/nowhere"},
            "SX-CONFIG-VALUE",
            "DEPLOYMENT and by environment SARDONYX__DEPLOYMENT_FILE",
        ),
    ],
)
def test_a_file_with_a_value_that_cannot_be_is_told(
    given: dict[str, str], code: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not there, is one of no setting, or beside a variable that has the value."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=says) as caught:
        load_settings()
    assert caught.value.code == code


def test_a_reference_that_means_nothing_is_refused(folder: Path) -> None:
    """It does not go to Kafka's client as an option."""
    (folder / "sardonyx.toml").write_text('[kafka]\nsasl.password = {"$fiel" = "/run/secrets/kafka"}\n')
    with pytest.raises(SetupError, match=r"no setting kafka\.sasl\.password\.\$fiel"):
        load_settings()


@pytest.mark.parametrize(
    ("line", "mode", "told"),
    [
        ('kafka.sasl.password = "hush-1"', 0o644, "kafka.sasl.password"),
        ('kafka.schema_registry = "https://me:hush-1@registry"', 0o604, "kafka.schema_registry"),
        ('kafka.sasl.password = "hush-1"', 0o640, ""),
        ('kafka.sasl.username = "me"\nkafka.ssl.key.location = "/key"', 0o644, ""),
        ('kafka.sasl.password = {"$env" = "HOME"}', 0o644, ""),
    ],
)
def test_a_file_with_secrets_that_all_can_read_is_told(
    line: str, mode: int, told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command and daemon says so, as ssh does of a key, and goes on: in a container there may be no other user."""
    (folder / "sardonyx.toml").write_text(line)
    (folder / "sardonyx.toml").chmod(mode)
    call = Call()
    assert call.settings.kafka
    said = capsys.readouterr().err
    assert ("SX-WARN-SETTINGS-READABLE" in said, told in said) == (bool(told), True)
    assert "hush" not in said


def test_settings_cannot_be_changed() -> None:
    """One object, the same for every holder."""
    with pytest.raises(ValueError, match="frozen"):
        load_settings().zookeeper.hosts = "other:1"  # type: ignore[misc]


def test_zookeeper_client_arguments_follow_the_settings() -> None:
    """Plain: hosts and timeout only. TLS: verified unless said otherwise."""
    plain = load_settings(zookeeper={"hosts": "a:1"}).zookeeper.client()
    assert plain == {"hosts": "a:1", "timeout": 8.0}
    secure = load_settings(zookeeper={"hosts": "a:1", "auth": {"tls": True, "ca": "/ca.pem"}}).zookeeper.client()
    assert secure["use_ssl"] is True
    assert secure["verify_certs"] is True
    assert secure["ca"] == "/ca.pem"


def test_every_setting_has_a_variable_that_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting is out of reach of the environment."""
    for key in Settings().flat():
        value = {
            "deployment": "x",
            "log.format": "json",
            "log.level": "error",
            "peer.tags": "gpu",
            "metrics.listen": "a:1",
            "metrics.advertise": "a",
            "peer.allow": "shop",
            "peer.files": "/srv",
            "peer.signers": "/etc/signers",
        }.get(key, "1")
        with monkeypatch.context() as patch:
            if key.startswith("zookeeper.acl."):
                value = "sasl:x"
                patch.setenv(variable("zookeeper.acl.coordinator"), value)
            patch.setenv(variable(key), value)
            if key == "peer.heartbeat":
                patch.setenv(variable("peer.session_timeout"), "10")
            if key == "peer.session_timeout":
                patch.setenv(variable("peer.heartbeat"), "0.1")
            assert load_settings().origins[key] == f"environment {variable(key)}"


def test_a_role_is_an_identity_of_zookeeper() -> None:
    """Roles need a coordinator, and each is written as an ACL names it."""
    assert load_settings().zookeeper.acl.identities == {}
    found = load_settings(**{"zookeeper.acl.coordinator": "sasl:lead", "zookeeper.acl.viewer": "x509:CN=web,O=Team"})
    assert found.zookeeper.acl.identities == {"coordinator": "sasl:lead", "viewer": "x509:CN=web,O=Team"}
    for wrong in ({"zookeeper.acl.coordinator": "lead"}, {"zookeeper.acl.peer": "sasl:peer"}):
        with pytest.raises(SetupError) as raised:
            load_settings(**wrong)
        assert raised.value.code == "SX-CONFIG-VALUE"


def test_the_host_name_in_a_certificate_is_checked_unless_nothing_is() -> None:
    """`verify` decides about both: who signed the server's certificate, and for whom it is."""
    tls = {"zookeeper.hosts": "zk:2281", "zookeeper.auth.tls": True}
    assert load_settings(**tls).zookeeper.client()["check_hostname"] is True
    unchecked = load_settings(**tls, **{"zookeeper.auth.verify": False}).zookeeper.client()
    assert (unchecked["verify_certs"], unchecked["check_hostname"]) == (False, False)
