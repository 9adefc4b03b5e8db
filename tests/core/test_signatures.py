"""Signed code of jobs: who has signed it, and what a peer daemon with ``peer.signers`` runs of it."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from peer import preparation
from peer.allowed import check_allowed, open_code, takes_code
from sardonyx.cli.app import app
from sardonyx.client.client import Client
from sardonyx.core import node_paths
from sardonyx.core.errors import SetupError
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec
from sardonyx.job.bundle import build, code_change
from sardonyx.job.load import load
from sardonyx.job.signatures import check_signed, new_key, public_keys, signed
from sardonyx.runtime.settings import load_settings
from sardonyx.runtime.settings_sections import PeerSettings
from spark_tasks.on_demand import SparkOnDemand
from tests.waiting import until

CODE = """
from os import system
from planted_shop import price
import planted_mark

def work(row):
    return row
"""
MARK = """
import pathlib
pathlib.Path({path!r}).touch()
"""


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, str]:
    """A private key, and the public one."""
    path = tmp_path / "signer.pem"
    return path, new_key(path)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module ``planted_shop`` that is installed."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "planted_shop.py").write_text("def price(row):\n    return row\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield
    for name in [name for name in sys.modules if name.startswith("planted_")]:
        del sys.modules[name]


@pytest.fixture
def code(tmp_path: Path) -> bytes:
    """A zip of a module that a job brings. When it is imported, there is a file ``ran``."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "brought.py").write_text(CODE)
    (folder / "planted_mark.py").write_text(MARK.format(path=str(tmp_path / "ran")))
    return build(folder).data


def refused(data: bytes, *signers: str) -> SetupError:
    with pytest.raises(SetupError) as caught:
        check_signed(data, signers)
    return caught.value


def test_code_is_run_that_one_of_the_signers_has_signed(key: tuple[Path, str], tmp_path: Path, code: bytes) -> None:
    """Whichever it is, named itself or in a file, with comments and names beside the keys."""
    path, public = key
    other = new_key(tmp_path / "other.pem")
    (tmp_path / "signers").write_text(f"# the team\n{other} ann\n\n{public} bob # who deploys\n")
    for signers in ([public], [other, public], [str(tmp_path / "signers")], [str(path) + ".pub"]):
        check_signed(signed(code, path), signers)


def test_a_signature_changes_nothing_but_the_end_of_the_zip(key: tuple[Path, str], code: bytes) -> None:
    """A release that knows no signatures reads it; the same key gives the same bytes; signed twice it is signed once."""
    path, _ = key
    data = signed(code, path)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["brought.py", "planted_mark.py"]
    assert signed(code, path) == data == signed(data, path)
    assert len(data) - len(code) < 200
    assert not code_change(code, data).modules


def test_code_without_a_good_signature_is_refused_with_what_is_wrong(
    key: tuple[Path, str], tmp_path: Path, code: bytes
) -> None:
    """None; by a key that is not known; of other code; by another key than it names. Each says what to do."""
    _, public = key
    stranger = new_key(tmp_path / "stranger.pem")
    by_stranger = signed(code, tmp_path / "stranger.pem")
    errors = {
        "it has no signature": refused(code, public),
        f"it is signed by {stranger}, which is not one of peer.signers": refused(by_stranger, public),
        f"it names {public}, and the signature is not by this key": refused(
            by_stranger.replace(stranger.encode(), public.encode()), public
        ),
    }
    for cause, error in errors.items():
        assert error.code == "SX-PEER-SIGNATURE"
        assert cause in error.cause
        assert "client.signer" in error.fix


def test_no_byte_of_signed_code_can_be_changed(key: tuple[Path, str], code: bytes, rng: Random) -> None:
    """Nor one added or left out: not in the modules, not in the lists of the zip, not in the signature."""
    path, public = key
    data = signed(code, path)
    for at in {0, len(data) - 1, *range(len(code) - 24, len(data)), *rng.sample(range(len(data)), 200)}:
        changed = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        assert refused(changed, public).code == "SX-PEER-SIGNATURE", at
        assert refused(data[:at] + data[at + 1 :], public).code == "SX-PEER-SIGNATURE", at
    for at, bit in product(range(len(data) - 4, len(data)), range(8)):  # base64 leaves bits of its last character open
        changed = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
        assert refused(changed, public).code == "SX-PEER-SIGNATURE", (at, bit)
    assert refused(data + b"\n", public).code == "SX-PEER-SIGNATURE"


def test_another_zip_cannot_be_put_around_a_signature(key: tuple[Path, str], tmp_path: Path, code: bytes) -> None:
    """The comment of a signed zip in another one, or behind it, and the signed zip behind another one."""
    path, public = key
    data = signed(code, path)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "brought.py").write_text("evil = 1\n")
    evil = build(tmp_path / "evil").data
    for made in (evil[:-2] + data[len(code) - 2 :], evil + data[len(code) :], evil + data):
        assert refused(made, public).code == "SX-PEER-SIGNATURE"


