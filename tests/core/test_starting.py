"""What `run` and `dev` do while services start: daemons wait for their settings; what does not start leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from sardonyx.cli import early_daemon
from sardonyx.cli.daemons import stop_request
from sardonyx.dev import daemons, kafka_jars, services
from sardonyx.dev.broker import KafkaBroker
from sardonyx.dev.servers import Server, start_together
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.java import Java, find_java
from sardonyx.runtime.settings import load_settings
from tests.waiting import until

JAVA = Java(Path("/bin/sh"), 17)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def java_that(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_the_version_of_java_is_read_and_no_jvm_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file beside it that says it."""
    java_that(tmp_path, "touch called; exit 1")
    (tmp_path / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_java().version == 21
    assert not (tmp_path / "called").exists()


def test_daemons_that_wait_get_their_settings_and_no_one_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come by a pipe when the services answer, and again to a daemon that is started again; they stand on no command line,
    and in no environment. Those that are not needed any more read nothing.
    """
    seen: list[list[str]] = []

    def stand_in(command: list[str], *, name: str, log_path: Path, stdin: int) -> object:
        seen.append(command)
        return start_child(["cat"], name=name, log_path=log_path, stdin=stdin)

    monkeypatch.setattr(daemons, "start_child", stand_in)
    monkeypatch.setattr(daemons, "find_java", lambda: JAVA)
    settings = load_settings(**{"zookeeper.hosts": "127.0.0.1:1", "kafka.sasl.username": "hidden"})
    with daemons.starting_daemons(tmp_path, virtual_peers=3, telling=True) as found:
        for child in found._children:
            assert child.poll() is None
        found.connect(settings)
        assert [child.wait(60) for child in found._children] == [0, 0]
        given = json.loads((tmp_path / "peer.log").read_text())
        assert len(found.revive()) == 2
        assert [child.wait(60) for child in found._children] == [0, 0]
    both = [
        ["sardonyx.cli.early_daemon", "coordinator"],
        ["sardonyx.cli.early_daemon", "peer", "--virtual-peers", "3"],
    ]
    assert [command[2:] for command in seen] == both + both
    assert given["SARDONYX__KAFKA__SASL__USERNAME"] == "hidden"
    assert given["SARDONYX__METRICS__TELEMETRY"] == "true"
    assert (tmp_path / "coordinator.log").read_text() == (tmp_path / "peer.log").read_text() == 2 * json.dumps(given)
    (tmp_path / "unneeded").mkdir()
    with daemons.starting_daemons(tmp_path / "unneeded", virtual_peers=3) as unneeded:
        pass
    assert all(child.poll() is not None for child in unneeded._children)


@pytest.mark.parametrize("given", [{}, {"SARDONYX__DEPLOYMENT": "told"}])
def test_a_daemon_goes_on_by_what_it_is_told(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the command with these settings in its environment, and nothing at its standard input. Without settings it ends."""
    calls: list[str | None] = []
    read, write = os.pipe()
    if given:
        os.write(write, json.dumps(given).encode())
    os.close(write)
    with os.fdopen(read) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        monkeypatch.setattr(sys, "argv", ["early_daemon", "coordinator"])
        monkeypatch.setattr(os, "environ", dict(os.environ))
        monkeypatch.setattr(
            early_daemon,
            "import_module",
            lambda name: SimpleNamespace(__name__=name, main=lambda settings: calls.append(settings.deployment)),
        )
        monkeypatch.setattr(early_daemon, "seldom_collect", lambda: None)
        with contextlib.ExitStack() as stack:
            if given:
                assert stack.enter_context(pytest.raises(SystemExit))
            early_daemon.main()
        assert calls == list(given.values())
        assert os.read(pipe.fileno(), 1) == b""


def test_ctrl_c_ends_at_once_what_only_starts() -> None:
    """Later the first one is noted, and not lost: it ends the next such block before it begins."""
    with stop_request() as stop:
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            signal.raise_signal(signal.SIGTERM)
        stop.asked = False
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            pytest.fail("it was asked before")


@pytest.mark.parametrize("vanishes", [False, True])
def test_daemons_begin_anew_with_other_settings_and_end_as_their_services_do(
    vanishes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper answers before Kafka does, which may find its port taken. A coordinator ends in order, or with them."""
    script = (
        "import signal, sys, time; sys.stdin.read(); signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up')"
    )

    def stand_in(_command: list[str], *, name: str, log_path: Path, stdin: int) -> object:
        command = [sys.executable, "-c", f"{script}\ntime.sleep(600)"]
        return start_child(command, name=name, log_path=log_path, stdin=stdin, env={"PYTHONUNBUFFERED": "1"})

    monkeypatch.setattr(daemons, "start_child", stand_in)
    monkeypatch.setattr(daemons, "find_java", lambda: JAVA)
    with daemons.starting_daemons(tmp_path, virtual_peers=3) as found:
        for port, times in ((1, 1), (1, 1), (2, 2)):
            found.connect(
                load_settings(**{"zookeeper.hosts": "127.0.0.1:1", "kafka.bootstrap_servers": f"127.0.0.1:{port}"})
            )
            for each in ("coordinator", "peer"):
                log = tmp_path / f"{each}.log"
                until(lambda log=log, times=times: log.read_text() == times * "up\n", what=f"{log} of {times} starts")
        found.useless = vanishes
    assert [child.poll() for child in found._children] == [137 if vanishes else 7, 7]


class Slow(Server):
    """A server that never answers."""

    kind = "slow"
    wanted_ports = 1

    def prepare(self) -> list[str]:
        return ["sleep", "600"]

    def serves(self) -> bool:
        return False


def test_what_still_starts_ends_with_its_owner(tmp_path: Path) -> None:
    """Its process is killed, and so is what a thread starts afterwards; no thread goes on waiting for it."""
    server, pool = Slow(JAVA, tmp_path), ThreadPoolExecutor(1)
    began = pool.submit(start_together, [server])
    until(lambda: server.child is not None, what="the process")
    services._stop([server], pool, in_order=True)
    assert began.done()
    assert server.child is not None
    assert server.child.poll() is not None
    later = Slow(JAVA, tmp_path)
    later.abandoned = True
    with ThreadPoolExecutor(1) as another:
        assert another.submit(start_together, [later]).exception() is not None
    assert later.child is None


@pytest.mark.parametrize("kept", [False, True])
def test_services_end_in_order_only_if_that_is_of_use(kept: bool, tmp_path: Path, cache: Path) -> None:
    """If their data is kept; or once: the JVM then writes the archive of its classes, with which later ones start sooner."""

    class Quick(Slow):
        kind = "quick"

        def prepare(self) -> list[str]:
            new = self.archived("jars/*")[-1].partition("=")[2]
            script = f"trap 'echo archive > {new}; exit 7' TERM; echo up; while :; do sleep 0.05; done"
            return ["sh", "-c", script]

    def ended(name: str) -> tuple[Quick, int | None]:
        server = Quick(JAVA, tmp_path / name)
        server.home.mkdir(parents=True)
        server.launch()
        server.has_served = True
        until(lambda: server.log_path.read_text() == "up\n", what="its first line")
        with ThreadPoolExecutor(1) as pool:
            services._stop([server], pool, in_order=kept)
        assert server.child is not None
        return server, server.child.poll()

    server, code = ended("first")
    assert code == 7
    assert server.archive is not None
    assert server.archive.path.read_text() == "archive\n"
    assert server.archive.path.stat().st_mode & 0o777 == 0o600
    server, code = ended("second")
    assert server.archive is not None
    assert server.archive.options()[-1] == f"-XX:SharedArchiveFile={server.archive.path}"
    assert code == (7 if kept else 137)
    server.archive.drop()
    assert [path for path in cache.iterdir() if path.suffix == ".jsa"] == []


TOOL = """
for word; do config=$word; done
data=$(sed -n s/^log.dirs=//p "$config")
mkdir -p "$data"; echo features > "$data/bootstrap.checkpoint"; echo made > "$data/meta.properties"
"""


def test_a_broker_is_formatted_without_the_tool_once_its_result_is_known(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool takes a second. The second broker gets the same features, and an identity of its own."""
    monkeypatch.setattr(kafka_jars, "pyspark_jars", lambda: tmp_path)
    java = Java(java_that(tmp_path / "java", TOOL), 17)
    brokers = [KafkaBroker(java, tmp_path / name, kafka_jars.jars_dir(), f"cluster-{name}") for name in ("one", "two")]
    for broker in brokers:
        broker.ports = [1, 2]
        broker.home.mkdir(parents=True)
        broker.prepare()
    first, second = (broker.home / "data" for broker in brokers)
    assert (first / "meta.properties").read_text() == "made\n"
    assert (second / "bootstrap.checkpoint").read_text() == "features\n"
    facts = dict(line.split("=") for line in (second / "meta.properties").read_text().splitlines())
    assert (facts["version"], facts["cluster.id"], facts["node.id"]) == ("1", "cluster-two", "1")
    assert [path.name for path in cache.glob("*.checkpoint")] == [f"{kafka_jars.jars_dir().name}.checkpoint"]


def test_an_empty_result_of_the_tool_is_made_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without power the file may have its name and no content; no broker of this user would start any more. A copy that fails
    leaves nothing behind.
    """
    monkeypatch.setattr(kafka_jars, "pyspark_jars", lambda: tmp_path)
    kept = cache / f"{kafka_jars.jars_dir().name}.checkpoint"
    kept.touch()

    java = Java(java_that(tmp_path / "java", TOOL), 17)

    def formatted(name: str) -> None:
        broker = KafkaBroker(java, tmp_path / name, kafka_jars.jars_dir(), f"cluster-{name}")
        broker.ports = [1, 2]
        broker.home.mkdir(parents=True)
        broker.prepare()
        assert (broker.home / "data/bootstrap.checkpoint").read_text() == "features\n"

    def half(_source: Path, target: Path) -> None:
        target.write_text("fea")
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr("sardonyx.dev.broker.shutil.copyfile", half)
        formatted("one")
    assert [(path, path.stat().st_size) for path in cache.glob(f"{kept.stem}*") if path.is_file()] == [(kept, 0)]
    formatted("two")
    assert kept.read_text() == "features\n"
