"""The slow, dumb twin of the coordinator's deciding core: the rules of ``docs/coordination.md``, read and written a second time.

It shares no code with ``coordinator`` and knows events only as decoded JSON. It keeps a few dictionaries and lists, looks
through all of them for every question, and writes the whole tree anew after every event. Where it and ``decide`` disagree,
one of the two is wrong, or the text is unclear. (The idea of a second implementation that is compared on random cases is
that of the quorum tests of etcd's raft.)
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Refusal = Callable[[str, Json, str | None], Json | None]
"""(job id, spec, unended job that holds its name) -> why it is not taken in. Which specs are fit is asked elsewhere."""

FORGIVEN = 600.0
"""Seconds after which a task's earlier failures are forgotten."""
REMEMBERED = 1000
"""So many purged jobs, and so many dead peers, are still known by id."""
JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")
NEW_TASK: Json = {
    "state": "pending",
    "failures": 0,
    "harmless": 0,
    "failed_at": None,
    "error": None,
    "backing_off": False,
    "counts": None,
    "claimed": 0,
    "letters": 0,
    "positions": {},
}
STATUS = ("status", "submitted_at", "ended_at", "error", "waits_for", "waits_since", "links", "letters")
STATUS += ("stopping", "resumes", "resumed_by", "by")
UNSAID: Json = {
    "assignment": None,
    "ended_at": None,
    "error": None,
    "waits_for": 0,
    "waits_since": None,
    "links": "none",
    "letters": 0,
    "stopping": False,
    "resumes": "",
    "resumed_by": "",
    "by": "",
}
UNSAID |= {"peers": {}, "failures": 0, "backing_off": False, "counts": None, "positions": {}}
"""What a note leaves out, as it goes without saying."""


SILENT = {
    "code": "SX-PEER-SILENT",
    "cause": "it hangs while it prepares the task, as when it imports the job's code; or its machine is overloaded",
    "fix": "look into the log of its daemon; coordinator.ack_timeout sets the time",
}