def test_signers_that_cannot_be_used_are_told(key: tuple[Path, str], tmp_path: Path, code: bytes) -> None:
    """A file that is missing, or holds anything else, so that a slip in it lets no code in and does not pass unseen."""
    (tmp_path / "slip").write_text(f"{key[1]}\nssh-ed25519 AAAA\n")
    for name, cause in (("gone", "No such file"), ("slip", "line 2 is not a public key")):
        error = refused(signed(code, key[0]), str(tmp_path / name))
        assert error.code == "SX-PEER-SIGNERS"
        assert cause in error.cause
    assert public_keys([key[1]]) == {key[1]}


@pytest.mark.parametrize("setting", [[], "", ["signers.txt"], ["ed25519:short"], [3]])
def test_a_setting_that_names_no_signer_is_refused(setting: Any) -> None:
    """An empty one too: it would let in everything."""
    with pytest.raises(SetupError, match=r"peer\.signers") as caught:
        load_settings(peer={"signers": setting})
    assert caught.value.code == "SX-CONFIG-VALUE"


def test_the_settings_are_handed_on(key: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From variables, to a child process; ``config`` shows them: none is a secret."""
    monkeypatch.setenv("SARDONYX__PEER__SIGNERS", f"{key[1]},/etc/sardonyx/signers")
    monkeypatch.setenv("SARDONYX__CLIENT__SIGNER", str(key[0]))
    settings = load_settings()
    assert settings.peer.signers == [key[1], "/etc/sardonyx/signers"]
    assert settings.environment()["SARDONYX__PEER__SIGNERS"] == f"{key[1]},/etc/sardonyx/signers"
    shown = {name: value for name, value, _ in settings.shown()}
    assert (shown["client.signer"], shown["peer.signers"]) == (str(key[0]), f"{key[1]},/etc/sardonyx/signers")


# --- What a peer runs -------------------------------------------------------------------------------------------------


def spec_with(fn: str | None, data: bytes | None, **task: Any) -> JobSpec:
    catalog = [
        TaskSpec(name="read", type="input", connector="generator", options={"count": 1}),
        TaskSpec(name="work", type="function", fn=fn, **task),
        TaskSpec(name="drop", type="output", connector="blackhole"),
    ]
    digest = None if data is None else hashlib.sha256(data).hexdigest()
    return JobSpec(name="j", workflow=[("read", "work"), ("work", "drop")], catalog=catalog, code=digest)


def stage_of(fn: str | None, name: str = "work", **task: Any) -> Stage:
    return graph_of(spec_with(fn, None, **task), "d", "j-1").stage(name)


def peer_settings(*signers: str, **peer: Any) -> PeerSettings:
    return load_settings(peer={"signers": list(signers), **peer}).peer


def test_only_functions_of_signed_modules_run(key: tuple[Path, str], tmp_path: Path, code: bytes) -> None:
    """Neither those that are installed, nor those that a signed module has only imported, unless ``peer.allow`` names them: else
    who may submit a job without a key could choose among all that is installed.
    """
    path, public = key
    data = signed(code, path)
    settings = peer_settings(public)
    bundle = open_code(settings, data, hashlib.sha256(data).hexdigest(), tmp_path / "cache")
    check_allowed(settings, stage_of("brought:work"), bundle)
    for reference, part in {
        "os:system": "it is in the module os",
        "planted_shop:price": "it is in the module planted_shop",
        "brought:system": "brought has imported it from the module posix",
        "brought:price": "brought has imported it from the module planted_shop",
    }.items():
        for given in (bundle, None):
            with pytest.raises(SetupError) as caught:
                check_allowed(settings, stage_of(reference), given)
            assert caught.value.code == "SX-PEER-MODULE"
            if given is not None:
                assert part in caught.value.cause
            assert "peer.signers allows modules that a job brings signed" in caught.value.cause
    shop = peer_settings(public, allow=["planted_shop", "*"])
    for reference in ("planted_shop:price", "brought:price", "brought:work"):
        check_allowed(shop, stage_of(reference), bundle)
    filtering = {"condition": {"$function": "brought:work"}}
    check_allowed(settings, stage_of("sardonyx.pipeline.functions:keep_row", params=filtering), bundle)


def test_a_task_without_functions_needs_no_signature(key: tuple[Path, str]) -> None:
    """Nothing of what its job brings is run for it."""
    settings = peer_settings(key[1])
    assert not takes_code(settings, stage_of("brought:work", "read"))
    assert takes_code(settings, stage_of("brought:work"))
    check_allowed(settings, stage_of("brought:work", "read"))


class Nodes(dict[str, bytes]):
    """The nodes that the preparation of a task reads."""

    def read(self, path: str) -> bytes | None:
        return self.get(path)


@pytest.mark.parametrize("way", ["unsigned", "by another", "signed"])
def test_a_peer_prepares_no_task_whose_code_is_not_signed(
    key: tuple[Path, str], tmp_path: Path, code: bytes, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It declines it before anything of the code is imported or stored; a signed one is built."""
    path, public = key
    new_key(tmp_path / "other.pem")
    data = {"unsigned": code, "by another": signed(code, tmp_path / "other.pem"), "signed": signed(code, path)}[way]
    spec = spec_with("brought:work", data)
    nodes = Nodes(
        {
            node_paths.job_spec("j-1"): encode_spec(spec),
            node_paths.job_links("j-1"): msgspec.json.encode(LinksNote({})),
            node_paths.code(str(spec.code)): data,
        }
    )
    built: list[Any] = []
    monkeypatch.setattr(preparation, "assemble", lambda *given, **_: built.append(given))
    settings = load_settings(peer={"signers": [public]})

    started: list[object] = []
    spark = SparkOnDemand(object, started.append)  # type: ignore[arg-type]

    def prepare() -> None:
        preparation.prepare(settings, nodes, spark, "p", Assignment(1, "j-1", "work", 0), tmp_path / "cache")

    if way == "signed":
        prepare()
        assert len(built) == 1
        assert (tmp_path / "ran").exists()
        until(lambda: started, what="Spark to start")
        return
    with pytest.raises(SetupError) as caught:
        prepare()
    assert caught.value.code == "SX-PEER-SIGNATURE"
    assert not built
    assert not started
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "cache").exists()


