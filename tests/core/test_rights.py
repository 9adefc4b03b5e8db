"""The tables of rights on ZooKeeper and Kafka, and how `sardonyx acl print` shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sardonyx.cli.app import app
from sardonyx.core.kafka_rights import ROLES, Right, rights
from sardonyx.core.zk_rights import ALL, RIGHTS, entries_of, rights_of

JOB = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("copy")
read = job.input("read", kafka("orders", format="json", start="earliest", end="latest"))
job.output("publish", kafka("priced", format="json"), after=job.task("same", same, after=read))
"""


def test_only_coordinators_change_what_is_decided() -> None:
    """No other role writes the log, the snapshots, the epoch, the state of peers or the notes of jobs."""
    for top in ("/log", "/snapshot", "/epoch", "/checkpoint", "/peer-state", "/job", "/election"):
        for path in (top, f"{top}/x", f"{top}/x/y", f"{top}/x/y/z"):
            assert set("".join(rights_of(path))) <= {"r"}, path


def test_a_viewer_changes_nothing() -> None:
    """It reads, and has no other right on any node."""
    assert {letter for found in RIGHTS.values() for letter in found.viewer} == {"r"}
    assert {right.operation for right in rights("viewer", "d", ["in"], ["out"])} == {"Describe"}


def test_an_identity_with_two_roles_has_the_rights_of_both() -> None:
    """Each identity stands once in an ACL."""
    both = {"coordinator": "sasl:lead", "client": "sasl:ana", "peer": "sasl:ana"}
    assert dict(entries_of("/sentinel/j", both)) == {"sasl:lead": ALL, "sasl:ana": "rc"}
    assert dict(entries_of("/code/0a", both)) == {"sasl:lead": ALL, "sasl:ana": "rw"}
    assert dict(entries_of("/unknown", both)) == {"sasl:lead": ALL}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_has_a_right_beyond_its_deployment(role) -> None:
    """Prefixes end behind the deployment's name, so that `prod` has no right on `production`."""
    assert {right.name for right in rights(role, "prod") if right.prefixed} <= {"prod.", "prod/"}
    assert all(right.prefixed for right in rights(role, "prod"))


def test_the_rights_of_a_job_are_printed(tmp_path: Path) -> None:
    """With `--job`, the topics that it reads and writes are there, as JSON and as calls of Kafka's tool."""
    spec = tmp_path / "job.py"
    spec.write_text(JOB)
    result = CliRunner().invoke(app, ["acl", "print", "--for", "peer", "--job", str(spec), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    kafka = {Right(**each) for each in found["peer"]["kafka"]}
    assert {Right("topic", "orders", False, "Read"), Right("topic", "priced", False, "Write")} <= kafka
    assert found["peer"]["zookeeper"]["/inbox"] == "rc"
    text = CliRunner().invoke(app, ["acl", "print", "--for", "peer", "--job", str(spec)]).stdout
    assert "--allow-principal User:peer --operation Write --topic priced\n" in text


def test_a_role_that_does_not_exist_is_named() -> None:
    """And a check without roles says which setting is missing."""
    assert "SX-ACL-ROLE" in CliRunner().invoke(app, ["acl", "print", "--for", "boss"]).stderr
    assert "SX-ACL-NO-ROLES" in CliRunner().invoke(app, ["acl", "check", "--zookeeper", "127.0.0.1:1"]).stderr