class Twin:
    """All that is known, and what each event makes of it. ``zk``: path -> what should stand there."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.peers: dict[str, Json] = {}
        self.jobs: dict[str, Json] = {}
        self.purged: list[str] = []
        self.dead: list[str] = []
        self.free: list[str] = []  # idle peers, the one that has been idle longest first
        self.at_work: list[str] = []  # peers with an assignment, in the order in which they got it
        self.served = 0  # number of the job that was served last
        self.outer: list[tuple[str, str]] = []
        self.zk: dict[str, Json | None] = {}

    def take(self, n: int, event: Json) -> list[tuple[str, str]]:
        """Event ``n`` happens. Gives what is to be done outside the tree: (what, peer or job)."""
        self.n, self.at, self.outer = n, event.get("at", 0.0), []
        getattr(self, "on_" + event["kind"].replace("-", "_"))(event)
        while self.offer_something() or self.preempt_somebody():
            pass
        for job in self.jobs.values():
            self.say_what_is_missing(job)
        self.write_tree()
        return self.outer

    # Peers come and go

    def on_born(self, event: Json) -> None:
        if event["peer"] not in self.peers:
            self.peers[event["peer"]] = {"state": "idle", "assignment": None}
            self.free.append(event["peer"])

    def on_died(self, event: Json) -> None:
        if self.state(event["peer"]) != "dead":
            self.leave(event["peer"], "dead")

    on_leave = on_died

    def on_evict(self, event: Json) -> None:
        if self.state(event["peer"]) == "idle":
            self.leave(event["peer"], "dead")
            self.outer.append(("DeletePulse", event["peer"]))
        elif self.state(event["peer"]) in ("acking", "active", "waiting", "sealing"):
            self.leave(event["peer"], "revoked")

    def on_rules_raised(self, event: Json) -> None:
        assert event["rules"] == 2, "the twin follows rules 2 only"

    def on_grace_ended(self, event: Json) -> None:
        if self.state(event["peer"]) == "revoked":
            self.leave(event["peer"], "dead")
            self.outer.append(("DeletePulse", event["peer"]))

    # Jobs come and go

    def on_submit(self, event: Json) -> None:
        name, spec = event["job"], event["spec"]
        if name in self.jobs or name in self.purged or not JOB_ID.fullmatch(name):
            return
        holders = [j["id"] for j in self.jobs.values() if j["spec"]["name"] == spec["name"] and not ended(j)]
        error = self.refusal(name, spec, holders[0] if holders else None)
        resumes = event.get("resumes", "")
        if error is None and resumes and not self.may_resume(spec, self.jobs.get(resumes)):
            error = {"code": "SX-JOB-RESUME"}
        job = {"id": name, "number": self.n, "spec": spec, "stages": [], "tasks": {}, "refused": error is not None}
        job |= {"status": "failed" if error else "planning", "error": error, "purge": False, "give_up_letters": False}
        job |= {"submitted_at": self.at, "ended_at": self.at if error else None, "links": "none", "facts": None}
        job |= {"by": event.get("by", ""), "stopping": False, "resumes": "", "resumed_by": "", "begins": {}}
        self.jobs[name] = job | {"waits_for": 0, "waits_since": None}
        if error is None and resumes:
            before = self.jobs[resumes]
            before["resumed_by"] = name
            self.jobs[name]["resumes"] = resumes
            self.jobs[name]["begins"] = {task: before["tasks"][task]["positions"] for task in before["stages"]}
        if error is None:
            tasks = {task["name"]: copy.copy(NEW_TASK) for task in spec["catalog"]}
            self.jobs[name].update(tasks=tasks, stages=stages(spec))
            self.outer.append(("CreateLinks", name))

    def may_resume(self, spec: Json, before: Json | None) -> bool:
        """Only what has ended and left nothing behind, once, and by a job that reads the same topics in the same tasks."""
        if before is None or not ended(before) or before["links"] != "gone" or before["resumed_by"]:
            return False
        if before["status"] in ("killed", "failed") and not nothing_between(before["spec"]):
            return False
        for task in before["stages"]:
            topics = set(topics_read(before["spec"], task).values())
            if not topics <= set(before["tasks"][task]["positions"]):
                return False
            if topics and (task not in stages(spec) or not topics <= set(topics_read(spec, task).values())):
                return False
        return True

    def on_stop(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or ended(job) or ends(job):
            return
        job["stopping"] = True
        if job["facts"] is None:
            return
        for name in job["stages"]:
            if self.mark_stopped(job, name):
                for peer in self.on_task(job, name):
                    self.put(peer, "idle")

    def mark_stopped(self, job: Json, name: str) -> bool:
        """Whether the task reads a topic without an end, which ends now."""
        found = False
        for link in topics_read(job["spec"], name):
            source = link.split(".")[0]
            if task_spec(job["spec"], source)["options"].get("end") is None and link in job["facts"]:
                job["facts"] = job["facts"] | {link: job["facts"][link] | {"stops": True}}
                found = True
        return found

    def on_links_created(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and job["status"] == "planning":
            facts = dict(event["links"])
            for name in job["stages"]:
                for link, topic in topics_read(job["spec"], name).items():
                    known = job["begins"].get(name, {}).get(topic) if link in facts else None
                    if known is not None and len(known) > facts[link]["partitions"]:
                        job["links"] = "made"
                        self.end(job, "failed", {"code": "SX-RESUME-TOPIC"})
                        return
                    if known is not None:
                        more = [0] * (facts[link]["partitions"] - len(known))
                        facts[link] = facts[link] | {"start": [*known, *more]}
            job.update(status="running", links="made", facts=facts)
            for name in job["stages"]:
                if job["stopping"]:
                    self.mark_stopped(job, name)
        else:
            self.links_came_late(job)

    def on_links_failed(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and job["status"] == "planning":
            job["links"] = "made"  # some of them may be
            self.end(job, "failed", event["error"])
        else:
            self.links_came_late(job)

    def links_came_late(self, job: Json | None) -> None:
        if job is not None and ended(job) and not job["refused"] and job["links"] != "made":
            job["links"] = "made"
            self.outer.append(("DeleteLinks", job["id"]))

    def on_kill(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and not ended(job):
            self.end(job, "killed", None)

    def on_links_deleted(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or not ended(job) or job["refused"] or job["links"] == "gone":
            return
        job["links"] = "gone"
        for name, counts in event.get("counts", {}).items():
            if name in job["tasks"] and job["tasks"][name]["counts"] is None:
                job["tasks"][name]["counts"] = counts
        for name, letters in event.get("letters", {}).items():
            if name in job["tasks"]:
                job["tasks"][name]["letters"] = letters
        for name, topics in event.get("positions", {}).items():
            if name in job["stages"] and job["facts"] is not None and not job["tasks"][name]["positions"]:
                job["tasks"][name]["positions"] = positions_in(job, name, topics)
        if job["purge"] and (job["give_up_letters"] or letters_left(job) == 0):
            self.forget(job)
        job["purge"] = False

    def on_letters_claimed(self, event: Json) -> None:
        task = self.jobs.get(event["job"], {"tasks": {}})["tasks"].get(event["task"])
        if task is not None and event["letters"] > task["claimed"]:
            task["claimed"] = event["letters"]

    def on_purge(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and ended(job):
            gives_up = event.get("dead_letters", False)
            if not (job["refused"] or job["links"] == "gone"):
                job["purge"] = True
                job["give_up_letters"] = job["give_up_letters"] or gives_up
            elif gives_up or letters_left(job) == 0:
                self.forget(job)

    def forget(self, job: Json) -> None:
        del self.jobs[job["id"]]
        self.purged = [*self.purged, job["id"]][-REMEMBERED:]

    def end(self, job: Json, status: str, error: Json | None) -> None:
        job.update(status=status, error=error, ended_at=self.at)
        if job["facts"] is None and job["resumes"] in self.jobs:
            self.jobs[job["resumes"]]["resumed_by"] = ""
        for name, task in job["tasks"].items():
            for peer in self.on_task(job, name):
                self.put(peer, "idle")
            task["backing_off"] = False
        self.outer.append(("DeleteLinks", job["id"]))

    # What peers say of their assignments

    def on_ack(self, event: Json) -> None:
        if self.holds(event, "acking"):
            self.peers[event["peer"]]["state"] = "active"
            self.place(event["peer"])[1]["state"] = "running"

    def on_ack_timed_out(self, event: Json) -> None:
        if not self.holds(event, "acking"):
            return
        peer = event["peer"]
        job, task = self.place(peer)
        name = self.peers[peer]["assignment"]["task"]
        if not task["backing_off"] and task["failed_at"] != self.at:
            message = f"peer {peer} did not answer the offer of task {name!r} in time"
            where = {"job": job["id"], "task": name, "peer": peer}
            self.add_failure(task, SILENT | {"message": message, "where": where}, harmless=False)
            if task["failures"] - task["harmless"] > job["spec"].get("failure_limit", 3):
                self.leave(peer, "revoked")
                self.end(job, "failed", task["error"])
                return
        self.leave(peer, "revoked")

    def on_exhausted(self, event: Json) -> None:
        if self.holds(event, "active"):
            others = [self.state(p) for p in self.others(event["peer"])]
            self.peers[event["peer"]]["state"] = "sealing" if all(s == "waiting" for s in others) else "waiting"

    def on_completed(self, event: Json) -> None:
        if not self.holds(event, "sealing"):
            return
        peer = event["peer"]
        job, task = self.place(peer)
        if any(self.state(p) in ("acking", "active") for p in self.others(peer)):
            self.peers[peer]["state"] = "waiting"
            return
        name = self.peers[peer]["assignment"]["task"]
        task.update(state="complete", backing_off=False, counts=event.get("counts", {}))
        if not task["positions"]:
            task["positions"] = positions_in(job, name, event.get("positions", {}))
        for each in [peer, *self.others(peer)]:
            self.put(each, "idle")
        if all(job["tasks"][name]["state"] == "complete" for name in job["stages"]):
            self.end(job, "stopped" if job["stopping"] else "completed", None)

    def on_decline(self, event: Json) -> None:
        if self.holds(event, "acking"):
            self.count_failure(event)

    def on_failed(self, event: Json) -> None:
        if self.holds(event, "acking", "active", "waiting", "sealing"):
            self.count_failure(event)

    def add_failure(self, task: Json, error: Json, *, harmless: bool) -> None:
        if task["failed_at"] is not None and self.at - task["failed_at"] > FORGIVEN:
            task.update(failures=0, harmless=0, error=None)
        if task["failures"] - task["harmless"] == 0:
            task["error"] = error
        task.update(failures=task["failures"] + 1, failed_at=self.at)
        task["harmless"] += harmless

    def count_failure(self, event: Json) -> None:
        job, task = self.place(event["peer"])
        if task["backing_off"] and not event.get("fatal", False):  # what another one has reported already
            self.leave(event["peer"], "idle")
            return
        self.add_failure(task, event["error"], harmless=event.get("passing", False))
        self.leave(event["peer"], "idle")
        if event.get("fatal", False):
            self.end(job, "failed", event["error"])
        elif task["failures"] - task["harmless"] > job["spec"].get("failure_limit", 3):
            self.end(job, "failed", task["error"])
        else:
            task["backing_off"] = True

    def on_backoff_ended(self, event: Json) -> None:
        task = self.jobs.get(event["job"], {"tasks": {}})["tasks"].get(event["task"])
        if task is not None and task["backing_off"] and task["failures"] == event["failures"]:
            task["backing_off"] = False

    # Peers and their places

    def state(self, peer: str) -> str:
        return self.peers[peer]["state"] if peer in self.peers else "dead"  # an unknown peer counts as dead

    def holds(self, event: Json, *states: str) -> bool:
        """Whether the peer is in one of these states with the very assignment that it speaks of."""
        peer = event["peer"]
        return self.state(peer) in states and self.peers[peer]["assignment"]["id"] == event["assignment"]

    def place(self, peer: str) -> tuple[Json, Json]:
        job = self.jobs[self.peers[peer]["assignment"]["job"]]
        return job, job["tasks"][self.peers[peer]["assignment"]["task"]]

    def on_task(self, job: Json, name: str) -> list[str]:
        return [p for p in self.at_work if self.place(p)[1] is job["tasks"][name]]

    def others(self, peer: str) -> list[str]:
        """Who else is on its task, if it has one."""
        if peer not in self.at_work:
            return []
        return [p for p in self.at_work if p != peer and self.place(p)[1] is self.place(peer)[1]]

    def put(self, peer: str, state: str) -> None:
        """The peer has no task any more and is in this state."""
        for where in (self.at_work, self.free):
            if peer in where:
                where.remove(peer)
        self.peers[peer] = {"state": state, "assignment": None}
        if state == "idle":
            self.free.append(peer)
        if state == "dead":
            self.dead.append(peer)
            if len(self.dead) > REMEMBERED:
                del self.peers[self.dead.pop(0)]

    def leave(self, peer: str, state: str) -> None:
        """As ``put``; and if only waiting ones remain on its task, they become idle."""
        others = self.others(peer)
        self.put(peer, state)
        if all(self.state(p) == "waiting" for p in others):
            for other in others:
                self.put(other, "idle")

    def offer(self, job: Json, name: str, peers: list[str]) -> None:
        for peer in peers:
            taken = [self.peers[p]["assignment"]["slot"] for p in self.on_task(job, name)]
            slot = min(s for s in range(len(taken) + 1) if s not in taken)
            self.free.remove(peer)
            self.at_work.append(peer)
            assignment = {"id": self.n, "job": job["id"], "task": name, "slot": slot}
            self.peers[peer] = {"state": "acking", "assignment": assignment}
        self.served = job["number"]

    # Which task next

    def jobs_in_turn(self) -> list[Json]:
        running = [job for job in self.jobs.values() if job["status"] == "running"]
        behind = [job for job in running if job["number"] > self.served]
        return behind + [job for job in running if job not in behind]

    def offer_something(self) -> bool:
        """Tasks without peers first, then unbounded jobs that begin, then further peers for a task."""
        found: dict[str, tuple[Json, str]] = {}
        for job in self.jobs_in_turn():
            name = self.next_task(job) if self.free else None
            if name is not None:
                begins = not ends(job) and not self.at_work_for(job)
                kind = "share" if self.on_task(job, name) else "begin" if begins else "desert"
                found.setdefault(kind, (job, name))
        for kind in ("desert", "begin", "share"):
            if kind in found:
                job, name = found[kind]
                self.offer(job, name, self.free[: 1 if kind == "share" else self.asks_for(job, name)])
                return True
        return False

    def at_work_for(self, job: Json) -> list[str]:
        return [peer for peer in self.at_work if self.place(peer)[0] is job]

    def next_task(self, job: Json) -> str | None:
        names = [name for name in job["stages"] if self.may_be_offered(job, name)]
        all_at_once = 0
        if not ends(job) and not self.at_work_for(job):
            open_tasks = [name for name in job["stages"] if job["tasks"][name]["state"] != "complete"]
            all_at_once = sum(self.asks_for(job, name) for name in open_tasks)
        for name in names:
            if not self.on_task(job, name) and max(self.asks_for(job, name), all_at_once) <= len(self.free):
                return name
        shared = [name for name in names if 0 < len(self.on_task(job, name)) < most_peers(job, name)]
        return min(shared, key=lambda name: len(self.on_task(job, name))) if shared else None

    def may_be_offered(self, job: Json, name: str) -> bool:
        task = job["tasks"][name]
        blocked = any(self.deserted(job, before) for before in in_front_of(job, name))
        return task["state"] != "complete" and not task["backing_off"] and not blocked

    def deserted(self, job: Json, name: str) -> bool:
        return job["tasks"][name]["state"] != "complete" and not self.on_task(job, name)

    def asks_for(self, job: Json, name: str) -> int:
        """How many peers a task without peers must get at once."""
        begun = job["tasks"][name]["state"] != "pending"
        return 1 if begun else min(task_spec(job["spec"], name).get("min_peers", 1), most_peers(job, name))

    def front(self, job: Json) -> list[str]:
        """Tasks that are not complete while everything before them is."""
        incomplete = [name for name in job["stages"] if job["tasks"][name]["state"] != "complete"]
        return [name for name in incomplete if not set(in_front_of(job, name)) & set(incomplete)]

    def nobody_at_the_front(self, job: Json) -> bool:
        return not any(self.on_task(job, name) for name in self.front(job))

    def preempt_somebody(self) -> bool:
        """For the oldest job that cannot go on, if there are enough peers to take."""
        for job in sorted(self.jobs.values(), key=lambda job: job["number"]):
            if job["status"] != "running":
                continue
            awake = [name for name in self.front(job) if not job["tasks"][name]["backing_off"]]
            if not ends(job):
                if self.take_from_others(job, self.all_missing(job)):
                    return True
            elif self.nobody_at_the_front(job) and (
                any(self.preempt_for(job, name) for name in awake)
                or any(self.take_from_others(job, [name]) for name in awake)
            ):
                return True
        return False

    def all_missing(self, job: Json) -> list[str]:
        """Tasks without peers that do not back off, and behind no such task that does."""
        out: list[str] = []
        for name in job["stages"]:
            behind = [before for before in in_front_of(job, name) if self.deserted(job, before)]
            if self.deserted(job, name) and not job["tasks"][name]["backing_off"] and set(behind) <= set(out):
                out.append(name)
        return out

    def take_from_others(self, job: Json, names: list[str]) -> bool:
        """Peers of unbounded jobs: first those beyond the first of a task, then all of later jobs that lack some themselves."""
        missing = sum(self.asks_for(job, name) for name in names) - len(self.free)
        if missing <= 0:
            return False
        endless = [j for j in self.jobs.values() if j["status"] == "running" and not ends(j)]
        taken: list[str] = []
        left = {(j["number"], place): self.on_task(j, name) for j in endless for place, name in enumerate(j["stages"])}
        least = {
            (j["number"], place): max(1, min(task_spec(j["spec"], name).get("min_peers", 1), most_peers(j, name)))
            for j in endless
            for place, name in enumerate(j["stages"])
        }
        while len(taken) < missing:
            more = [where for where in left if len(left[where]) > least[where]]
            if not more:
                break
            where = max(more, key=lambda where: (len(left[where]) - least[where], *where))
            peer = left[where].pop()
            taken += [peer] if self.state(peer) in ("acking", "active") else []
        for other in sorted(endless, key=lambda j: -j["number"]):
            if other["number"] > job["number"] and any(self.deserted(other, name) for name in other["stages"]):
                for name in reversed(other["stages"]):
                    for peer in reversed(self.on_task(other, name)):
                        if len(taken) < missing and peer not in taken and self.state(peer) in ("acking", "active"):
                            taken.append(peer)
        if len(taken) < missing:
            return False
        for peer in taken:
            self.leave(peer, "idle")
        for name in names:
            self.offer(job, name, self.free[: self.asks_for(job, name)])
        return True

    def preempt_for(self, job: Json, name: str) -> bool:
        """Those furthest down, the latest first, until there are enough; if there never are, all stay where they are."""
        before = copy.deepcopy((self.peers, self.free, self.at_work))
        for place in reversed(job["stages"]):
            for peer in reversed(self.on_task(job, place)):
                if len(self.free) < self.asks_for(job, name) and self.state(peer) in ("acking", "active"):
                    self.leave(peer, "idle")
        if len(self.free) >= self.asks_for(job, name):
            self.offer(job, name, self.free[: self.asks_for(job, name)])
            return True
        self.peers, self.free, self.at_work = before
        return False

    def say_what_is_missing(self, job: Json) -> None:
        missing = 0
        if job["status"] == "running":
            awake = [name for name in job["stages"] if not job["tasks"][name]["backing_off"]]
            available = len(self.free)
            if not ends(job):
                wanting = [name for name in awake if self.deserted(job, name)]
            else:
                wanting = [name for name in awake if name in self.front(job) and self.nobody_at_the_front(job)][:1]
                available += sum(len(self.on_task(job, name)) for name in job["stages"])
            missing = max(0, sum(self.asks_for(job, name) for name in wanting) - available)
        if missing == 0:
            job["waits_since"] = None
        elif job["waits_for"] == 0:
            job["waits_since"] = self.at
        job["waits_for"] = missing

    # The tree

    def write_tree(self) -> None:
        """All nodes from scratch; those that say the same as before keep their number."""
        notes: dict[str, Json] = {}
        zk: dict[str, Json | None] = {}
        for name, peer in self.peers.items():
            if peer["state"] != "dead":
                notes[f"/peer-state/{name}"] = {"state": peer["state"], "assignment": peer["assignment"]}
        for name, job in self.jobs.items():
            job["letters"] = letters_left(job)
            notes[f"/job/{name}/status"] = {"name": job["spec"]["name"]} | {field: job[field] for field in STATUS}
            zk[f"/job/{name}/spec"] = job["spec"]
            zk |= {f"/job/{name}": None, f"/job/{name}/task": None}
            if job["facts"] is not None:
                notes[f"/job/{name}/links"] = {"links": job["facts"]}
            for task in job["tasks"]:
                notes[f"/job/{name}/task/{task}"] = self.task_note(job, task)
        for path, note in notes.items():
            said = {field: value for field, value in note.items() if field not in UNSAID or value != UNSAID[field]}
            if note.get("counts") is not None:
                said["counts"] = {field: rows for field, rows in note["counts"].items() if rows != 0}
            if not path.endswith("/links"):
                old = self.zk.get(path) or {"n": None}
                said["n"] = old["n"] if said | {"n": old["n"]} == old else self.n
            zk[path] = said
        self.zk = zk

    def task_note(self, job: Json, name: str) -> Json:
        task = job["tasks"][name]
        state = task["state"]
        if name not in job["stages"]:  # runs nowhere: does what those do that it stands for
            states = [job["tasks"][other]["state"] for other in neighbours(job["spec"], name)]
            state = states[0] if len(set(states)) == 1 else "running"
        peers = {peer: self.peers[peer]["assignment"]["slot"] for peer in self.on_task(job, name)}
        return {"state": state, "peers": peers} | {
            field: task[field] for field in ("failures", "backing_off", "counts", "positions")
        }


def ended(job: Json) -> bool:
    return job["status"] in ("completed", "stopped", "killed", "failed")


def letters_left(job: Json) -> int:
    """Dead letters that no user has redone or dropped; they are counted when the job's topics are gone."""
    if job["links"] != "gone":
        return 0
    dead = {
        name: task["letters"] if task["counts"] is None else task["counts"].get("dead", 0)
        for name, task in job["tasks"].items()
    }
    return sum(max(dead[name] - task["claimed"], 0) for name, task in job["tasks"].items())


