"""Real services for the tests in this folder: started once a session, or any cluster that is named in the environment."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from coordinator.loop import snapshots
from coordinator.loop.election import Leadership
from sardonyx.cli.app import app
from sardonyx.core import node_paths
from sardonyx.dev import servers
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.runtime.settings_sections import SparkSettings
from sardonyx.testing import Addresses, cluster, plugin
from sardonyx.zookeeper.session import ZooKeeperSession
from spark_tasks.code import CodeBundle
from tests import class_archive
from tests.proxy import Proxy
from tests.services import functions
from tests.services.coordination import leadership
from tests.services.house import House, house_of
from tests.services.one_task import Task
from tests.services.plain import why_plain
from tests.services.secured import Grants, SecuredServices, secured_services

Sardonyx = Callable[..., Result]
"""Runs a command; ``code`` is the exit code that it is to end with, 0 if not given."""


SOON = {"spark.driver.extraJavaOptions": class_archive.java_options()}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On secured services those are left out that speak plain: see `tests.services.plain`."""
    if os.environ.get("SECURED") != "1":
        return
    for item in items:
        if Path(__file__).parent == item.path.parent and (why := why_plain(f"{item.path.name}::{item.name}")):
            item.add_marker(pytest.mark.skip(reason=f"it speaks plain: {why}"))


@pytest.fixture(scope="session", autouse=True)
def _settings_of_all() -> None:
    """Spark that starts soon; and peers that may take their time to prepare a task: a busy machine is no failure of it."""
    os.environ |= load_settings(spark={"conf": SOON}, coordinator={"ack_timeout": 60}).environment()


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """What users' own tests give up after a minute and a half may take longer here, where three times as much runs at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "START_TIMEOUT", 240.0)
        patch.setattr(cluster, "_REGISTER", 240.0)
        yield


@pytest.fixture(scope="session")
def sardonyx_services(request: pytest.FixtureRequest) -> Iterator[Addresses]:
    """The fixture that users have, but open to every user of the machine: many tests speak with the services by clients of their
    own. With ``SECURED=1`` these services ask for a login, over TLS: every process finds the credentials in its environment.
    """
    if os.environ.get("SECURED") != "1":
        with plugin.services(private=False) as found:
            yield found
        return
    known: SecuredServices = request.getfixturevalue("secured")
    login = known.settings().environment()
    os.environ |= {
        name: value for name, value in login.items() if not name.endswith(("__HOSTS", "__BOOTSTRAP_SERVERS"))
    }
    yield Addresses(known.services.zookeeper, known.services.kafka)


@pytest.fixture(scope="session")
def services(sardonyx_services: Addresses) -> Addresses:
    """ZooKeeper and Kafka for the whole session: the fixture that users have too."""
    return sardonyx_services


@pytest.fixture(scope="session")
def zookeeper(services: Addresses) -> str:
    """``host:port`` of ZooKeeper."""
    return services.zookeeper


@pytest.fixture(scope="session")
def kafka(services: Addresses) -> str:
    """``host:port`` of Kafka."""
    return services.kafka


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServices]:
    """ZooKeeper and Kafka that ask who is there, over TLS: one pair for the whole session."""
    with secured_services(tmp_path_factory.mktemp("secured")) as found:
        yield found


@pytest.fixture
def deployment() -> str:
    """The name of a deployment of the test's own, on the secured services."""
    return f"s{uuid.uuid4().hex[:10]}"


@pytest.fixture
def grants(secured: SecuredServices) -> Iterator[Grants]:
    """Gives rights; after the test no user has any."""
    given = Grants(secured)
    yield given
    for user in ("coordinator", "peer", "client", "viewer"):
        given.take_all(user)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that is called in this process sets up what is logged for its own test, and for no later one."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def settings(services: Addresses) -> Settings:
    """Settings for these services, with a deployment of their own: no test sees another's nodes, topics and groups."""
    return load_settings(
        deployment=f"t{uuid.uuid4().hex[:10]}",
        zookeeper={"hosts": services.zookeeper},
        kafka={"bootstrap_servers": services.kafka},
    )


@pytest.fixture
def zk(settings: Settings) -> Iterator[ZooKeeperSession]:
    """A session with the deployment of ``settings``."""
    opened = ZooKeeperSession.connect(settings)
    yield opened
    opened.close()


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[Proxy]:
    """A proxy in front of ZooKeeper."""
    with Proxy(zookeeper) as between:
        yield between


@pytest.fixture
def leader(settings: Settings) -> Iterator[Leadership]:
    """A won election, without a leader's loop."""
    with leadership(settings) as won:
        yield won


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short buckets and distances, so that a short log has many of each; nodes are as small with ``entries.SMALL``."""
    monkeypatch.setattr(node_paths, "LOG_BUCKET", 10)
    monkeypatch.setattr(snapshots, "SPARSE", 30)


@pytest.fixture
def sardonyx(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sardonyx:
    """The command, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments), env=settings.environment())
        assert result.exit_code == code, f"{arguments}: {result.output}\n{result.stderr}"
        return result

    return call


@pytest.fixture(scope="session")
def shared_house(zookeeper: str, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A coordinator and a peer daemon with Spark, which takes long to start: one for all tests that leave them alive."""
    with house_of(zookeeper, kafka, tmp_path_factory.mktemp("house")) as found:
        yield found


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    """The same, with no job left behind by a test."""
    yield shared_house
    shared_house.clear()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark session for all tests; ``SARDONYX_TEST_SPARK`` names another master."""
    from spark_tasks.session import SparkSession, start_session, stop_session

    left = SparkSession.getActiveSession()
    if (
        left is not None
    ):  # `run_job` started it for a test that did not ask for this fixture; a process may have one only
        stop_session(left)
    master = os.environ.get("SARDONYX_TEST_SPARK", "local[2]")
    session = start_session(SparkSettings(master=master, conf=SOON), tmp_path_factory.mktemp("spark"))
    yield session
    stop_session(session)


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> CodeBundle:
    """Functions of all kinds, as a job's bundle."""
    folder, cache = tmp_path_factory.mktemp("functions"), tmp_path_factory.mktemp("cache")
    return functions.bundled(folder, functions.JOB, functions.HELPERS, cache)


@pytest.fixture(scope="session")
def run(spark: SparkSession, code: CodeBundle) -> functions.Runner:
    """Applies one of them by its name."""
    return functions.Runner(spark, code)


@pytest.fixture
def make_task(settings: Settings) -> Iterator[Callable[..., Task]]:
    """Makes tasks whose links are still to be made."""
    made: list[Task] = []

    def one(link_input: dict | None = None, *, letters: bool = False) -> Task:
        made.append(Task(settings, link_input, letters=letters))
        return made[-1]

    yield one
    for task in made:
        task.close()


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Task:
    """A task with its links."""
    task = make_task()
    task.create()
    return task


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails, also by its timeout, shows what daemons wrote to their logs last while it ran."""
    report = yield
    if report.failed and call.when == "call":
        folder = item._request.getfixturevalue("tmp_path_factory").getbasetemp()  # type: ignore[attr-defined]
        for path in sorted(folder.rglob("*.log")):
            if path.stat().st_mtime >= call.start:
                end = "\n".join(path.read_text("utf-8", "replace").splitlines()[-20:])
                report.sections.append((f"the end of {path.relative_to(folder)}", end))
    return report