# --- What a client signs ----------------------------------------------------------------------------------------------

JOB = """
from sardonyx import Job, blackhole, generator

def work(row: dict) -> dict:
    return row

job = Job("j")
read = job.input("read", generator(1, columns={"n": "sequence"}))
job.output("drop", blackhole(), after=job.task("work", work, after=read))
"""


def test_a_client_with_a_key_signs_what_it_submits(key: tuple[Path, str], tmp_path: Path) -> None:
    """Loaded by it or before; the spec names the signed zip. Without a key, and without code, nothing changes."""
    path, public = key
    (tmp_path / "spec").mkdir()
    file = tmp_path / "spec" / "signed_job.py"
    file.write_text(JOB)
    client = SimpleNamespace(settings=load_settings(client={"signer": path}))
    plain = load(str(file))
    for given in (plain, str(file)):
        found = Client.loaded(client, given)  # type: ignore[arg-type]
        assert found.code is not None
        check_signed(found.code, [public])
        assert found.spec.code == hashlib.sha256(found.code).hexdigest()
        assert msgspec.structs.replace(found.spec, code=plain.spec.code) == plain.spec
    assert plain.signed(None) is plain
    empty = plain._replace(code=None)
    assert empty.signed(path) is empty


@pytest.mark.parametrize("what", ["gone", "text", "rsa"])
def test_a_key_that_cannot_sign_is_told(what: str, tmp_path: Path, code: bytes) -> None:
    """A file that is missing, holds anything else, or a key of another kind."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "text").write_text("no key")
    (tmp_path / "rsa").write_bytes(pem)
    with pytest.raises(SetupError) as caught:
        signed(code, tmp_path / what)
    assert caught.value.code == "SX-CODE-SIGNER"
    assert "sardonyx bundle keygen" in caught.value.fix


def test_keygen_makes_a_pair_and_replaces_none(tmp_path: Path, code: bytes) -> None:
    """The private key only its owner can read; a second call for the same file changes nothing."""
    file = tmp_path / "made.pem"
    first = CliRunner().invoke(app, ["bundle", "keygen", str(file), "--json"])
    public = json.loads(first.stdout)["public"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "made.pem.pub").read_text() == f"{public}\n"
    check_signed(signed(code, file), [public])
    before = file.read_bytes()
    again = CliRunner().invoke(app, ["bundle", "keygen", str(file)])
    assert again.exit_code != 0
    assert "SX-CODE-SIGNER" in again.stderr
    assert file.read_bytes() == before


def test_without_the_package_it_is_said_what_to_install() -> None:
    """By the commands that sign and by the peer that checks; all else works without it."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import peer.preparation, sardonyx.client.client\n"
        "from sardonyx.job.signatures import public_keys\n"
        "public_keys(['ed25519:' + 43 * 'A' + '='])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "SX-SIGNED-MISSING" in done.stderr or "cryptography is not installed" in done.stderr
    assert done.returncode != 0
