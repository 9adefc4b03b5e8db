"""The slow, dumb twin of the coordinator's deciding core: the rules of ``docs/coordination.md``, read and written a second time.

It shares no code with ``coordinator`` and knows events only as decoded JSON. It keeps a few dictionaries and lists, looks
through all of them for every question, and writes the whole tree anew after every event. Where it and ``decide`` disagree,
one of the two is wrong, or the text is unclear. (The idea of a second implementation that is compared on random cases is
that of the quorum tests of etcd's raft.)
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
Refusal = Callable[[str, Json, str | None], Json | None]
"""(job id, spec, unended job that holds its name) -> why it is not taken in. Which specs are fit is asked elsewhere."""

FORGIVEN = 600.0
"""Seconds after which a task's earlier failures are forgotten."""
NOTHING = "spark_tasks.conditions:nothing"
"""The condition of an edge over which no row goes."""
REMEMBERED = 1000
"""So many purged jobs, and so many dead peers, are still known by id."""
OLDEST = 7
"""What peers read that say nothing of it."""
JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")
TOLD_AGAIN = ("links-read", "links-deleted", "links-dropped", "purge")
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
    "left": 0,
    "had": {},
    "failed_in": {},
    "declined": [],
    "taken_up": False,
}


def stands(job: str, task: str) -> Callable[[tuple[str, int]], str]:
    """The order in which processes stand by for a task: that of a hash of job, task, host and pid."""
    return lambda home: hashlib.blake2b(f"{job}/{task}/{home[0]}:{home[1]}".encode(), digest_size=8).hexdigest()


STATUS = ("status", "submitted_at", "ended_at", "error", "waits_for", "waits_since", "links", "letters")
STATUS += ("stopping", "resumes", "resumed_by", "by", "suspended", "queued", "revision", "changing")
STATUS += ("resumes_at", "replays", "lends", "checkpoints")
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
    "resumes_at": None,
    "replays": False,
    "resumed_by": "",
    "lends": False,
    "checkpoints": [],
    "by": "",
    "suspended": False,
    "revision": 1,
    "changing": False,
    "queued": False,
    "yields": "",
    "drained": False,
    "joins": False,
}
UNSAID |= {"topics": {}, "peers": {}, "failures": 0, "backing_off": False, "counts": None, "positions": {}}
"""What a note leaves out, as it goes without saying."""


SILENT = {
    "code": "SX-PEER-SILENT",
    "cause": "it hangs while it prepares the task, as when it imports the job's code; or its machine is overloaded",
    "fix": "look into the log of its daemon; coordinator.ack_timeout sets the time",
}
OVERLOADED = (
    "its machine is overloaded, or lacks something that the job's code waits for: another peer has begun with the task"
)


PARTITIONS = 8
ENTITLEMENT = {"priority": 0, "weight": 1.0, "percentage": None, "max_peers": None}