# What follows from a job's spec


def task_spec(spec: Json, name: str) -> Json:
    return next(task for task in spec["catalog"] if task["name"] == name)


def neighbours(spec: Json, name: str) -> list[str]:
    """Tasks with an edge to or from this one."""
    return [b if a == name else a for a, b in spec["workflow"] if name in (a, b)]


def runs_nowhere(spec: Json, name: str) -> bool:
    """A topic at an end of the job, without a function: bound in place; but not an output right behind a bound input."""
    task = task_spec(spec, name)
    if task.get("connector") != "kafka" or task.get("fn") is not None:
        return False
    return task["type"] == "input" or not any(runs_nowhere(spec, a) for a, b in spec["workflow"] if b == name)


def stages(spec: Json) -> list[str]:
    """Tasks that peers run, in topological order; of several that could be next, the first in the catalog."""
    order: list[str] = []
    names = [task["name"] for task in spec["catalog"]]
    while len(order) < len(names):
        ready = [n for n in names if n not in order and all(a in order for a, b in spec["workflow"] if b == n)]
        order.append(ready[0])
    return [name for name in order if not runs_nowhere(spec, name)]


def in_front_of(job: Json, name: str) -> list[str]:
    return [a for a, b in job["spec"]["workflow"] if b == name and a in job["stages"]]


