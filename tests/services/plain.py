"""Which tests speak to services without a login, also if ``SECURED=1`` gives the session ZooKeeper and Kafka that ask for one."""

from __future__ import annotations

_OWN = "it starts services of its own, which let every user in"
_FAULTS = "the fault runs start clusters of their own, and look at them by plain clients"
_USERS = "it has secured services anyway, and users of its own"

PLAIN = {
    "test_addresses.py": "it asks what is said of addresses where no such service is",
    "test_cli.py::test_services_only_prints_one_line_and_stays_until_sigterm": _OWN,
    "test_client_hangs.py": _OWN,
    "test_each_right.py": _USERS,
    "test_embedded.py": _OWN,
    "test_faults.py": _FAULTS,
    "test_front_door.py::test_run_brings_its_own_services": _OWN,
    "test_own_user.py": _OWN,
    "test_partitions_by_key.py": "it takes the broker that librdkafka brings along",
    "test_renewal.py": _OWN,
    "test_replaced_leader.py": _OWN,
    "test_secured.py": _USERS,
    "test_secured_jobs.py": _USERS,
    "test_takeover.py": "its proxy looks for a path in what goes to ZooKeeper",
    "test_task_loop.py::test_a_daemon_ends_when_told_though_its_broker_is_gone": _OWN,
    "test_web_actions.py::test_pages_with_a_viewers_identity_change_nothing": _USERS,
    "test_wheel.py::test_an_installed_sardonyx_runs_a_job_in_another_folder": _OWN,
}
"""Files in this folder, or tests in them, and why. ``make test-secured`` runs all others."""


def why_plain(node: str) -> str | None:
    """Why a test (``FILE::NAME``) speaks plain; None: it need not."""
    return next((why for name, why in PLAIN.items() if f"{node}[".startswith((f"{name}[", f"{name}::"))), None)
