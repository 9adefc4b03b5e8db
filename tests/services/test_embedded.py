"""The embedded services are real, private to us, found at free ports, and never outlive us."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil
import pytest
import structlog
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from queues import kafka_release
from queues.connectivity import check_reachable, reach_kafka
from queues.kafka_release import LOSES_ENDS, metadata_version
from sardonyx.client.health import at_work
from sardonyx.core.errors import SetupError
from sardonyx.dev import doctor, kafka_jars, servers, services
from sardonyx.dev.daemons import Daemons
from sardonyx.dev.servers import free_ports, knock, listens
from sardonyx.dev.services import Services, embedded_services
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.java import find_java
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.runtime.temp_dirs import temp_dir
from tests.waiting import until

SERVE_UNTIL_KILLED = """
    import json, sys, signal
    from dataclasses import asdict
    from sardonyx.runtime.settings import load_settings
    from sardonyx.dev.services import embedded_services
    from sardonyx.runtime.logging import configure_logging
    configure_logging(load_settings())
    with embedded_services(sys.argv[1] if sys.argv[1:] else None) as services:
        print(json.dumps(asdict(services), default=str), flush=True)
        signal.pause()
"""


FEATURES_OF_4_2 = 29
"""The newest ``metadata.version`` of Kafka 4.2.1."""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def refuses(address: str) -> bool:
    """Whether connections are refused there; a dying process may do so a moment longer than it lives."""
    host, port = address.split(":")
    with socket.socket() as link:
        return link.connect_ex((host, int(port))) != 0


@contextlib.contextmanager
def python(code: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs this code; killed at the end, if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it ended without a word"
    return line


def settings_for(services: Services) -> Settings:
    return load_settings(zookeeper={"hosts": services.zookeeper}, kafka={"bootstrap_servers": services.kafka})


def fields_of(events: list[structlog.typing.EventDict], event: str) -> structlog.typing.EventDict:
    return next(entry for entry in events if entry["event"] == event)


def test_a_killed_owner_takes_both_services_along() -> None:
    """SIGKILL of the process that started them: ZooKeeper and Kafka are gone within seconds, nothing is left listening.

    The next start removes the directory that it could not remove.
    """
    with python(SERVE_UNTIL_KILLED) as owner:
        started = json.loads(first_line(owner))
        pids = started["pids"]
        assert all(alive(pid) for pid in pids.values())
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until(lambda: not any(map(alive, pids.values())), what="the services to die with their owner")
    for address in (started["zookeeper"], started["kafka"]):
        until(lambda address=address: refuses(address), what=f"{address} to be free again")
    left = Path(started["data_dir"])
    assert left.exists()
    with temp_dir(services.TEMP_PREFIX):
        assert not left.exists()


def test_data_lies_where_it_is_said_and_is_used_again(tmp_path: Path) -> None:
    """With a directory given: it is named, kept, and what was in ZooKeeper and Kafka is there at the next start, at
    the same addresses if these are free. A server that is killed is started again with it.
    """
    with structlog.testing.capture_logs() as events, embedded_services(tmp_path / "kept") as services:
        assert fields_of(events, "embedded_services_starting")["data_dir"] == str(services.data_dir)
        assert services.data_dir == tmp_path / "kept"
        assert services.kept
        assert listens(services.pids["zookeeper"], int(services.zookeeper.split(":")[1]))
        assert listens(services.pids["kafka"], int(services.kafka.split(":")[1]))
        client = KazooClient(services.zookeeper)
        client.start()
        client.create("/kept", b"yes")
        client.stop()
        client.close()
        admin = AdminClient({"bootstrap.servers": services.kafka})
        admin.create_topics([NewTopic("kept", 1)])["kept"].result(30)
        cluster = admin.describe_cluster().result(30).cluster_id
        with pytest.raises(SetupError, match="cannot hold") as caught, embedded_services(tmp_path / "kept"):
            pass
        assert caught.value.code == "SX-EMBEDDED-DATA"
    assert not any(alive(pid) for pid in services.pids.values())
    with embedded_services(tmp_path / "kept") as again:
        assert (again.zookeeper, again.kafka) == (services.zookeeper, services.kafka)
        client = KazooClient(again.zookeeper)
        client.start()
        assert client.get("/kept")[0] == b"yes"
        client.stop()
        client.close()
        admin = AdminClient({"bootstrap.servers": again.kafka})
        assert "kept" in admin.list_topics(timeout=60).topics
        assert admin.describe_cluster().result(30).cluster_id == cluster
        assert again.revive() == []
        os.kill(again.pids["kafka"], signal.SIGKILL)
        until(lambda: not alive(again.pids["kafka"]), what="the broker to end")
        until(
            lambda: (said := again.revive()) and said[0].startswith("kafka (process "),
            what="the broker to be started again",
        )
        reach_kafka(load_settings(**{"kafka.bootstrap_servers": again.kafka}))
    with (
        socket.create_server(("127.0.0.1", int(again.kafka.rpartition(":")[2]))),
        embedded_services(tmp_path / "kept") as moved,
    ):
        assert (moved.zookeeper, moved.kafka != again.kafka) == (again.zookeeper, True)


@pytest.mark.gate
def test_three_servers_of_each_kind_do_without_one(tmp_path: Path) -> None:
    """A cluster: topics have three copies, and one server of each kind may be gone. Its data is of no use to single servers."""
    with embedded_services(tmp_path / "cluster", servers=3) as services:
        assert set(services.pids) == {f"{kind}{number}" for kind in ("zookeeper", "kafka") for number in (1, 2, 3)}
        admin = AdminClient({"bootstrap.servers": services.kafka})
        admin.create_topics([NewTopic("copied", 1)])["copied"].result(30)

        def copies() -> int:
            partitions = admin.list_topics("copied", timeout=60).topics["copied"].partitions
            return len(partitions[0].isrs) if partitions else 0  # it may not be known there yet

        until(lambda: copies() == 3, what="three copies in sync")
        services.stop("zookeeper1", "kafka1", kill=True)
        addresses = {"zookeeper": {"hosts": services.zookeeper}, "kafka": {"bootstrap_servers": services.kafka}}
        check_reachable(load_settings(**{name: {**given, "connect_timeout": 120} for name, given in addresses.items()}))
        client = KazooClient(services.zookeeper)
        client.start(120)
        client.retry(client.ensure_path, "/without")  # they may just be choosing another leader
        until(lambda: copies() == 2, what="two copies in sync")
        producer = Producer({"bootstrap.servers": services.kafka, "acks": "all"})
        producer.produce("copied", b"without")
        assert producer.flush(180) == 0
        services.start("zookeeper1")
        services.start("kafka1")
        until(lambda: copies() == 3, what="three copies in sync again")
        client.stop()
        client.close()
    with pytest.raises(SetupError, match="cannot hold") as caught, embedded_services(tmp_path / "cluster"):
        pass
    assert "the data of 3 brokers" in str(caught.value.cause)


def test_a_temporary_directory_is_removed_and_a_taken_port_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not given a directory, nothing stays behind. A port that is taken in the last moment is no failure."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        offers = iter([[taken], [taken]])  # to each of the two, once
        monkeypatch.setattr(servers, "free_ports", lambda n: [*next(offers, []), *free_ports(n)][:n])
        with embedded_services() as started:
            check_reachable(settings_for(started))
            assert str(taken) not in {started.zookeeper.split(":")[1], started.kafka.split(":")[1]}
            assert started.data_dir.is_dir()
            assert not started.kept
    assert not started.data_dir.exists()


@pytest.mark.timeout(60)
def test_a_process_that_accepts_no_connections_holds_up_no_start() -> None:
    """The system keeps a few connections for such a process. The next one would wait for two minutes."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as deaf,
        socket.create_connection(deaf.getsockname()),
    ):
        assert not knock(deaf.getsockname()[1])


