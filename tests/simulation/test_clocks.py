"""The clocks of a job in a simulated cluster: what they cost ZooKeeper, and where they stand while a peer is dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queues.messages import CLOCK_HEADER
from sardonyx.core.positions import Partition
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec
from tests.simulation import timed
from tests.simulation.broker import Group
from tests.simulation.plan import Plan, Submission
from tests.simulation.timed import TimedWorld
from tests.simulation.timed_plans import DELAY, SECOND, SIZE, Row

LAST = 45
"""The second at which the last rows come."""
ROWS = [Row(n / 4, n % 2, "abc"[n % 3], n * SECOND // 4, n - 4) for n in range(4, 4 * LAST)]
"""Two a second in each of two partitions. The time of each is the moment at which it comes."""


def the_job() -> JobSpec:
    """Windows behind a task that reads the rows: its peers state their clock in the link between."""
    window = WindowSpec(kind="tumbling", size=f"{SIZE} s", aggregate={"hits": AggregateSpec(of="count")})
    options = {"topic": "rows", "schema": "k string, at bigint, n bigint", "end": "latest"}
    time = TimeSpec(column="at", unit="us", delay=f"{DELAY} s")
    catalog = [
        TaskSpec(name="read", type="input", connector="kafka", options=options, time=time, batch_size=3),
        TaskSpec(name="count", type="function", group_by=["k"], window=window, batch_size=20),
        TaskSpec(name="out", type="output", connector="kafka", options={"topic": "out"}),
    ]
    return JobSpec(name="j", workflow=[("read", "count"), ("count", "out")], catalog=catalog, partitions=2)


class ClockWorld(TimedWorld):
    """A cluster without troubles: six daemons with a peer each, and two coordinators."""

    def __init__(self) -> None:
        jobs = [Submission(0.5, "j", the_job())]
        super().__init__(Plan(seed="clocks", coordinators=2, daemons=(1,) * 6, jobs=jobs, until=LAST))

    @contextmanager
    def going(self, until: float) -> Iterator[None]:
        """The history so far, for as long as the block runs. After it the job must complete with the right windows."""
        with self._instrumented():
            try:
                self._begin()
                self._go_on(until)
                yield
                self._settle()
                self.oracle.at_the_end(self)
            finally:
                self.sim.close()

    @property
    def stated(self) -> list[int]:
        """The clocks that were stated in the link so far, one partition after the other."""
        logs = [log for place, log in self.kafka.broker.logs.items() if place.topic == "sim.j.read.count"]
        headers = [dict(entry.headers) for log in logs for entry in log.history()]
        return [int(found[CLOCK_HEADER]) for found in headers if CLOCK_HEADER in found]

    @property
    def readers(self) -> Group:
        """The peers that read the rows."""
        return self.kafka.broker.groups["sim.j.read"]

    def clock_of(self, number: int) -> int:
        """That of a partition of the rows, as it is committed."""
        position = self.readers.position(Partition("rows", number))
        assert position is not None
        return position.clock.value

    def daemon_of(self, number: int) -> str:
        """The one whose peer holds a partition of the rows."""
        clients = [member.client for member in self.readers.members.values()]
        (holder,) = (client for client in clients if Partition("rows", number) in client.held)
        return holder._process.name


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ClockWorld:
    monkeypatch.setattr(timed, "rows_of", lambda _: ROWS)
    return ClockWorld()


def test_clocks_cost_zookeeper_no_write(world: ClockWorld) -> None:
    """While rows move and clocks are stated, neither peers nor coordinators write anything there."""
    with world.going(until=10.0):
        before, stated = Counter(world.zookeeper.writes), len(world.stated)
        assert before.total() > 20, "what it takes until all peers work"
        world._go_on(40.0)
        assert len(world.stated) > stated + 40, "a statement a second in each of two partitions"
        assert world.zookeeper.writes - before == Counter()


def test_a_clock_stands_while_a_peer_is_dead_and_goes_on_afterwards(world: ClockWorld) -> None:
    """It never passes what the dead peer has committed, although others read on, and goes on with the peer that takes over."""
    with world.going(until=15.0):
        dead, other = world.daemon_of(0), world.daemon_of(1)
        assert dead != other
        world.places[dead.partition(".")[0]].kill()
        world._go_on(18.0)  # what it had committed is known everywhere by then
        stands, goes_on = world.clock_of(0), world.clock_of(1)
        world._go_on(20.0)  # the group counts a member as there for six seconds
        assert world.clock_of(0) == stands
        assert world.clock_of(1) > goes_on > stands
        assert max(world.stated) <= stands
        world._go_on(42.0)
        assert world.clock_of(0) > stands
        assert max(world.stated) > goes_on