def bounded(spec: Json) -> bool:
    inputs = [task for task in spec["catalog"] if task["type"] == "input"]
    return all(t.get("connector") != "kafka" or t.get("options", {}).get("end") is not None for t in inputs)


def ends(job: Json) -> bool:
    """Whether the job ends by itself."""
    return bounded(job["spec"]) or job["stopping"]


def topics_read(spec: Json, name: str) -> dict[str, str]:
    """The users' topics that a task reads, by link."""
    read = {f"{a}.{b}": a for a, b in spec["workflow"] if b == name and runs_nowhere(spec, a)}
    own = task_spec(spec, name)
    if own["type"] == "input" and own.get("connector") == "kafka":
        read[f"{name}.topic"] = name
    return {link: task_spec(spec, source)["options"]["topic"] for link, source in read.items()}


def nothing_between(spec: Json) -> bool:
    """Whether each record goes from a topic through one task to a topic."""
    for task in spec["catalog"]:
        if task["type"] != "function" and task.get("connector") != "kafka":
            return False
    return all(len([place for place in pair if not runs_nowhere(spec, place)]) < 2 for pair in spec["workflow"])


def positions_in(job: Json, name: str, committed: Json) -> Json:
    """The next offsets of the topics that a task reads: what was committed, else where the job began."""
    found: Json = {}
    for link, topic in topics_read(job["spec"], name).items():
        if topic in committed and link in job["facts"]:
            offsets = (job["facts"][link].get("start") or [0] * job["facts"][link]["partitions"]).copy()
            offsets += [0] * (len(committed[topic]) - len(offsets))
            for number in range(len(committed[topic])):
                if committed[topic][number] is not None:
                    offsets[number] = committed[topic][number]
            found[topic] = offsets
    return found


def most_peers(job: Json, name: str) -> int:
    """How many peers can share the task: one if it is sequential, else as its widest incoming link and it itself allow."""
    task = task_spec(job["spec"], name)
    if task.get("consumption") == "sequential":
        return 1
    incoming = [f"{a}.{b}" for a, b in job["spec"]["workflow"] if b == name]
    incoming = incoming or [f"{name}.topic" if task.get("connector") == "kafka" else f"{name}.splits"]
    widest = max((job["facts"][link]["partitions"] for link in incoming if link in job["facts"]), default=1)
    return min(widest, task["max_peers"]) if task.get("max_peers") is not None else widest