def test_the_ports_of_a_service_differ() -> None:
    """No two ports drawn together are the same; the kernel likes to give the one that was just let go."""
    for _ in range(300):
        assert len(set(free_ports(12))) == 12


def test_a_service_that_dies_at_start_shows_its_last_lines(tmp_path: Path) -> None:
    """SX-EMBEDDED-DIED with what it wrote: here, log directories that belong to another node."""
    data = tmp_path / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\nnode.id=77\ncluster.id=abcdefghijklmnopqrstuv\n")
    with pytest.raises(SetupError) as caught, embedded_services(tmp_path):
        pass
    assert caught.value.code == "SX-EMBEDDED-DIED"
    assert "kafka" in caught.value.message
    assert "77" in caught.value.cause


def test_without_java_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java at all, a JAVA_HOME without one, a java that only says that there is none."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError) as nowhere, embedded_services():
        pass
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SetupError) as wrong_home:
        find_java()
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, "Unable to locate a Java Runtime."))
    with pytest.raises(SetupError) as stub:
        find_java()
    for caught in (nowhere, wrong_home, stub):
        assert caught.value.code == "SX-JAVA-MISSING"
        assert "apt-get install openjdk-17-jre-headless" in caught.value.fix
        assert "brew install openjdk@17" in caught.value.fix
    assert str(tmp_path / "nothing") in wrong_home.value.cause


