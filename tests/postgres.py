"""A real PostgreSQL for tests: an installed one, else Debian's own packages, unpacked without root into our cache."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sardonyx.dev.kafka_jars import cache_dir
from sardonyx.runtime.child_process import ChildProcess, start_child
from tests.waiting import until

PASSWORD_ENV = "SARDONYX_TEST_POSTGRES_PASSWORD"  # noqa: S105 - a variable's name
_PASSWORD = "amber and onyx"  # noqa: S105 - of a server that lives as long as the tests
_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
"""PostgreSQL refuses to run as root."""


@dataclass
class Postgres:
    """A running server with one database, ``test``, which user ``sx`` owns."""

    port: int
    child: ChildProcess
    prefix: list[str]

    @property
    def url(self) -> str:
        return f"postgresql://sx@127.0.0.1:{self.port}/test"


@contextmanager
def postgres(tls: tuple[Path, Path] | None = None) -> Iterator[Postgres]:
    """A server on a free port that dies with us. Skips the test, with the reason, if none can be had.

    Args:
        tls: the files of its certificate and of the key, if clients may speak TLS.
    """
    bin_dir, libraries = _programs()
    folder = Path(tempfile.mkdtemp(prefix="sx-postgres-"))
    as_root = os.geteuid() == 0
    prefix = [*_NOBODY] if as_root else []
    env = {**os.environ, "LC_ALL": "C.UTF-8", **({"LD_LIBRARY_PATH": libraries} if libraries else {})}
    try:
        secret = folder / "password"
        secret.write_text(_PASSWORD)
        if as_root:
            for path in (folder, secret):
                os.chown(path, 65534, 65534)
        key = folder / "key"
        if tls is not None:
            shutil.copy(tls[1], key)
            key.chmod(0o600)
            if as_root:
                os.chown(key, 65534, 65534)
        data = folder / "data"
        _run(
            [*prefix, bin_dir / "initdb", "-D", data, "-U", "sx", "-A", "scram-sha-256", f"--pwfile={secret}", "-N"],
            env,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off"}
        if tls is not None:
            certificate = shutil.copy(tls[0], folder / "certificate")
            settings |= {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": key}
        command = [*prefix, bin_dir / "postgres", "-D", data]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = folder / "log"
        with start_child(command, name="postgres", log_path=log, env=env) as child:
            os.environ[PASSWORD_ENV] = _PASSWORD
            server = Postgres(port, child, prefix)
            until(lambda: _made(server, log), what="PostgreSQL to answer")
            yield server
    finally:
        os.environ.pop(PASSWORD_ENV, None)
        shutil.rmtree(folder, ignore_errors=True)


def _made(server: Postgres, log: Path) -> bool:
    """Whether the server takes connections; then it has the database."""
    import psycopg

    assert server.child.poll() is None, log.read_text()
    address = f"host=127.0.0.1 port={server.port} user=sx dbname=postgres"
    try:
        with psycopg.connect(address, password=_PASSWORD, autocommit=True) as connection:
            connection.execute("create database test")
    except psycopg.OperationalError as error:
        raise AssertionError(str(error)) from error
    return True


def _run(command: list[object], env: dict[str, str]) -> None:
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _programs() -> tuple[Path, str]:
    """Where initdb and postgres are, and where their libraries are if those are not the system's."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv to run it as another user")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent, ""
    if shutil.which("pg_config"):
        found = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        if (Path(found) / "postgres").exists():
            return Path(found), ""
    return _fetched()


def _fetched() -> tuple[Path, str]:
    """Debian's packages in our cache; fetched once."""
    root = cache_dir() / "postgres"
    if not root.exists():
        try:
            told = subprocess.run(
                ["apt-cache", "depends", "postgresql"], capture_output=True, text=True, check=True
            ).stdout
            (version,) = set(re.findall(r"Depends: (postgresql-\d+)", told))
            root.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root.parent) as made:
                subprocess.run(
                    ["apt-get", "download", version, "libpq5"], cwd=made, capture_output=True, check=True, timeout=120
                )
                for package in Path(made).glob("*.deb"):
                    subprocess.run(["dpkg", "-x", package, Path(made) / "root"], check=True, capture_output=True)
                (Path(made) / "root").rename(root)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            pytest.skip(f"there is no PostgreSQL here, and Debian's packages cannot be had: {error}")
    (bin_dir,) = root.glob("usr/lib/postgresql/*/bin")
    for folder in (root, *root.rglob("*")):
        folder.chmod(folder.stat().st_mode | 0o555 if folder.is_dir() else folder.stat().st_mode | 0o444)
    return bin_dir, ":".join(str(path) for path in root.glob("usr/lib/*-linux-gnu"))