class Twin:
    """All that is known, and what each event makes of it. ``zk``: path -> what should stand there."""

    def __init__(
        self,
        refusal: Refusal,
        changeable: Callable[[Json, Json, list[str], list[str]], bool],
        untouched: Callable[[Json, Json, list[str], Json, int], list[str]],
        rules: int = 4,
    ) -> None:
        self.rules = rules  # 3 or 4
        self.refusal = refusal
        self.changeable = changeable
        self.untouched = untouched  # by a change: old and new spec, where the code is the same, facts of links
        self.peers: dict[str, Json] = {}
        self.jobs: dict[str, Json] = {}
        self.purged: list[str] = []
        self.dead: list[str] = []
        self.free: list[str] = []  # idle peers, the one that has been idle longest first
        self.at_work: list[str] = []  # peers with an assignment, in the order in which they got it
        self.served = 0  # number of the job that was served last
        self.scheduler = "turns"
        self.drained: set[str] = set()  # hosts
        self.aside: list[str] = []  # drained peers that are idle, the one that has been idle longest first
        self.came = 0  # how often a peer has become idle, or was taken in again
        self.outer: list[tuple[str, str]] = []
        self.zk: dict[str, Json | None] = {}

    def take(self, n: int, event: Json) -> list[tuple[str, str]]:
        """Event ``n`` happens. Gives what is to be done outside the tree: (what, peer or job)."""
        self.n, self.at, self.outer = n, event.get("at", 0.0), []
        getattr(self, "on_" + event["kind"].replace("-", "_"))(event)
        for job in self.running():
            touched = [name for name in job["tasks"] if name not in job["goes_on"]]
            if job["next"] is None or job["switching"] or any(self.on_task(job, name) for name in touched):
                continue
            fences = self.rules > 3 and any(name in job["stages"] for name in touched)
            if wires(job["spec"]) == wires(job["next"]) and not fences:
                self.swap(job)
            elif self.gains_at_its_end(job, job["next"]):
                job.update(next=None, goes_on=[])
            else:
                job["switching"] = True
                self.outer.append(("ChangeLinks", job["id"]))
        entitled = self.entitled()
        for job in self.running():
            job["queued"] = entitled[job["id"]]["peers"] == 0 and not pauses(job)
        while self.offer_something() or self.preempt_somebody():
            pass
        for job in self.jobs.values():
            self.say_whose_turns_end(job)
        for job in self.jobs.values():
            self.say_what_is_missing(job)
        self.write_tree()
        return self.outer

    # Peers come and go

    def on_born(self, event: Json) -> None:
        if event["peer"] not in self.peers:
            said = {"tags": set(event.get("tags", [])), "reads": event.get("format", 0) or OLDEST}
            process = (event.get("host"), event.get("pid"))
            new = {"state": "idle", "assignment": None, "yields": "", "process": process if all(process) else None}
            new |= {"host": event.get("host", ""), "drained": event.get("host") in self.drained, "joins": False}
            self.peers[event["peer"]] = new | said
            self.rests(event["peer"])

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

    def on_drain(self, event: Json) -> None:
        if self.rules < 4:
            return
        drained, host = not event.get("back", False), event.get("host", "")
        if host:
            (self.drained.add if drained else self.drained.discard)(host)
        for name in [*self.free, *self.aside, *self.at_work]:
            peer = self.peers[name]
            meant = name == event.get("peer", "") or (host and peer["host"] == host)
            if meant and peer["drained"] != drained:
                peer["drained"] = drained
                if peer["assignment"] is not None:
                    peer["yields"] = "share" if drained else ""
                else:
                    (self.free if drained else self.aside).remove(name)
                    if drained:
                        self.aside = sorted([*self.aside, name], key=lambda each: self.peers[each]["came"])
                    else:
                        self.rests(name)

    def rests(self, peer: str) -> None:
        self.came += 1
        self.peers[peer]["came"] = self.came
        (self.aside if self.peers[peer]["drained"] else self.free).append(peer)

    def on_rules_raised(self, event: Json) -> None:
        assert event["rules"] in (3, 4), "the twin knows no others"
        self.rules = max(self.rules, event["rules"])

    def on_grace_ended(self, event: Json) -> None:
        if self.state(event["peer"]) == "revoked":
            self.leave(event["peer"], "dead")
            self.outer.append(("DeletePulse", event["peer"]))

    # Jobs come and go

    def on_set_aside(self, event: Json) -> None:
        job, cause = self.jobs.get(event.get("job", "")), event["event"]
        if job is None and cause["kind"] == "submit":
            self.on_submit(cause, event["error"])
        elif job is not None and not ended(job):
            self.end(job, "failed", event["error"])
        elif job is not None and cause["kind"] in ("links-created", "links-failed"):
            if not job["refused"] and job["links"] != "made":
                self.links_came_late(job)
        elif job is not None and cause["kind"] in TOLD_AGAIN and job["error"] != event["error"]:
            job["left_alone"] = True
        if event.get("decided"):
            getattr(self, "on_" + cause["kind"].replace("-", "_"))(cause)

    def on_submit(self, event: Json, error: Json | None = None) -> None:
        name, spec = event["job"], event["spec"]
        if name in self.jobs or name in self.purged or not JOB_ID.fullmatch(name):
            return
        holders = [j["id"] for j in self.jobs.values() if j["spec"]["name"] == spec["name"] and not ended(j)]
        error = error or self.refusal(name, spec, holders[0] if holders else None)
        resumes, point = event.get("resumes", ""), None
        replays = event.get("replays") if resumes else None
        if error is None and replays is not None:
            before, point = self.jobs.get(resumes), replays
            if before is None or before["refused"] or not self.may_replay(spec, before, point):
                error = {"code": "SX-JOB-REPLAY"}
        elif error is None and resumes and event.get("resumes_at") is not None:
            before = self.jobs.get(resumes)
            point, code = self.last_checkpoint(before, event["resumes_at"])
            if code is None and not self.may_go_back(spec, before, point):
                code = "SX-JOB-RESUME"
            error = None if code is None else {"code": code}
        elif error is None and resumes and not self.may_resume(spec, self.jobs.get(resumes)):
            error = {"code": "SX-JOB-RESUME"}
        job = {"id": name, "number": self.n, "spec": spec, "stages": [], "tasks": {}, "refused": error is not None}
        job |= {"status": "failed" if error else "planning", "error": error, "purge": False, "give_up_letters": False}
        job |= {"submitted_at": self.at, "ended_at": self.at if error else None, "links": "none", "facts": None}
        job |= {
            "by": event.get("by", ""),
            "stopping": False,
            "closes": False,
            "resumes": "",
            "resumed_by": "",
            "begins": {},
            "topics": {},
        }
        job |= {
            "resumes_at": None,
            "replays": error is None and replays is not None,
            "lends": False,
            "points": [],
            "checkpoints": [],
            "instead_of": "",
            "into": None,
            "read": False,
        }
        job |= {"suspended": False, "revision": 1, "next": None, "switching": False, "gone": False}
        job |= {"retired": [], "places": 0, "goes_on": [], "former": None}
        job |= {"queued": False, "gave": 0, "needs": 0, "left_alone": False}
        job |= {field: spec.get(field, value) for field, value in ENTITLEMENT.items()}
        self.jobs[name] = job | {"waits_for": 0, "waits_since": None}
        if error is None and resumes:
            before = self.jobs[resumes]
            if replays is None:
                self.jobs[name]["instead_of"], before["resumed_by"] = before["resumed_by"], name
            self.jobs[name]["resumes"] = resumes
            self.jobs[name]["begins"] = {task: before["tasks"][task]["positions"] for task in before["stages"]}
            if point is not None:
                before["lends"] = True
                self.jobs[name]["resumes_at"] = point["at"]
                offsets = point.get("offsets", {})
                self.jobs[name]["begins"] = {task: positions_in(before, task, offsets[task]) for task in offsets}
        if error is None:
            tasks = {task["name"]: copy.deepcopy(NEW_TASK) for task in spec["catalog"]}
            self.jobs[name].update(tasks=tasks, stages=stages(spec))
            self.outer.append(("CreateLinks", name))

    def may_resume(self, spec: Json, before: Json | None) -> bool:
        """Only what has ended and left nothing behind, once, and by a job that reads the same topics in the same tasks."""
        if before is None or not ended(before) or before["links"] != "gone" or before["resumed_by"]:
            return False
        windows = any(task.get("window") for task in before["spec"]["catalog"])
        between = before["status"] in ("killed", "failed") and not nothing_between(before["spec"])
        if between or (before["status"] == "stopped" and windows):
            return False
        if set(without_positions(before["spec"])) & set(without_positions(spec)):
            return False
        for task in before["stages"]:
            topics = set(topics_read(before["spec"], task).values())
            if not topics <= set(before["tasks"][task]["positions"]):
                return False
            if topics and (task not in stages(spec) or not topics <= set(topics_read(spec, task).values())):
                return False
        return True

    def last_checkpoint(self, before: Json | None, at: int) -> tuple[Json | None, str | None]:
        """The last one that the job has kept at or before a time; or the code of the error, if the job cannot be gone back to, or
        has none.
        """
        if before is None or before["refused"]:
            return None, "SX-JOB-RESUME"
        successor = self.jobs.get(before["resumed_by"])
        held = before["resumed_by"] == "?" or (successor is not None and not ended(successor))
        if not ended(before) or before["links"] != "gone" or held:
            return None, "SX-JOB-RESUME"
        found = [point for point in before["points"] if point["at"] <= at]
        return (found[-1], None) if found else (None, "SX-CHECKPOINT-UNKNOWN")

    def may_go_back(self, spec: Json, before: Json, point: Json) -> bool:
        """Only by a job that has this checkpoint, too, and that reads the same topics, and nothing else, by the same times. (Here
        no task has a state.)
        """
        minutes = re.match(r"(\d+) min", spec.get("checkpoint_every") or "")
        if minutes is None or point["at"] % (int(minutes[1]) * 60_000_000) or without_positions(before["spec"]):
            return False
        for task in before["stages"]:
            topics = topics_read(before["spec"], task)
            if not set(topics.values()) <= set(point.get("offsets", {}).get(task, {})):
                return False
            if topics and (
                task not in stages(spec) or not set(topics.values()) <= set(topics_read(spec, task).values())
            ):
                return False
            times = [
                task_spec(each, link.split(".")[0]).get("time") for each in (before["spec"], spec) for link in topics
            ]
            if None in times:
                return False
        return True

    def may_replay(self, spec: Json, before: Json, point: Json) -> bool:
        """The same, of a job that may run: the rows stand in the spec. (The checkpoint is the client's word.)"""
        read = {task: dict.fromkeys(topics_read(before["spec"], task).values()) for task in before["stages"]}
        return self.may_go_back(spec, before, {"at": point["at"], "offsets": read})

    def on_rollback(self, event: Json) -> None:
        job, into = self.jobs.get(event["job"]), event["into"]
        if job is None or job["status"] != "running" or job["stopping"] or not job["spec"].get("checkpoint_every"):
            return
        if into in self.jobs or into in self.purged or not JOB_ID.fullmatch(into):
            return
        job["into"] = {"job": into, "resumes": job["id"], "resumes_at": event["to"], "by": event.get("by", "")}
        self.end(job, "killed", None)

    def on_restart(self, event: Json) -> None:
        job, into = self.jobs.get(event["job"]), event["into"]
        if self.rules < 4 or job is None or job["status"] != "running" or job["stopping"] or job["next"] is not None:
            return
        if job["revision"] != event["revision"] or ends(job) or self.refusal(into, event["spec"], None):
            return
        if into not in self.jobs and into not in self.purged and JOB_ID.fullmatch(into):
            job["into"] = {"job": into, "resumes": job["id"], "spec": event["spec"], "by": event.get("by", "")}
            self.on_stop(event)

    def on_stop(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or ended(job) or ends(job):
            return
        job.update(stopping=True, closes=self.rules > 3 and event.get("closes", False))
        if not job["switching"]:
            job.update(next=None, goes_on=[])
        if job["suspended"]:
            self.forgive(job)
            job["suspended"] = False
        if job["facts"] is None:
            return
        stood_still = "next_partitions" in job["spec"]
        job["spec"] = awake(job["spec"])
        for name in job["stages"]:
            if self.mark_stopped(job, name) or (stood_still and reads_input(job["spec"], name)):
                for peer in self.on_task(job, name):
                    self.put(peer, "idle")

    def mark_stopped(self, job: Json, name: str) -> bool:
        """Whether the task reads a topic without an end, which ends now."""
        found = False
        for link in topics_read(job["spec"], name):
            source = link.split(".")[0]
            if endless(task_spec(job["spec"], source)) and link in job["facts"]:
                how = {"stops": True} | ({"closes": True} if job["closes"] else {})
                job["facts"] = job["facts"] | {link: job["facts"][link] | how}
                found = True
        return found

    def take_over(self, job: Json, event: Json) -> None:
        if self.rules > 3 and self.gains_at_its_end(job, job["next"]):  # it was read to its end meanwhile
            job.update(next=None, switching=False, goes_on=[])
        elif not changes_queues(job["spec"], job["next"]):
            self.swap(job)
        elif all(link in event["links"] for link in edges(job["next"])):
            self.know_topics(job, event.get("topics", {}))
            self.rewire(job, event["links"])

    def on_links_created(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and job["switching"] and event.get("revision") == job["revision"] + 1:
            self.take_over(job, event)
        elif job is not None and job["status"] == "planning" and not event.get("revision"):
            facts = dict(event["links"])
            job["topics"] = dict(event.get("topics", {}))
            for name in job["stages"]:
                for link, topic in topics_read(job["spec"], name).items():
                    known = job["begins"].get(name, {}).get(topic) if link in facts else None
                    code = None if known is None else self.unlike(job, topic, len(known), facts[link]["partitions"])
                    if code is not None:
                        job["links"] = "made"
                        self.end(job, "failed", {"code": code})
                        return
                    if known is not None:
                        more = [0] * (facts[link]["partitions"] - len(known))
                        facts[link] = facts[link] | {"start": [*known, *more]}
            if job["resumes_at"] is not None:
                facts |= {link: facts[link] | {"since": job["resumes_at"]} for link in all_read(job) if link in facts}
            job.update(status="running", links="made", facts=facts)
            for name in job["stages"]:
                if job["stopping"]:
                    self.mark_stopped(job, name)
        else:
            self.links_came_late(job)

    def unlike(self, job: Json, topic: str, read: int, partitions: int) -> str | None:
        """Why a topic is not the one that the job has read which this one resumes."""
        lender = self.jobs.get(job["resumes"])
        was = None if lender is None else lender["topics"].get(topic)
        if was is not None and job["topics"].get(topic, was) != was:
            return "SX-INPUT-RECREATED"
        return "SX-RESUME-TOPIC" if read > partitions else None

    def know_topics(self, job: Json, now: Json) -> None:
        """Topics that are read before and after a change keep the id that is known."""
        was, reads = (
            {topic for name in stages(spec) for topic in topics_read(spec, name).values()}
            for spec in (job["spec"], job["next"])
        )
        found = {topic: (job["topics"] if topic in was else now).get(topic) for topic in reads}
        job["topics"] = {topic: each for topic, each in found.items() if each is not None}

    def on_links_failed(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and job["status"] == "planning" and not event.get("revision"):
            job["links"] = "made"  # some of them may be
            self.end(job, "failed", event["error"])
        elif job is not None and job["switching"] and event.get("revision") == job["revision"] + 1:
            job.update(next=None, switching=False, goes_on=[])
        else:
            self.links_came_late(job)

    def on_link_lost(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or job["status"] != "running" or job["suspended"]:
            return
        if job["revision"] == event.get("revision", 1):
            self.fail(job, event["error"])

    def on_links_dropped(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and job["revision"] == event["revision"]:
            job["gone"] = False

    def links_came_late(self, job: Json | None) -> None:
        if job is not None and ended(job) and not job["refused"] and job["links"] != "made":
            job["links"] = "made"
            self.outer.append(("DeleteLinks", job["id"]))

    def on_keep(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or ended(job):
            return
        seconds = event["seconds"]
        hours, minutes = f"{seconds // 3600} h", f"{seconds // 60} min"
        text = hours if seconds % 3600 == 0 else minutes if seconds % 60 == 0 else f"{seconds} s"
        job["spec"] = {name: value for name, value in job["spec"].items() if name != "keep"}
        if seconds:
            job["spec"]["keep"] = text

    def on_kill(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and not ended(job):
            self.end(job, "killed", None)

    def on_checkpointed(self, event: Json) -> None:
        job, point = self.jobs.get(event["job"]), event["point"]
        if self.rules < 4 or job is None or job["status"] != "running" or job["revision"] != event["revision"]:
            return
        if not any(known["at"] >= point["at"] for known in job["points"]):
            job["points"] = [*job["points"][-1:], point]
            job["checkpoints"] = [known["at"] for known in job["points"]]

    def on_links_read(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or not ended(job) or not must_be_read(job) or job["links"] == "gone":
            return
        job["read"] = True
        self.keep_last(job, event)
        job["points"] = event.get("checkpoints", []) or job["points"]
        job["checkpoints"] = [point["at"] for point in job["points"]]
        self.outer.append(("DeleteLinks", job["id"]))

    def keep_last(self, job: Json, event: Json) -> None:
        """Counts and positions that are not known yet."""
        for name, counts in event.get("counts", {}).items():
            if name in job["tasks"] and job["tasks"][name]["counts"] is None:
                job["tasks"][name]["counts"] = counts
        for name, topics in event.get("positions", {}).items():
            if name in job["stages"] and job["facts"] is not None and not job["tasks"][name]["positions"]:
                job["tasks"][name]["positions"] = positions_in(job, name, topics)

    def on_links_deleted(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or not ended(job) or job["refused"] or job["links"] == "gone":
            return
        job["links"] = "gone"
        self.keep_last(job, event)
        for name, letters in event.get("letters", {}).items():
            if name in job["tasks"]:
                job["tasks"][name]["letters"] = letters
        if job["into"] is not None:
            asked, job["into"] = job["into"], None
            spec = awake(asked.get("spec", job["spec"]))
            now = {
                name: job[name]
                for name, unsaid in ENTITLEMENT.items()
                if job[name] != spec.get(name, unsaid) == job["spec"].get(name, unsaid)
            }
            spec = {
                name: value
                for name, value in (spec | now).items()
                if value is not None and (name, value) != ("priority", 0)
            }
            self.on_submit(asked | {"spec": spec})
        if not job["lends"]:
            self.settle(job)

    def settle(self, job: Json) -> None:
        """Its topics are gone, and no job needs its state."""
        if job["purge"] and (job["give_up_letters"] or letters_left(job) == 0):
            self.forget(job)
        job["purge"] = job["left_alone"] = False

    def on_letters_claimed(self, event: Json) -> None:
        job = self.jobs.get(event["job"], {"tasks": {}})
        task = job["tasks"].get(event["task"])
        if task is not None and event["letters"] > task["claimed"]:
            before, task["claimed"] = letters_left(job), event["letters"]
            if job["links"] == "gone" and before and not letters_left(job) and not job["lends"]:
                job["left_alone"] = False

    def on_restored(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or job["refused"]:
            return
        if not ended(job):
            self.end(job, "failed", event["error"])
        job["resumed_by"] = job["resumed_by"] or "?"

    def on_purge(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is not None and ended(job):
            gives_up = event.get("dead_letters", False)
            if job["lends"] or not (job["refused"] or job["links"] == "gone"):
                job["purge"] = True
                job["give_up_letters"] = job["give_up_letters"] or gives_up
                if job["left_alone"]:
                    job["left_alone"] = False
                    self.outer += [("DropLinks", job["id"])] if job["gone"] else []
                    self.outer.append(("ReadLinks" if must_be_read(job) else "DeleteLinks", job["id"]))
            elif gives_up or letters_left(job) == 0:
                self.forget(job)

    def forget(self, job: Json) -> None:
        del self.jobs[job["id"]]
        self.purged = [*self.purged, job["id"]][-REMEMBERED:]

    def end(self, job: Json, status: str, error: Json | None) -> None:
        if job["switching"]:
            job["gone"] = True
            self.outer.append(("DropLinks", job["id"]))
        job.update(
            status=status, error=error, ended_at=self.at, suspended=False, next=None, switching=False, goes_on=[]
        )
        job["former"] = None
        if status != "stopped" and "spec" in (job["into"] or {}):
            job["into"] = None
        lender = self.jobs.get(job["resumes"])
        if job["facts"] is None and lender is not None and lender["resumed_by"] == job["id"]:
            lender["resumed_by"] = job["instead_of"]
        if job["resumes_at"] is not None and lender is not None:
            others = [each for each in self.jobs.values() if each["resumes"] == lender["id"] and not ended(each)]
            lender["lends"] = any(each["resumes_at"] is not None for each in others)
            if lender["links"] == "gone" and not lender["lends"]:
                self.settle(lender)
        for name, task in job["tasks"].items():
            for peer in self.on_task(job, name):
                self.put(peer, "idle")
            task.update(backing_off=False, declined=[], had={})
        job["queued"] = False
        self.outer.append(("ReadLinks" if must_be_read(job) else "DeleteLinks", job["id"]))

    # What peers say of their assignments

    def on_ack(self, event: Json) -> None:
        if self.holds(event, "acking"):
            self.peers[event["peer"]] |= {"state": "active", "since": self.n, "joins": False}
            job, task = self.place(event["peer"])
            task["state"], job["former"] = "running", None
            task["taken_up"] = self.rules > 3

    def on_ack_timed_out(self, event: Json) -> None:
        if not self.holds(event, "acking"):
            return
        peer = event["peer"]
        job, task = self.place(peer)
        name, process = self.peers[peer]["assignment"]["task"], self.peers[peer]["process"]
        proven = task["taken_up"]  # its code can be prepared
        new = not task["backing_off"] and task["failed_at"] != self.at
        if new:
            message = f"peer {peer} did not answer the offer of task {name!r} in time"
            where = {"job": job["id"], "task": name, "peer": peer}
            about = {"message": message, "where": where} | ({"cause": OVERLOADED} if proven else {})
            self.add_failure(task, SILENT | about, harmless=proven)
            if task["failures"] - task["harmless"] > job["spec"].get("failure_limit", 3):
                self.leave(peer, "revoked")
                self.fail(job, task["error"], begun=False)
                return
        self.leave(peer, "revoked")
        if proven and process and (new or task["declined"]):
            task.update(backing_off=True, declined=[*task["declined"], process])

    def on_yielded(self, event: Json) -> None:
        if self.holds(event, "acking", "active", "waiting", "sealing"):
            self.leave(event["peer"], "idle")

    def on_turn_ended(self, event: Json) -> None:
        if self.holds(event, "active") and event["peer"] in self.whose_turns_may_end(self.place(event["peer"])[0]):
            self.peers[event["peer"]]["yields"] = "turn"

    def on_rebalance(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        peers = self.to_be_given().get(event["job"], [])
        if peers and job is not None and job["gave"] == event["gave"]:
            job["gave"] += 1
            for peer in peers[: event["peers"]]:
                self.peers[peer]["yields"] = "share"

    def on_policy(self, event: Json) -> None:
        self.scheduler = event["scheduler"]

    def on_job_scaled(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or ended(job):
            return
        wanted = {field: event[field] for field in ENTITLEMENT if event.get(field) is not None}
        for field in ("percentage", "max_peers"):
            if wanted.get(field) == 0:
                wanted[field] = None
        if may_ask_for(**wanted):
            job.update(wanted)
            if job["suspended"] and event.get("suspended") is False:
                self.forgive(job)
            job["suspended"] = event.get("suspended", job["suspended"])

    def on_change(self, event: Json) -> None:
        job = self.jobs.get(event["job"])
        if job is None or job["status"] != "running" or job["stopping"] or job["next"] is not None:
            return
        if job["spec"] == event["spec"]:
            return
        if job["revision"] != event["revision"] or self.refusal(job["id"], event["spec"], None):
            return
        if job["gone"] or not self.changeable(job["spec"], event["spec"], event.get("drop", []), job["retired"]):
            return
        other = resizes(job["spec"], event["spec"])
        if other and job["spec"].get("next_partitions") != event["spec"].get("partitions", PARTITIONS):
            return
        sizes = [spec.get("partitions", PARTITIONS) for spec in (job["spec"], event["spec"])]
        if self.rules < 4 and (sizes[0] != sizes[1] or "next_partitions" in event["spec"]):
            return
        if not self.gains_at_its_end(job, event["spec"]):
            same = [] if job["suspended"] else event.get("same", [])
            facts = job["facts"] or {}
            job.update(next=event["spec"], goes_on=self.untouched(job["spec"], event["spec"], same, facts, self.rules))

    def gains_at_its_end(self, job: Json, spec: Json) -> bool:
        """Whether a task that is complete would read or write what it has not before."""
        new = [pair for pair in pairs(spec) if pair not in pairs(job["spec"])]
        if resizes(job["spec"], spec):
            new += [link.split(".") for link in queues(job["spec"])]
        known = [task["name"] for task in job["spec"]["catalog"]]
        return any(self.task_note(job, name)["state"] == "complete" for pair in new for name in pair if name in known)

    def swap(self, job: Json) -> None:
        """By the next spec from now on."""
        if job["stopping"]:
            job["next"] = awake(job["next"])
        for field, value in ENTITLEMENT.items():  # what a user has scaled stays, unless the spec says otherwise now
            if job["next"].get(field, value) != job["spec"].get(field, value):
                job[field] = job["next"].get(field, value)
        job["former"] = (job["former"] or job["spec"]) if self.rules > 3 else None
        for name, task in job["tasks"].items():
            task["taken_up"] = task["taken_up"] and name in job["goes_on"]
        job.update(spec=job["next"], next=None, switching=False, goes_on=[], revision=job["revision"] + 1)
        self.forgive(job)

    def rewire(self, job: Json, links: Json) -> None:
        """The same, with other queues: some are new, some go with their tasks, and the others stay as they are."""
        old, new = job["spec"], job["next"]
        numbers = {}
        for name in stages(old):
            numbers |= {link: number for number, link in enumerate(counted(old, name))}
        job["places"] = job["places"] or max([-1, *numbers.values()]) + 1
        facts = {link: job["facts"].get(link, known) for link, known in links.items() if has_link(new, link)}
        for link, known in facts.items():  # what positions counted that are gone
            facts[link] = {field: value for field, value in known.items() if field != "carried"}
            facts[link] |= {field: value for field, value in links[link].items() if field == "carried"}
        for link in queues(new) if resizes(old, new) else []:
            known = {field: value for field, value in facts[link].items() if field not in ("partitions", "clocks")}
            facts[link] = known | {f: v for f, v in links[link].items() if f in ("partitions", "clocks")}
        for name in stages(new):
            for link in counted(new, name) if wires(new)[name] != wires(old).get(name) else []:
                if "place" not in facts[link]:
                    if link not in numbers:
                        numbers[link] = job["places"]
                        job["places"] += 1
                        facts[link] = facts[link] | {"revision": job["revision"] + 1}
                    facts[link] = facts[link] | {"place": numbers[link]}
        names = [task["name"] for task in new["catalog"]]
        removed = [name for name in job["tasks"] if name not in names]
        gone = sorted({*removed, *edges(old)} - {*names, *edges(new)})
        job.update(facts=facts, stages=stages(new), gone=bool(gone), points=[], checkpoints=[])
        job["retired"] += [name for name in gone if name in removed or name in numbers]  # topics of users stay
        job["tasks"] = {name: job["tasks"].get(name) or copy.deepcopy(NEW_TASK) for name in names}
        self.swap(job)
        job["former"] = None
        for name in job["stages"]:
            if job["stopping"]:
                self.mark_stopped(job, name)
        if gone:
            self.outer.append(("DropLinks", job["id"]))
        if all(job["tasks"][name]["state"] == "complete" for name in job["stages"]):
            self.end(job, "stopped" if job["stopping"] else "completed", None)

    def forgive(self, job: Json) -> None:
        job["error"] = None
        for task in job["tasks"].values():
            task.update(backing_off=False, declined=[])
            if task["failures"]:
                task.update(failures=0, harmless=0, error=None, failed_at=None)

    def fail(self, job: Json, error: Json | None, *, begun: bool = True) -> None:
        """What was changed is kept for another change, or goes on by the version before if none could begin with this one; what
        is about to be changed goes on by that.
        """
        if job["next"] is not None:
            return
        if job["revision"] == 1:
            self.end(job, "failed", error)
        elif job["former"] is not None and not begun:
            for name in job["tasks"]:
                for peer in self.on_task(job, name):
                    if self.state(peer) == "acking":
                        self.leave(peer, "idle")
            tried, keep = job["revision"], job["spec"].get("keep")
            job["next"] = {field: value for field, value in job["former"].items() if field != "keep"}
            job["next"] |= {} if keep is None else {"keep": keep}
            self.swap(job)
            assert error is not None
            nobody = "no peer could begin with it, and none has worked by it"
            again = f"mend the new one, and give `sardonyx job change {job['id']} SPEC` again"
            job["former"], job["error"] = (
                None,
                error
                | {
                    "code": "SX-JOB-TAKEN-BACK",
                    "message": f"revision {tried} of job {job['id']} was taken back: {nobody}",
                    "cause": f"{error['code']}: {error['message']}"
                    + (f"; {error['cause']}" if error.get("cause") else ""),
                    "fix": f"the job goes on by the version before; {again}",
                },
            )
        else:
            job.update(suspended=True, error=error)

    def on_exhausted(self, event: Json) -> None:
        if self.holds(event, "active"):
            others = [p for p in self.others(event["peer"]) if not self.peers[p]["joins"]]
            quiet = all(self.state(p) == "waiting" for p in others)
            self.peers[event["peer"]]["state"] = "sealing" if quiet else "waiting"

    def on_completed(self, event: Json) -> None:
        if not self.holds(event, "sealing"):
            return
        peer = event["peer"]
        job, task = self.place(peer)
        if any(self.state(p) in ("acking", "active") and not self.peers[p]["joins"] for p in self.others(peer)):
            self.peers[peer]["state"] = "waiting"
            return
        name = self.peers[peer]["assignment"]["task"]
        task.update(state="complete", backing_off=False, declined=[], counts=event.get("counts", {}))
        if not task["positions"]:
            task["positions"] = positions_in(job, name, event.get("positions", {}))
        others = self.others(peer)
        for each in sorted([peer, *others], key=lambda p: ("acking", "sealing", "waiting").index(self.state(p))):
            self.put(each, "idle")
        task["had"] = {}
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
        if event["error"]["code"] in ("SX-VERSION-PEER", "SX-BLOCK-FORMAT", "SX-POSITION-UNREADABLE"):
            job["needs"] = max(job["needs"], self.peers[event["peer"]]["reads"] + 1)
            self.leave(event["peer"], "idle", failed=True)
            return
        process = self.peers[event["peer"]]["process"]
        declines = event["kind"] == "decline" and self.rules > 3
        same = task["backing_off"] and (declines or not task["declined"])
        if same and not event.get("fatal", False):  # what another one has reported already
            if task["declined"]:
                task["declined"] = [*task["declined"], process] if process else []
            self.leave(event["peer"], "idle", failed=True)
            return
        self.add_failure(task, event["error"], harmless=event.get("passing", False))
        task.update(backing_off=False, declined=[])
        self.leave(event["peer"], "idle", failed=True)
        if event.get("fatal", False):
            self.fail(job, event["error"])
        elif task["failures"] - task["harmless"] > job["spec"].get("failure_limit", 3):
            self.fail(job, task["error"], begun=event["kind"] != "decline")
        else:
            task.update(backing_off=True, declined=[process] if declines and process else [])

    def on_backoff_ended(self, event: Json) -> None:
        task = self.jobs.get(event["job"], {"tasks": {}})["tasks"].get(event["task"])
        if task is not None and task["backing_off"] and task["failures"] == event["failures"]:
            task.update(backing_off=False, declined=[])

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

    def put(self, peer: str, state: str, failed: bool = False) -> None:
        """The peer has no task any more and is in this state."""
        task = self.place(peer)[1] if self.peers[peer]["assignment"] else None
        if task is not None:
            slot = self.peers[peer]["assignment"]["slot"]
            if failed or state == "revoked":
                task["had"].pop(slot, None)
                if self.rules > 3 or self.peers[peer]["process"]:
                    task["failed_in"][slot] = self.peers[peer]["process"]
            elif self.state(peer) != "acking" and self.peers[peer]["process"]:
                task["had"][slot] = self.peers[peer]["process"]
                task["failed_in"].pop(slot, None)
        for where in (self.at_work, self.free, self.aside):
            if peer in where:
                where.remove(peer)
        self.peers[peer] |= {"state": state, "assignment": None, "yields": "", "joins": False}
        if task is not None:
            task["left"] = self.n  # counts only if it was the last one
        if state == "idle":
            self.rests(peer)
        if state == "dead":
            self.dead.append(peer)
            if len(self.dead) > REMEMBERED:
                del self.peers[self.dead.pop(0)]

    def leave(self, peer: str, state: str, failed: bool = False) -> None:
        """As ``put``; and if only waiting ones remain on its task, they become idle."""
        others = self.others(peer)
        self.put(peer, state, failed)
        if all(self.state(p) == "waiting" for p in others):
            for other in others:
                self.put(other, "idle")

    def offer(self, job: Json, name: str, idle: list[str], count: int) -> None:
        """The smallest free slots go to so many of these peers."""
        taken = [self.peers[p]["assignment"]["slot"] for p in self.on_task(job, name)]
        slots = [s for s in range(len(taken) + count) if s not in taken][:count]
        peers = self.slots_to(job, name, idle, slots)
        at_work = any(self.state(p) != "acking" for p in self.on_task(job, name))
        joins = self.rules > 3 and not self.takes_turns(job) and at_work
        for slot in slots:
            peer = peers[slot]
            self.free.remove(peer)
            self.at_work.append(peer)
            assignment = {"id": self.n, "job": job["id"], "task": name, "slot": slot}
            self.peers[peer] |= {"state": "acking", "assignment": assignment, "yields": "", "joins": joins}
        self.served = job["number"]

    def slots_to(self, job: Json, name: str, idle: list[str], slots: list[int]) -> dict[int, str]:
        """Those come back that were there before, if the same number of each kind is taken; the others as they always come."""
        able = self.pick(job, name, idle)
        left = [self.kind(peer) for peer in able[: len(slots)]]
        found: dict[int, str] = {}

        def take(slot: int, peers: list[str]) -> None:
            fit = [peer for peer in peers if peer not in found.values() and self.kind(peer) in left]
            if fit:
                found[slot] = min(fit, key=lambda peer: (left.index(self.kind(peer)), self.free.index(peer)))
                left.remove(self.kind(found[slot]))

        for slot in slots:
            had = job["tasks"][name]["had"].get(slot)
            take(slot, [peer for peer in able if had and self.peers[peer]["process"] == had])
        if any(task["name"] == name and task.get("standby") for task in job["spec"]["catalog"]):
            for home in sorted({self.peers[peer]["process"] for peer in able} - {None}, key=stands(job["id"], name)):
                for slot in slots:
                    if slot not in found and job["tasks"][name]["failed_in"].get(slot) != home:
                        take(slot, [peer for peer in able if self.peers[peer]["process"] == home])
        for slot in slots:
            if slot not in found:
                fit = [peer for peer in able if peer not in found.values() and self.kind(peer) in left]
                take(slot, fit[:1])
        return found

    def kind(self, peer: str) -> tuple[set[str], int]:
        return self.peers[peer]["tags"], self.peers[peer]["reads"]

    # Which task next

    def running(self) -> list[Json]:
        return [job for job in self.jobs.values() if job["status"] == "running"]

    def jobs_in_turn(self) -> list[Json]:
        behind = [job for job in self.running() if job["number"] > self.served]
        return behind + [job for job in self.running() if job not in behind]

    def offer_something(self) -> bool:
        """Jobs below their targets first, up to these; then the others, and then the queued, with what is of no use to those."""
        entitled = self.entitled()
        jobs = self.jobs_in_turn()
        missing = {job["id"]: entitled[job["id"]]["peers"] - len(self.at_work_for(job)) for job in jobs}
        below = [job for job in jobs if missing[job["id"]] > 0]
        kept = self.kept(self.free)
        left = [peer for peer in self.free if peer not in kept]
        others = [job for job in jobs if not job["queued"]], [job for job in jobs if job["queued"]]
        for group, idle, limit in [(below, self.free, missing), (others[0], left, {}), (others[1], left, {})]:
            found = []
            for job in group:
                name = self.next_task(job, idle, limit.get(job["id"], 10**9))
                if name is not None:
                    found.append(((-job["priority"], bool(self.on_task(job, name))), job, name))
            if found:
                rank, job, name = min(found, key=lambda each: each[0])
                count = 1 if rank[1] else self.asks_for(job, name)
                self.offer(job, name, idle, count)
                return True
        return False

    def kept(self, peers: list[str]) -> list[str]:
        """Those of these peers that jobs below their targets could use."""
        entitled = self.entitled()
        below = {job["id"]: entitled[job["id"]]["peers"] - len(self.at_work_for(job)) for job in self.running()}
        jobs = [job for job in self.running() if below[job["id"]] > 0]
        return [peer for peer in peers if any(self.of_use(peer, job, below[job["id"]]) for job in jobs)]

    def of_use(self, peer: str, job: Json, more: int) -> bool:
        """Whether the job could use this peer in a task that it may begin with so many more peers."""
        return any(self.can(peer, job, name) for name in self.openings(job, more))

    def openings(self, job: Json, more: int) -> list[str]:
        """The tasks that a job could be offered now if it may have so many more peers, and as many were idle as there are."""
        more = min(more, self.room(job))
        if self.takes_turns(job) and not self.at_work_for(job) and self.to_begin(job) > more:
            return []
        awake = any(not job["tasks"][name]["backing_off"] for name in self.front(job))
        preempts = more > 0 and not self.takes_turns(job) and self.nobody_at_the_front(job) and awake
        enough = more + (len(self.at_work_for(job)) if preempts else 0)
        return [
            name
            for name in job["stages"]
            if self.may_be_offered(job, name)
            and not job["tasks"][name]["backing_off"]
            and len(self.on_task(job, name)) < most_peers(job, name)
            and (1 if self.on_task(job, name) else self.asks_for(job, name)) <= min(enough, self.supply(job, name))
        ]

    def room(self, job: Json) -> int:
        return max(self.most_of(job) - len(self.at_work_for(job)), 0)

    def most_of(self, job: Json) -> int:
        if job["suspended"]:
            return 0
        if pauses(job):
            return sum(len(self.on_task(job, name)) for name in job["goes_on"])
        return job["max_peers"] or 10**9

    def can(self, peer: str, job: Json, name: str) -> bool:
        """Whether a peer has the tags of the task, and reads its job."""
        return self.peers[peer]["process"] not in job["tasks"][name]["declined"] and self.fits(peer, job, name)

    def fits(self, peer: str, job: Json, name: str) -> bool:
        reads = self.peers[peer]["reads"] >= job["needs"] and not self.peers[peer]["drained"]
        return tags_of(job, name) <= self.peers[peer]["tags"] and reads

    def pick(self, job: Json, name: str, idle: list[str]) -> list[str]:
        """Of these that can run the task those with the fewest tags come first; of these the one that has been idle longest."""
        fit = [peer for peer in idle if self.can(peer, job, name)]
        return sorted(fit, key=lambda peer: (len(self.peers[peer]["tags"]), self.free.index(peer)))

    def at_work_for(self, job: Json) -> list[str]:
        return [peer for peer in self.at_work if self.place(peer)[0] is job]

    def next_task(self, job: Json, idle: list[str], more: int) -> str | None:
        """What the job would be offered with these idle peers, if it may have so many more."""
        names = [name for name in job["stages"] if self.may_be_offered(job, name)]
        more = min(more, self.room(job))
        able = {name: min(more, len(self.pick(job, name, idle))) for name in names}
        if self.takes_turns(job) and not self.at_work_for(job):
            open_ = [name for name in job["stages"] if job["tasks"][name]["state"] != "complete"]
            usable = [peer for peer in idle if any(self.fits(peer, job, name) for name in open_)]
            if self.to_begin(job) > min(more, len(usable)):
                return None
        alone = [name for name in names if not self.on_task(job, name) and self.asks_for(job, name) <= able[name]]
        if alone:
            return alone[0] if not self.takes_turns(job) else min(alone, key=lambda name: job["tasks"][name]["left"])
        shared = [name for name in names if 0 < len(self.on_task(job, name)) < most_peers(job, name) and able[name] > 0]
        return min(shared, key=lambda name: len(self.on_task(job, name))) if shared else None

    def to_begin(self, job: Json) -> int:
        """How many peers an unbounded job without peers must get at once; 0 if no peer can run any of its tasks."""
        names = [
            name for name in job["stages"] if job["tasks"][name]["state"] != "complete" and self.has_peers(job, name)
        ]
        asked = [self.asks_for(job, name) for name in names]
        return min(len(asked), 1) if max(asked, default=1) == 1 else min(sum(asked), job["max_peers"] or 10**9)

    def may_be_offered(self, job: Json, name: str) -> bool:
        task = job["tasks"][name]
        blocked = not self.takes_turns(job) and any(self.deserted(job, before) for before in in_front_of(job, name))
        return task["state"] != "complete" and not rests(task) and not blocked

    # Who is entitled to what

    def live(self, tags: set[str], reads: int) -> int:
        """How many peers that are idle or at work have these tags and read this much."""
        found = [p for p in self.peers.values() if p["state"] not in ("revoked", "dead") and not p["drained"]]
        return sum(tags <= peer["tags"] and peer["reads"] >= reads for peer in found)

    def supply(self, job: Json, name: str) -> int:
        return self.live(tags_of(job, name), job["needs"])

    def has_peers(self, job: Json, name: str) -> bool:
        """Whether a peer can run the task; without any peers the next ones may be of any release, but must have its tags."""
        return bool(self.supply(job, name)) or not (tags_of(job, name) or (job["needs"] and self.live(set(), 0)))

    def demand(self, job: Json) -> Json:
        names = [name for name in job["stages"] if job["tasks"][name]["state"] != "complete"]
        if pauses(job):
            return {"job": job, "floor": 0, "width": 0, "cap": 0, "share": 0, "peers": 0}
        most = [min(most_peers(job, name), self.supply(job, name)) for name in names]
        cap = min(sum(most), job["max_peers"] or 10**9)
        if not self.takes_turns(job):
            floors = [
                self.asks_for(job, name)
                for name in self.front(job)
                if self.asks_for(job, name) <= self.supply(job, name)
            ]
            floor = min(floors, default=0)
        else:
            floor = self.to_begin(job)
        if floor == 0:
            return {"job": job, "floor": 1, "width": 0, "cap": 0, "share": 0, "peers": 0}
        width = max(min(cap, len([limit for limit in most if limit])), min(floor, cap))
        return {"job": job, "floor": floor, "width": width, "cap": cap, "share": 0, "peers": 0}

    def entitled(self) -> dict[str, Json]:
        """Of each running job its floor, its share as a fraction, and as a whole number of peers."""
        demands = [self.demand(job) for job in self.running()]
        live = self.live(set(), 0)
        done: dict[str, Json] = {}
        while True:
            self.divide(demands, live)
            pools: dict[tuple[tuple[str, ...], int], int] = {}
            for each in demands:
                pool = pool_of(each["job"])
                pools[pool] = pools.get(pool, 0) + each["peers"]
            over = {pool: peers - self.live(set(pool[0]), pool[1]) for pool, peers in pools.items()}
            worst = max(over.values(), default=0)
            if worst <= 0:
                return done | {each["job"]["id"]: each for each in demands}
            tight = min(pool for pool in over if over[pool] == worst)
            inside = [each for each in demands if pool_of(each["job"]) == tight]
            self.divide(inside, self.live(set(tight[0]), tight[1]))
            done |= {each["job"]["id"]: each for each in inside}
            live -= sum(each["peers"] for each in inside)
            demands = [each for each in demands if each not in inside]

    def divide(self, demands: list[Json], live: int) -> None:
        for each in demands:
            each.update(share=0, peers=0)
        if self.scheduler == "greedy":
            for each in sorted(demands, key=lambda each: -each["job"]["priority"]):
                got = min(each["cap"], live)
                if got >= each["floor"]:
                    each.update(share=got, peers=got)
                    live -= got
        elif self.scheduler == "percentage":
            self.divide_by_percentage(demands, live)
        else:
            self.divide_fairly(demands, live, by_width=self.scheduler == "turns")

    def divide_by_percentage(self, demands: list[Json], live: int) -> None:
        left, percent = live, Fraction(0)
        served: list[Json] = []
        for each in demands:
            asked = each["job"]["percentage"]
            if asked is not None and round(float(percent + Fraction(asked)), 6) <= 100:
                percent += Fraction(asked)
                served.append(each)
        served.sort(key=lambda each: -each["job"]["percentage"])
        for each in served.copy():
            if each["floor"] <= min(left, each["cap"]):
                left -= each["floor"]
            else:
                served.remove(each)
        for each in served:
            share = live * Fraction(each["job"]["percentage"]) / 100
            each["share"] = min(max(share, each["floor"]), each["cap"])
        floors = sum(each["floor"] for each in served)
        total = math.floor(round(float(sum(each["share"] for each in served)), 6))
        round_up(served, min(total, left + floors), {id(each): each["floor"] for each in served})
        left += floors - sum(each["peers"] for each in served)
        others = [each for each in demands if each["job"]["percentage"] is None]
        self.divide_fairly(others, left, by_width=True)
        left -= sum(each["peers"] for each in others)
        for each in served:
            more = min(left, each["cap"] - each["peers"])
            each.update(share=each["share"] + more, peers=each["peers"] + more)
            left -= more

    def divide_fairly(self, demands: list[Json], live: int, *, by_width: bool) -> None:
        order = sorted(demands, key=lambda each: -each["job"]["priority"])
        served = []
        for each in order:
            if each["floor"] <= min(live, each["cap"]):
                live -= each["floor"]
                served.append(each)
        for priority in sorted({each["job"]["priority"] for each in served}, reverse=True):
            tier = [each for each in served if each["job"]["priority"] == priority]
            low = {id(each): each["floor"] for each in tier}
            high = {id(each): each["cap"] for each in tier}
            got = min(sum(low.values()) + live, sum(high.values()))
            live -= got - sum(low.values())
            width = {id(each): each["width"] for each in tier}
            if by_width and got <= sum(width.values()):
                high = width
            elif by_width:
                low = width
            for each in tier:
                each["share"] = Fraction(low[id(each)])
            raise_level(tier, got, high)
            round_up(tier, got, low)

    # Who gives a task up

    def takes_turns(self, job: Json) -> bool:
        """Whether peers take turns at its tasks: it does not end by itself, tasks of it need each other, or those that go are
        read to their end. In the last case only if each can begin with one peer.
        """
        return not ends(job) or bool(job["spec"].get("cycles")) or (self.rules > 3 and draining(job["spec"]))

    def say_whose_turns_end(self, job: Json) -> None:
        """Peers of an unbounded job with a task without peers leave theirs when they have nothing to read."""
        if job["status"] != "running":
            return
        wanting = self.wanting(job) if self.takes_turns(job) and not job["goes_on"] else []
        for peer in self.at_work_for(job):
            known = self.peers[peer]
            fits = any(self.can(peer, job, name) for name in wanting)
            if not fits and known["yields"] != "share":
                known["yields"] = ""
            if fits and not known["yields"] and known["state"] in ("acking", "active"):
                known["yields"] = "idle"
        leaving = [peer for peer in self.at_work_for(job) if self.peers[peer]["yields"] in ("turn", "share")]
        rows = [[p for p in self.on_task(job, name) if p not in leaving] for name in reversed(job["stages"])]
        count = len(wanting) - len(leaving)
        while count > 0 and any(len(row) > 1 for row in rows):
            peer = max(rows, key=len).pop()
            if self.state(peer) in ("acking", "active") and any(self.can(peer, job, name) for name in wanting):
                self.peers[peer]["yields"] = "turn"
                count -= 1
        for name in reversed(job["stages"]):
            for peer in reversed(self.on_task(job, name)):
                able = self.state(peer) in ("acking", "active") and self.peers[peer]["yields"] not in ("turn", "share")
                if count > 0 and able and self.could_swap(job, name, peer, wanting):
                    self.peers[peer]["yields"] = "turn"
                    count -= 1

    def could_swap(self, job: Json, name: str, peer: str, wanting: list[str]) -> bool:
        """Whether the peer can take a task that was declined, and another stays at its own, or comes to it: one that is idle, and
        whose process declined the former.
        """
        stay = [p for p in self.on_task(job, name) if p != peer and self.peers[p]["yields"] not in ("turn", "share")]
        come = [] if job["tasks"][name]["backing_off"] else [p for p in self.free if self.fits(p, job, name)]
        for wanted in wanting:
            declined = job["tasks"][wanted]["declined"]
            followed = stay or any(self.peers[p]["process"] in declined for p in come)
            if declined and self.can(peer, job, wanted) and followed:
                return True
        return False

    def wanting(self, job: Json) -> list[str]:
        names = [n for n in job["stages"] if self.deserted(job, n) and not rests(job["tasks"][n])]
        return [name for name in names if self.has_peers(job, name)]

    def whose_turns_may_end(self, job: Json) -> list[str]:
        peers = self.at_work_for(job)
        count = len(self.wanting(job)) - len([p for p in peers if self.peers[p]["yields"] in ("turn", "share")])
        able = [p for p in peers if self.state(p) == "active" and self.peers[p]["yields"] == "idle"]
        return sorted(able, key=lambda peer: self.peers[peer]["since"])[: max(count, 0)]

    def to_be_given(self) -> dict[str, list[str]]:
        """By job, the peers that it is to give to others."""
        entitled = self.entitled()
        held = {job["id"]: self.at_work_for(job) for job in self.running()}
        missing = {name: entitled[name]["peers"] - len(held[name]) for name in held}
        below = [job for job in self.running() if missing[job["id"]] > 0 and self.openings(job, missing[job["id"]])]

        def of_use(peer: str) -> bool:
            return any(self.of_use(peer, job, missing[job["id"]]) for job in below)

        leaving = [peer for peer in self.at_work if self.peers[peer]["yields"] == "share"]
        lack = sum(entitled[job["id"]]["peers"] - len(held[job["id"]]) for job in below)
        lack -= len(leaving) + len([peer for peer in self.free if of_use(peer)])
        spare = {
            name: len([peer for peer in peers if peer not in leaving]) - entitled[name]["peers"]
            for name, peers in held.items()
        }
        uneven = any(
            len(held[job["id"]])
            < max(math.floor(round(float(entitled[job["id"]]["share"]), 6)), entitled[job["id"]]["floor"])
            for job in below
        ) or any(
            spare[name] > 0
            and spare[name] + entitled[name]["peers"] > math.ceil(round(float(entitled[name]["share"]), 6))
            for name in spare
        )
        uneven = uneven and bool(below)
        too_many = {
            job["id"]: max(len([p for p in held[job["id"]] if p not in leaving]) - self.most_of(job), 0)
            for job in self.running()
        }
        lack -= sum(too_many.values())
        found: dict[str, list[str]] = {}
        for job in sorted(self.running(), key=lambda job: (-spare[job["id"]], -job["number"])):
            stay = [] if job["suspended"] else job["goes_on"]
            rows = [self.on_task(job, name) for name in reversed(job["stages"]) if name not in stay]
            order = [max(rows, key=len).pop() for _ in range(sum(map(len, rows)))]
            order = [peer for peer in order if self.state(peer) in ("acking", "active") and peer not in leaving]
            if not self.takes_turns(job) and not job["queued"] and not pauses(job):
                at_front = [peer for peer in order if self.peers[peer]["assignment"]["task"] in self.front(job)]
                order = [peer for peer in order if peer not in at_front[-1:]]
            cut = too_many[job["id"]]
            most = min(spare[job["id"]] - cut, lack) if uneven and not job["goes_on"] else 0
            more = [peer for peer in order[cut:] if of_use(peer)][: max(most, 0)]
            lack -= len(more)
            found[job["id"]] = order[:cut] + more
        return found

    def deserted(self, job: Json, name: str) -> bool:
        return job["tasks"][name]["state"] != "complete" and not self.on_task(job, name)

    def asks_for(self, job: Json, name: str) -> int:
        """How many peers a task without peers must get at once."""
        begun = job["tasks"][name]["state"] != "pending"
        if self.takes_turns(job):
            begun = any(job["tasks"][other]["state"] != "pending" for other in job["stages"])
        asked = min(task_spec(job["spec"], name).get("min_peers", 1), most_peers(job, name), job["max_peers"] or 10**9)
        return 1 if begun else asked

    def front(self, job: Json) -> list[str]:
        """Tasks that are not complete while everything before them is."""
        incomplete = [name for name in job["stages"] if job["tasks"][name]["state"] != "complete"]
        return [name for name in incomplete if not set(in_front_of(job, name)) & set(incomplete)]

    def nobody_at_the_front(self, job: Json) -> bool:
        return not any(self.on_task(job, name) for name in self.front(job))

    def preempt_somebody(self) -> bool:
        """For the oldest bounded job that cannot go on, if it has peers further down."""
        for job in sorted(self.running(), key=lambda job: job["number"]):
            if not self.takes_turns(job) and self.nobody_at_the_front(job) and not pauses(job):
                awake = [name for name in self.front(job) if not rests(job["tasks"][name])]
                if any(self.preempt_for(job, name) for name in awake):
                    return True
        return False

    def preempt_for(self, job: Json, name: str) -> bool:
        """Those furthest down, the latest first, until there are enough; if there never are, all stay where they are."""
        before = copy.deepcopy((self.peers, self.free, self.aside, self.at_work))
        lefts = {
            place: {"left": task["left"], "had": task["had"].copy(), "failed_in": task["failed_in"].copy()}
            for place, task in job["tasks"].items()
        }
        needed = self.asks_for(job, name)
        if job["queued"] and not self.at_work_for(job):
            return False
        kept = self.kept(list(self.peers)) if job["queued"] else []

        def idle() -> list[str]:
            return self.pick(job, name, [peer for peer in self.free if peer not in kept])

        def lacks_peers() -> bool:
            return len(idle()) < needed

        def lacks_room() -> bool:
            return len(self.at_work_for(job)) + needed > (job["max_peers"] or 10**9)

        for for_room in (False, True):
            for place in reversed(job["stages"]):
                for peer in reversed(self.on_task(job, place)):
                    if self.state(peer) not in ("acking", "active") or not (
                        lacks_room() if for_room else lacks_peers()
                    ):
                        continue
                    if for_room or (self.can(peer, job, name) and peer not in kept):
                        self.leave(peer, "idle")
        if not lacks_peers() and not lacks_room():
            self.offer(job, name, idle(), needed)
            return True
        self.peers, self.free, self.aside, self.at_work = before
        for place, left in lefts.items():
            job["tasks"][place].update(left)
        return False

    def say_what_is_missing(self, job: Json) -> None:
        missing = 0
        if job["status"] == "running" and not pauses(job):
            awake = [name for name in job["stages"] if not job["tasks"][name]["backing_off"]]
            awake = [name for name in awake if self.has_peers(job, name)]
            available = len([peer for peer in self.free if self.peers[peer]["reads"] >= job["needs"]])
            if self.takes_turns(job):
                wanting = [name for name in awake if self.deserted(job, name)]
                room = (job["max_peers"] or 10**9) - len(self.at_work_for(job))
                missing = max(0, min(sum(self.asks_for(job, name) for name in wanting), max(room, 0)) - available)
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
                notes[f"/peer-state/{name}"] = {
                    field: peer[field] for field in ("state", "assignment", "yields", "drained", "joins")
                }
        for name, job in self.jobs.items():
            job["letters"], job["changing"] = letters_left(job), job["next"] is not None
            notes[f"/job/{name}/status"] = {"name": job["spec"]["name"]} | {field: job[field] for field in STATUS}
            zk[f"/job/{name}/spec"] = job["spec"]
            zk |= {f"/job/{name}": None, f"/job/{name}/task": None}
            if job["facts"] is not None:
                notes[f"/job/{name}/links"] = {"links": job["facts"], "topics": job["topics"]}
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


def rests(task: Json) -> bool:
    """Whether it is offered to no peer. Otherwise it may pause for those that declined it."""
    return task["backing_off"] and not task["declined"]


def pauses(job: Json) -> bool:
    return job["suspended"] or job["next"] is not None


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
    return [b if a == name else a for a, b in pairs(spec) if name in (a, b)]


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


def pairs(spec: Json) -> list[list[str]]:
    """All edges: first those of the workflow, then those that lead back."""
    back = [pair for cycle in spec.get("cycles", []) for pair in cycle["back"]]
    return [list(pair) for pair in [*spec["workflow"], *back]]


def edges(spec: Json) -> list[str]:
    return [f"{a}.{b}" for a, b in pairs(spec)]


def must_be_read(job: Json) -> bool:
    """Whether another job may go on from what its groups have committed, and that is not in the log yet."""
    keeps = job["spec"].get("checkpoint_every") or any(task.get("window") for task in job["spec"]["catalog"])
    return bool(keeps) and job["facts"] is not None and not job["read"]


def all_read(job: Json) -> list[str]:
    """The topics and queues that the tasks of a job read."""
    topics = [link for name in job["stages"] for link in topics_read(job["spec"], name)]
    return topics + [link for name in job["stages"] for link in counted(job["spec"], name)]


def has_link(spec: Json, link: str) -> bool:
    """Whether it is an edge of the job, or a task's own."""
    task, _, other = link.partition(".")
    own = other in ("topic", "splits", "parts", "dead", "state")
    return link in edges(spec) or (own and task in [each["name"] for each in spec["catalog"]])


def wires(spec: Json) -> Json:
    """What each task that runs reads and writes."""
    return {name: [[p for p in pairs(spec) if p[at] == name] for at in (1, 0)] for name in stages(spec)}


def changes_queues(old: Json, new: Json) -> bool:
    """Whether queues come, go, close, or get other partitions."""
    return wires(old) != wires(new) or closes(old, new) or resizes(old, new)


def closes(old: Json, new: Json) -> bool:
    """Whether no row goes any more over an edge that both have, or only rows of other times."""
    for edge in {*edges(old)} & {*edges(new)}:
        times = [spec.get("routes", {}).get(edge, {}).get("bounds") for spec in (old, new)]
        if times[1] is not None and times[0] != times[1]:
            return True
    nothing = [
        {edge for edge, route in spec.get("routes", {}).items() if route.get("where") == NOTHING} for spec in (old, new)
    ]
    return bool((nothing[1] - nothing[0]) & {*edges(old)} & {*edges(new)})


def draining(spec: Json) -> bool:
    """Whether no row goes over some edge any more, or only rows of some times, until a change is complete; no task is a gang."""
    if any(task.get("min_peers", 1) > 1 and not runs_nowhere(spec, task["name"]) for task in spec["catalog"]):
        return False
    if "next_partitions" in spec and any(reads_input(spec, name) for name in stages(spec)):
        return True
    for source, target in spec["workflow"]:  # a change may have left the route of an edge that is gone
        route = spec.get("routes", {}).get(f"{source}.{target}", {})
        bounds = route.get("bounds")
        if route.get("where") == NOTHING or (bounds is not None and ("before" in bounds or not bounds.get("over"))):
            return True
    return False


def queues(spec: Json) -> list[str]:
    """The queues of ours."""
    return [link for name in stages(spec) for link in counted(spec, name)]


def resizes(old: Json, new: Json) -> bool:
    """Whether queues get another number of partitions."""
    return old.get("partitions", PARTITIONS) != new.get("partitions", PARTITIONS) and bool(queues(old))


def awake(spec: Json) -> Json:
    """Its inputs do not stand still."""
    return {field: value for field, value in spec.items() if field != "next_partitions"}


def reads_input(spec: Json, name: str) -> bool:
    """Whether a task that runs is an input, or reads the topic of one in place."""
    before = [a for a, b in spec["workflow"] if b == name and runs_nowhere(spec, a)]
    return task_spec(spec, name)["type"] == "input" or bool(before)


def counted(spec: Json, name: str) -> list[str]:
    """The queues of ours that a task writes."""
    return [f"{a}.{b}" for a, b in pairs(spec) if a == name and not runs_nowhere(spec, b)]


def in_front_of(job: Json, name: str) -> list[str]:
    return [a for a, b in job["spec"]["workflow"] if b == name and a in job["stages"]]


def bounded(spec: Json) -> bool:
    inputs = [task for task in spec["catalog"] if task["type"] == "input"]
    return not any(map(endless, inputs))


def endless(task: Json) -> bool:
    """Whether it is not known beforehand where an input ends: a topic without an end, or up to the marker of another job."""
    return task.get("connector") == "kafka" and task.get("options", {}).get("end") in (None, "marker")


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


def without_positions(spec: Json) -> list[str]:
    """Inputs that a next job reads from the beginning."""
    inputs = [task for task in spec["catalog"] if task["type"] == "input"]
    return [task["name"] for task in inputs if task.get("connector") != "kafka"]


def nothing_between(spec: Json) -> bool:
    """Whether each record goes from a topic through one task to a topic."""
    for task in spec["catalog"]:
        if task["type"] != "function" and task.get("connector") != "kafka":
            return False
    return all(len([place for place in pair if not runs_nowhere(spec, place)]) < 2 for pair in pairs(spec))


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
    incoming = [f"{a}.{b}" for a, b in pairs(job["spec"]) if b == name]
    incoming = incoming or [f"{name}.topic" if task.get("connector") == "kafka" else f"{name}.splits"]
    widest = max((job["facts"][link]["partitions"] for link in incoming if link in job["facts"]), default=1)
    return min(widest, task["max_peers"]) if task.get("max_peers") is not None else widest


def tags_of(job: Json, name: str) -> set[str]:
    return {*job["spec"].get("tags", []), *task_spec(job["spec"], name).get("tags", [])}


def pool_of(job: Json) -> tuple[tuple[str, ...], int]:
    """The tags that all its tasks ask for, and the release."""
    tags = set.intersection(*(tags_of(job, name) for name in job["stages"])) if job["stages"] else set()
    return tuple(sorted(tags)), job["needs"]


# Shares


def may_ask_for(
    priority: int = 0, weight: float = 1.0, percentage: float | None = None, max_peers: int | None = None
) -> bool:
    return (
        -1000 <= priority <= 1000
        and 0.01 <= weight <= 1000
        and (percentage is None or 0 < percentage <= 100)
        and (max_peers is None or max_peers > 0)
    )


def raise_level(tier: list[Json], amount: int, high: dict[int, int]) -> None:
    """From its lowest, lift those that have least for their weight, all at once, until one meets the next, or its own highest."""
    left = amount - sum(each["share"] for each in tier)
    while left > 0:
        growing = [each for each in tier if each["share"] < high[id(each)]]
        if not growing:
            return
        height = {id(each): each["share"] / Fraction(each["job"]["weight"]) for each in growing}
        lowest = min(height.values())
        lifted = [each for each in growing if height[id(each)] == lowest]
        ends_at = [high[id(each)] / Fraction(each["job"]["weight"]) for each in lifted]
        step = min([*ends_at, *(found for found in height.values() if found > lowest)]) - lowest
        step = min(step, left / sum(Fraction(each["job"]["weight"]) for each in lifted))
        for each in lifted:
            each["share"] += step * Fraction(each["job"]["weight"])
        left = amount - sum(each["share"] for each in tier)


def round_up(tier: list[Json], amount: int, low: dict[int, int]) -> None:
    """Whole numbers: each share rounded down, but not below the lowest; what is left to the largest remainders."""
    for each in tier:
        each["peers"] = max(math.floor(round(float(each["share"]), 6)), low[id(each)])
    order = sorted(tier, key=lambda each: round(each["peers"] - round(float(each["share"]), 6), 6))
    missing = amount - sum(each["peers"] for each in tier)
    for each in order[: max(missing, 0)]:
        each["peers"] += 1
    for each in reversed(order):
        while sum(one["peers"] for one in tier) > amount and each["peers"] > low[id(each)]:
            each["peers"] -= 1