@pytest.mark.parametrize(("said", "version"), [('java version "1.8.0_392"', "8"), ('openjdk version "11.0.22"', "11")])
def test_too_old_a_java_is_refused(said: str, version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SX-JAVA-OLD names the Java that was found and its version."""
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, said))
    with pytest.raises(SetupError) as caught:
        find_java()
    assert caught.value.code == "SX-JAVA-OLD"
    assert f"is Java {version}" in caught.value.message
    assert str(tmp_path) in caught.value.message


def fake_java(home: Path, says: str) -> str:
    program = home / "bin" / "java"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return str(home)


def test_kafka_that_cannot_be_fetched_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network: SX-KAFKA-FETCH says what is missing and what to do; the cache is not taken for complete after it."""
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(tmp_path))
    nowhere = f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={free_ports(1)[0]}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", nowhere)
    told: list[str] = []
    with pytest.raises(SetupError) as caught:
        kafka_jars.ensure_kafka(find_java(), lambda what, done, total: told.append(f"{what} {done}/{total}"))
    assert caught.value.code == "SX-KAFKA-FETCH"
    assert "refused" in caught.value.cause
    assert str(tmp_path) in caught.value.fix
    assert told
    assert not kafka_jars.cached()
    assert not list(tmp_path.glob(".kafka-*"))


def test_a_kafka_setting_that_librdkafka_does_not_take_is_named(kafka: str) -> None:
    """A mistyped key below kafka. is an error of the setting, not of an unreachable Kafka."""
    with pytest.raises(SetupError, match=r"socket\.keepalife") as caught:
        reach_kafka(load_settings(**{"kafka.bootstrap_servers": kafka, "kafka.socket.keepalife.enable": "true"}))
    assert caught.value.code == "SX-CONFIG-VALUE"


def test_the_doctor_finds_what_is_there_and_what_is_not(settings: Settings) -> None:
    """All well with running services; without an address nothing is asked; an address without a server fails with a fix."""
    findings = {finding.name: finding for finding in doctor.examine(settings)}
    assert all(finding.ok for finding in findings.values()), findings
    assert settings.zookeeper.hosts
    assert settings.zookeeper.hosts in findings["ZooKeeper"].detail
    none_set = {finding.name: finding for finding in doctor.examine(load_settings())}
    assert none_set["Kafka"].ok is None
    wrong = load_settings(zookeeper={"hosts": f"127.0.0.1:{free_ports(1)[0]}", "connect_timeout": "300 ms"})
    failed = next(finding for finding in doctor.examine(wrong) if finding.name == "ZooKeeper")
    assert failed.ok is False
    assert failed.fix
    assert asdict(failed)["detail"].startswith("ZooKeeper at 127.0.0.1")
    assert " s) (SX-ZOOKEEPER-" in failed.detail, "no full stop before what follows"


def test_the_doctor_finds_a_jar_of_kafka_that_is_not_the_pinned_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It names the file, and the directory to delete."""
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(tmp_path))
    kafka_jars.jars_dir().mkdir()
    for name in kafka_jars.pinned():
        (kafka_jars.jars_dir() / name).touch()
    finding = next(finding for finding in doctor.examine(load_settings()) if "embedded Kafka" in finding.name)
    assert finding.ok is False
    assert "SX-KAFKA-JAR" in finding.detail
    assert min(kafka_jars.pinned()) in finding.detail
    assert str(kafka_jars.jars_dir()) in finding.fix


def test_a_broker_that_loses_the_ends_of_transactions_is_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the newest features that it knows: those of the broker that comes with us are known, and older than that."""
    level = metadata_version(settings.kafka.client(), timeout=5)
    assert level == FEATURES_OF_4_2
    assert level < LOSES_ENDS
    monkeypatch.setattr(kafka_release, "LOSES_ENDS", level)
    found = next(finding for finding in doctor.examine(settings) if finding.name == "Kafka")
    assert found.ok is False
    assert "ends of transactions" in found.detail
    assert "4.2.1" in found.fix


