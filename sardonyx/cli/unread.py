"""What `job show` asks Kafka for: positions, and what is unread. It says why, where Kafka does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.core.errors import SetupError

if TYPE_CHECKING:
    from sardonyx.cli.call import Call
    from sardonyx.client.client import JobHandle
    from sardonyx.client.views import JobView

LAG_PATIENCE = 10.0
"""Seconds that `job show` waits for Kafka to tell positions and what is unread; twice what one task's links may take."""


def with_unread(call: Call, handle: JobHandle, view: JobView) -> JobView:
    """The view with positions and what is unread before each task. Says so if Kafka does not tell, or not in time."""
    from sardonyx.client.views import with_lag, with_positions
    from sardonyx.runtime.background import BackgroundThread

    if view.rows_error is not None:
        call.say_once(view.rows_error, "rows, positions and what is unread are not known: ")
        return view
    if view.status != "running" or not call.settings.kafka.bootstrap_servers:
        return view
    thread = BackgroundThread("lag")
    positions, lag = thread.submit(handle.positions), thread.submit(handle.lag)
    thread.close()
    try:
        view = with_positions(view, positions.result(LAG_PATIENCE))
        return with_lag(view, lag.result(LAG_PATIENCE))
    except TimeoutError:
        call.say(
            f"what is unread is not known: Kafka has not answered within {LAG_PATIENCE:.0f} s; "
            f"`sardonyx job explain {view.id}` says why"
        )
    except SetupError as error:
        call.say_once(error.to_failure(), "what is unread is not known: ")
    return view


def tell_rows_error(call: Call, view: JobView) -> None:
    """Say why rows of a job are not known, if Kafka was asked for them and did not tell. Each error is said once."""
    if view.rows_error is not None:
        call.say_once(view.rows_error, f"rows of job {view.id} are not known: ")


def unusable_settings(call: Call) -> SetupError | None:
    """What is wrong with the settings of this call that keeps every client of Kafka from being made; None: nothing is known to
    be wrong. Kafka is not asked, and neither is any other service. Raises what reading the settings raises.
    """
    if not call.settings.kafka.client().keys() - {"bootstrap.servers"}:  # most have none, and need not load the client
        return None
    from queues.connectivity import unusable

    return unusable(call.settings)
