"""What `dev` watches, which folder is its own, and what it tells other terminals. Its daemons are stand-ins here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sardonyx.cli import cluster_commands, daemons
from sardonyx.cli.call import Call
from sardonyx.core.errors import SardonyxError
from sardonyx.dev import daemons as local
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import load_settings
from sardonyx.runtime.temp_dirs import locked
from tests.waiting import until

PAGES = """
import socket, sys, time
asked = sys.argv[sys.argv.index("--port") + 1] if "--port" in sys.argv else 0
for port in (int(asked), 0):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        break
    except OSError:
        pass
listener.listen()
print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
time.sleep(600)
"""
"""A stand-in for `sardonyx web`: it listens where it is asked to, or elsewhere, says where, and answers nothing."""


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> list[ChildProcess]:
    """Every process of the pages that was started, the last one last."""
    started: list[ChildProcess] = []

    def stand_in(command: list[str], **given: object) -> ChildProcess:
        started.append(start_child([sys.executable, "-c", PAGES, *command[4:]], **given))
        return started[-1]

    monkeypatch.setattr(daemons, "start_child", stand_in)
    return started


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """`dev` with services that are there already. It stops when ``meanwhile``, which it calls at each look, gives True."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster_commands, "_check_reachable", lambda *_: None)
    idle = SimpleNamespace(connect=lambda _: None, revive=list)
    monkeypatch.setattr(local, "starting_daemons", lambda *_, **__: contextlib.nullcontext(idle))
    monkeypatch.setenv("SARDONYX__ZOOKEEPER__HOSTS", "127.0.0.1:1")
    monkeypatch.setenv("SARDONYX__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:2")

    def call(meanwhile: Callable[[], bool] = lambda: True, **flags: object) -> None:
        @contextlib.contextmanager
        def stop() -> Iterator[object]:
            yield SimpleNamespace(wait=lambda _: meanwhile(), at_once=contextlib.nullcontext)

        monkeypatch.setattr(daemons, "stop_request", stop)
        cluster_commands.dev(Call(), **flags)

    return call


def port_of(address: str) -> int:
    return int(address.split("/")[2].partition(":")[2])


def open_at(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


def test_dev_starts_its_pages_again(
    dev: Callable[..., None], pages: list[ChildProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, as of its other children. They are at the same address, so that browsers go on with their token."""
    said: list[str] = []
    looks = 0

    def meanwhile() -> bool:
        nonlocal looks
        looks += 1
        said.append("".join(capsys.readouterr()))
        if looks == 1:
            os.kill(pages[0].pid, signal.SIGKILL)
            until(lambda: pages[0].poll() is not None, what="the end of the pages")
        elif looks == 2:
            port = port_of(daemons.ADDRESS.search(pages[0].log_tail())[0])
            until(lambda: len(pages) == 2 and open_at(port), what="pages at the same port")
        return looks == 3

    dev(meanwhile)
    assert f"web (process {pages[0].pid}) was ended by SIGKILL: it runs again as {pages[1].pid}" in "".join(said)
    assert pages[1].poll() is not None


def test_pages_that_come_back_elsewhere_say_where(tmp_path: Path, pages: list[ChildProcess]) -> None:
    """Another process has taken their port meanwhile. The token stays."""
    with daemons.local_pages(load_settings(), tmp_path) as served, socket.socket() as other:
        first = served.address
        pages[0].kill()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port_of(first)))
        other.listen()
        said = served.revive()
        until(lambda: said.extend(served.revive()) or len(said) > 1, what="the new address")
        assert said[1:] == [f"pages at {served.address}"]
        assert port_of(served.address) != port_of(first)
        assert served.address.partition("#")[2] == first.partition("#")[2]
        assert open_at(port_of(served.address))
        assert served.revive() == []


def test_the_address_of_the_pages_is_the_one_of_this_time(tmp_path: Path) -> None:
    """Their log goes on after that of the time before, which names another one."""
    (tmp_path / "web.log").write_text("http://127.0.0.1:1/\n")
    with daemons.local_pages(load_settings(), tmp_path) as served:
        assert open_at(port_of(served.address))
    assert (tmp_path / "web.log").read_text().startswith("http://127.0.0.1:1/\n")


def test_two_of_them_share_no_folder(dev: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs and the token of the pages belong to one `dev` or `run`; another one touches neither."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "web.tokens").write_text("of the first one")
    monkeypatch.setenv("SARDONYX__DATA_DIR", str(folder))
    with locked(folder), pytest.raises(SardonyxError, match="another `dev` or `run`") as caught:
        dev()
    assert caught.value.code == "SX-EMBEDDED-DATA"
    assert (folder / "web.tokens").read_text() == "of the first one"
    assert not (folder / "web.log").exists()


@pytest.mark.parametrize("flags", [{"data": Path("second")}, {"cluster": 3}])
def test_what_asks_for_services_of_its_own_is_refused_where_the_addresses_of_others_are_set(
    dev: Callable[..., None], tmp_path: Path, pages: list[ChildProcess], flags: dict[str, object]
) -> None:
    """As in a terminal that has read the file of another `dev`. The error names the variables, and a command without."""
    with pytest.raises(SardonyxError) as caught:
        dev(**flags)
    assert caught.value.code == "SX-USAGE"
    assert "zookeeper.hosts = 127.0.0.1:1 (environment SARDONYX__ZOOKEEPER__HOSTS)" in str(caught.value.cause)
    assert "env -u SARDONYX__ZOOKEEPER__HOSTS -u SARDONYX__KAFKA__BOOTSTRAP_SERVERS sardonyx dev --" in caught.value.fix
    assert not pages
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [False, True])
def test_other_terminals_log_in_as_dev_does(
    dev: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    kept: bool,
) -> None:
    """They read a file with all that leads to the deployment, also if other services than its own ask for a login. Only its owner
    can read it, and it goes when `dev` ends; the line that is printed holds no password.
    """
    (tmp_path / "password").write_text("a 'secret'")
    monkeypatch.setenv("SARDONYX__DEPLOYMENT", "second")
    monkeypatch.setenv("SARDONYX__ZOOKEEPER__AUTH__DIGEST", "me:a secret")
    monkeypatch.setenv("SARDONYX__KAFKA__SASL__PASSWORD_FILE", str(tmp_path / "password"))
    if kept:
        monkeypatch.setenv("SARDONYX__DATA_DIR", str(tmp_path / "data"))
    files: list[Path] = []
    found: dict[str, str] = {}
    here = load_settings()

    def meanwhile() -> bool:
        told = capsys.readouterr().out
        assert "secret" not in told
        line = next(line for line in told.splitlines() if line.startswith(". "))
        files.append(Path(line.removeprefix(". ")))
        assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
        script = ["env", "-i", f"SARDONYX__KAFKA__SASL__PASSWORD_FILE={tmp_path}/away", "bash", "-c", f"{line}; env -0"]
        seen = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        found.update(each.split("=", 1) for each in seen.split("\0") if each.startswith("SARDONYX__"))
        return True

    dev(meanwhile)
    for name in [name for name in os.environ if name.startswith("SARDONYX__")]:
        monkeypatch.delenv(name)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    there = load_settings()
    assert there.flat() | {"data_dir": None} == here.flat() | {"data_dir": None}
    assert there.flat()["kafka.sasl.password"] == "a 'secret'"
    assert not files[0].exists()
    assert (tmp_path / "data").exists() == kept