def test_health_is_told_by_the_daemons_own_node(settings: Settings) -> None:
    """The node must name exactly this host: `peer-1` is not at work because `peer-10` is."""
    from sardonyx.core import node_paths
    from sardonyx.zookeeper.session import ZooKeeperSession

    zk = ZooKeeperSession.connect(settings)
    try:
        zk.create(
            node_paths.pulse("peer-10-0123456789ab-0"), b'{"daemon":"d","host":"peer-10","pid":7}', ephemeral=True
        )
        zk.create(node_paths.pulse("peer-2-0123456789ab-0"), b"not json", ephemeral=True)
        zk.create_sequential(node_paths.election_prefix("a"), b"host-10:7", ephemeral=True)
        assert at_work(settings, "peer", "peer-10")
        assert not at_work(settings, "peer", "peer-1")
        assert not at_work(settings, "peer", "peer-2")
        assert at_work(settings, "coordinator", "host-10")
        assert not at_work(settings, "coordinator", "host-1")
        assert not at_work(settings, "coordinator", "peer-10")
    finally:
        zk.close()


def test_a_health_check_creates_nothing(settings: Settings) -> None:
    """A check in a deployment that does not exist leaves no node behind."""
    from sardonyx.zookeeper.session import ZooKeeperSession

    assert not at_work(settings, "peer", "peer-1")
    assert not at_work(settings, "coordinator", "peer-1")
    zk = ZooKeeperSession.connect(settings, make_top=False)
    try:
        assert settings.deployment not in zk.deployments()
    finally:
        zk.close()


CHILD_WITH_CHILD = """
import signal, subprocess
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
signal.pause()
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[ChildProcess, int]]:
    """A kept child and the id of a child of its own."""
    log_path = tmp_path / "child.log"
    with start_child([sys.executable, "-c", CHILD_WITH_CHILD], name="parent", log_path=log_path) as child:
        until(lambda: child.log_tail().strip().isdecimal(), what="the child's own child")
        yield child, int(child.log_tail())


def test_a_kept_child_ends_with_its_whole_group(family: tuple[ChildProcess, int]) -> None:
    """Stopping a child ends what it started too; it may be said twice."""
    child, grandchild = family
    assert child.poll() is None
    assert child.stop(grace=5) == 128 + signal.SIGTERM
    assert child.stop() == 128 + signal.SIGTERM
    until(lambda: not alive(grandchild), what="the child's own child to end")


def test_what_is_killed_beside_dev_runs_again(tmp_path: Path) -> None:
    """A daemon that a user kills or stops is started again, and dev says so. One that fails at its start would fail again."""
    daemons = Daemons()
    begin = partial(start_child, ["sleep", "600"], name="peer")
    with daemons.start(begin) as child:
        assert daemons.revive() == []
        child.signal(signal.SIGKILL)
        child.wait()
        (said,) = daemons.revive()
        assert said.startswith(f"peer (process {child.pid}) was ended by SIGKILL: it runs again as ")
        again = int(said.rpartition(" ")[2])
        assert alive(again)
    daemons.stop()
    assert not alive(again)
    failing = Daemons()
    failing.start(partial(start_child, ["false"], name="peer", log_path=tmp_path / "peer.log")).wait()
    with pytest.raises(SetupError, match="SX-DAEMON-DIED"):
        failing.revive()


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    """SIGTERM first; who ignores it is killed after the grace. So is one that is stopped."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    with start_child([sys.executable, "-c", deaf], name="deaf", log_path=tmp_path / "log") as child:
        until(lambda: child.log_tail() == "up", what="the child")
        with pytest.raises(TimeoutError, match="deaf"):
            child.wait(0.01)
        assert child.stop(grace=0.1) == 128 + signal.SIGKILL
    with start_child(["sleep", "600"], name="stopped") as child:
        child.signal(signal.SIGSTOP)
        assert child.stop(grace=0.1) > 128


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_killed_supervisor_takes_its_child_along(family: tuple[ChildProcess, int]) -> None:
    """A supervisor that the out-of-memory killer ends takes the child with it."""
    child, _ = family
    supervisor = psutil.Process(child.pid).parent()
    assert supervisor is not None
    supervisor.kill()
    until(lambda: not alive(child.pid), what="the child to die with its supervisor")
    assert child.kill() == -signal.SIGKILL


def test_a_program_that_does_not_exist_is_told_at_once() -> None:
    """As OSError where it is started, not as a silent child."""
    with pytest.raises(OSError, match="no-such-program"):
        start_child(["no-such-program"], name="nothing")
