"""Why a job does not run: histories that bring about each reason, and how the reasons are told."""

from __future__ import annotations

COPY = "copy is submitted: read -> write; read is a topic"
ENDLESS = "copy is submitted: orders -> write; orders never ends"
MADE = "the links of copy are made"
LOOP = "copy is submitted: read -> fetch -> write; fetch feeds back to fetch; read is a topic"

CASES: list[tuple[str, list[str], list[str]]] = [
    ("a job that does not exist", [], ["unknown: no job of this id was ever submitted, or it was purged long ago"]),
    (
        "purged",
        [COPY, "copy is killed", "the links of copy are gone", "copy is purged"],
        ["purged: it had ended, and was purged"],
    ),
    (
        "refused",
        ["5 s pass", "copy is submitted: read -> write; write names no topic"],
        ["refused since 5: it was refused: SX-JOB-STRUCTURE: write names no topic (SX-JOB-STRUCTURE)"],
    ),
    (
        "failed, and its topics are there",
        [COPY, MADE, "P1 is born", "3 s pass", "P1 fails for good: ZeroDivisionError"],
        [
            "failed since 3: it failed: SX-TEST: ZeroDivisionError (SX-TEST)",
            "topics-deleting since 3: its topics and groups are being deleted",
        ],
    ),
    (
        "killed, and to be forgotten",
        [COPY, MADE, "4 s pass", "copy is killed", "copy is purged"],
        [
            "killed since 4: a user ended it",
            "topics-deleting since 4: its topics and groups are being deleted; after that the job is deleted",
        ],
    ),
    (
        "killed, and what could not be decided about its topics is set aside",
        [COPY, MADE, "4 s pass", "copy is killed", "it is set aside that the links of copy are gone, and copy fails"],
        [
            "killed since 4: a user ended it",
            "topics-left since 4: what could not be decided of its end was set aside: its topics stay until a user purges it",
        ],
    ),
    (
        "completed",
        [
            COPY,
            MADE,
            "P1 is born",
            "P1 acks",
            "P1 is exhausted",
            "9 s pass",
            "P1 completes",
            "the links of copy are gone",
        ],
        ["completed since 9: all its tasks are complete"],
    ),
    (
        "waits for the job before it",
        ["copy is submitted: orders -> write; orders follows a job", MADE, "P1 is born", "2 s pass", "P1 acks"],
        [
            (
                "awaits-end-marker at write: task write reads topic orders up to its end markers; the job that writes them "
                "does so when it completes, and never if it fails or is killed"
            ),
            "runs since 2: 1 virtual peer is at work [P1 active copy/write 2]",
        ],
    ),
    (
        "stopped by a user",
        [
            ENDLESS,
            MADE,
            "P1 is born",
            "P1 acks",
            "copy is stopped",
            "P1 acks",
            "P1 is exhausted",
            "9 s pass",
            "P1 completes",
            "the links of copy are gone",
        ],
        ["stopped since 9: a user stopped it, and all that its inputs had read went through it"],
    ),
    (
        "planning",
        ["2 s pass", COPY, "7 s pass"],
        ["topics-creating since 2: its topics are being created, or looked up in Kafka"],
    ),
    (
        "no peer has ever lived",
        ["3 s pass", COPY, "1 s pass", MADE],
        ["no-live-peers since 3 needed 1 free 0: there is no virtual peer at all; is a peer daemon running?"],
    ),
    (
        "all are revoked or dead",
        [COPY, MADE, "P1, P2 are born", "6 s pass", "P2 dies", "2 s pass", "P1 is evicted"],
        [
            "no-live-peers since 6 needed 1 free 0: there is no virtual peer at all; is a peer daemon running? [P1 revoked 8]"
        ],
    ),
    (
        "a user has drained them",
        ["P1 is born in a", "P2 is born", "host a is drained", "P2 is drained", "2 s pass", COPY, MADE],
        [
            (
                "peers-drained since 2 needed 1 free 0: a user has drained all 2 virtual peers (host a): "
                "they get no task until they are taken in again [P1 idle 0, P2 idle 0]"
            ),
        ],
    ),
    (
        "a user has drained the only one, which is at its batch",
        ["copy is submitted: read -> write; read never ends", MADE, "P1 is born in a", "P1 acks", "host a is drained"],
        [
            (
                "peers-drained free 0: a user has drained the only virtual peer (host a): "
                "it gets no task until it is taken in again [P1 active copy/write 0]"
            ),
            "runs since 0: 1 virtual peer is at work [P1 active copy/write 0]",
        ],
    ),
    (
        "the others have them",
        [
            "other is submitted: read -> write; 2 partitions",
            "the links of other are made",
            "P1, P2, P3 are born",
            "P1 acks",
            "2 s pass",
            "P2 acks",
            "copy is submitted: read -> write; read is a topic; write begins with 3",
            "P3 is evicted",
            "P2 is evicted",
            "P4 is born",
            "P4 is evicted",
            "1 s pass",
            "other2 is submitted: read -> write",
            "the links of copy are made",
        ],
        [
            (
                "peers-missing since 3 needed 3 free 0: it waits for 3 more virtual peers: task write asks for 3, 0 "
                "are free [P1 active other/read 0, P3 revoked 2, P2 revoked 2, P4 revoked 2]"
            ),
            "queued-behind needed 3: it is queued: all virtual peers that there are (1) have been promised to other",
        ],
    ),
    (
        "an unbounded job misses peers for several tasks",
        [
            "copy is submitted: read -> clean -> enrich -> write; read never ends",
            MADE,
            "P1, P2, P3 are born",
            "P1 acks",
            "P2 dies",
            "P3 dies",
        ],
        [
            (
                "takes-turns since 0 needed 2 free 0: its 1 virtual peer takes turns: 2 tasks (enrich, write) have "
                "no peer now; 2 more virtual peers would do"
            ),
            "runs since 0: 1 virtual peer is at work [P1 active copy/clean 0]",
        ],
    ),
    (
        "a job without end has them all",
        [
            "live is submitted: read -> write; read never ends; write takes at most 2",
            "the links of live are made",
            "P1 is born",
            "P1 acks",
            "1 s pass",
            COPY,
            MADE,
        ],
        [
            (
                "peers-missing since 1 needed 1 free 0: it waits for 1 more virtual peer: task write asks for 1, 0 "
                "are free [P1 active live/write 0]"
            ),
            "queued-behind needed 1: it is queued: all virtual peers that there are (1) have been promised to live",
            "starved-by-unbounded-jobs since 0: all peers with a task work for jobs that never end: live (1 virtual peer)",
        ],
    ),
    (
        "a task rests, and another works on it",
        [COPY, MADE, "P1, P2 are born", "P2 acks", "5 s pass", "P1 declines: no module"],
        [
            (
                "task-backing-off at write since 5 failure 1 limit 3: "
                "task write backs off after failure 1 (the job survives 3), first "
                "SX-TEST: no module; 1 virtual peer on it goes on (SX-TEST) [P2 active copy/write 0]"
            ),
            "runs since 0: 1 virtual peer is at work [P2 active copy/write 0]",
        ],
    ),
    (
        "a process declines, and another gets the task",
        ["P1 is born in east", "P2 is born in west", COPY, MADE, "P2 acks", "P1 declines: no module"],
        [
            (
                "task-backing-off at write since 0 failure 1 limit 3: "
                "task write backs off after failure 1 (the job survives 3), first "
                "SX-TEST: no module; 1 virtual peer on it goes on; process 1 on east declined it or did not answer, and "
                "peers of other processes may take it at once (SX-TEST) [P2 active copy/write 0]"
            ),
            "runs since 0: 1 virtual peer is at work [P2 active copy/write 0]",
        ],
    ),
    (
        "a task rests, and several wait for it",
        ["copy is submitted: read -> clean -> enrich -> write", MADE, "P1 is born", "P1 declines: no module"],
        [
            (
                "task-backing-off at read since 0 failure 1 limit 3: "
                "task read backs off after failure 1 (the job survives 3), first "
                "SX-TEST: no module (SX-TEST)"
            ),
            "task-blocked at clean held by read: task clean is not offered while no peer works on read",
            (
                "task-blocked at enrich held by read: task enrich is not offered while no peer works on clean; "
                "the nearest task that holds it up is read (read -> clean -> enrich)"
            ),
            (
                "task-blocked at write held by read: task write is not offered while no peer works on enrich; "
                "the nearest task that holds it up is read (read -> clean -> enrich -> write)"
            ),
        ],
    ),
    (
        "a task waits for two others, one of them nearer",
        [
            "copy is submitted: old -> a -> b -> write, new -> c -> write; old begins with 2; new begins with 2",
            MADE,
            "P1 is born",
        ],
        [
            "peers-missing since 0 needed 2 free 1: it waits for 1 more virtual peer: task old asks for 2, 1 is free",
            "task-blocked at a held by old: task a is not offered while no peer works on old",
            (
                "task-blocked at b held by old: task b is not offered while no peer works on a; "
                "the nearest task that holds it up is old (old -> a -> b)"
            ),
            "task-blocked at c held by new: task c is not offered while no peer works on new",
            (
                "task-blocked at write held by new: task write is not offered while no peer works on b, c; "
                "the nearest task that holds it up is new (new -> c -> write)"
            ),
        ],
    ),
    (
        "a task rests, and the one before it has no peers either",
        [
            "copy is submitted: read -> clean -> enrich -> write; read begins with 2",
            MADE,
            "P1, P2, P3 are born",
            "P1 acks",
            "P2 acks",
            "P3 declines: no module",
            "P1 dies",
            "P2 dies",
            "P3 dies",
        ],
        [
            "no-live-peers since 0 needed 1 free 0: there is no virtual peer at all; is a peer daemon running?",
            (
                "task-backing-off at clean since 0 failure 1 limit 3: "
                "task clean backs off after failure 1 (the job survives 3), first "
                "SX-TEST: no module (SX-TEST)"
            ),
            "task-blocked at enrich held by clean: task enrich is not offered while no peer works on clean",
            (
                "task-blocked at write held by clean: task write is not offered while no peer works on enrich; "
                "the nearest task that holds it up is clean (clean -> enrich -> write)"
            ),
        ],
    ),
    (
        "one peer works the tasks off",
        ["copy is submitted: read -> clean -> write; 1 partition", MADE, "P1 is born", "P1 acks"],
        [
            "task-short at clean needed 1 free 0: task clean is offered when 1 virtual peer for it is free, and 0 are",
            "task-blocked at write held by clean: task write is not offered while no peer works on clean",
            "runs since 0: 1 virtual peer is at work [P1 active copy/read 0]",
        ],
    ),
    (
        "a later task begins with more than are free",
        [
            "copy is submitted: read -> write; write begins with 3; 1 partition; 4 partitions",
            MADE,
            "P1, P2 are born",
            "P1 acks",
            "P2 acks",
        ],
        [
            "task-short at write needed 3 free 0: task write is offered when 3 virtual peers for it are free, and 0 are",
            "runs since 0: 2 virtual peers are at work [P1 active copy/read 0, P2 active copy/read 0]",
        ],
    ),
    (
        "limits",
        [
            "copy is submitted: a -> d, b -> d, c -> d; a is sequential; b takes at most 1; 1 partition; d begins with 1",
            MADE,
            "P1, P2, P3, P4, P5, P6 are born",
            "P1 acks",
        ],
        [
            (
                "task-full at a free 2 limit 1: task a takes no more than 1 virtual peer: it is sequential; "
                "2 virtual peers are idle [P1 active copy/a 0]"
            ),
            (
                "task-full at b free 2 limit 1: task b takes no more than 1 virtual peer: its max_peers is 1; "
                "2 virtual peers are idle [P2 acking copy/b 0]"
            ),
            (
                "task-full at c free 2 limit 1: task c takes no more than 1 virtual peer: its widest link has 1 partition; "
                "2 virtual peers are idle [P3 acking copy/c 0]"
            ),
            (
                "task-full at d free 2 limit 1: task d takes no more than 1 virtual peer: its widest link has 1 partition; "
                "2 virtual peers are idle [P4 acking copy/d 0]"
            ),
            "unanswered at b since 0: task b was offered to 1 virtual peer, and no peer has answered yet [P2 acking copy/b 0]",
            "unanswered at c since 0: task c was offered to 1 virtual peer, and no peer has answered yet [P3 acking copy/c 0]",
            "unanswered at d since 0: task d was offered to 1 virtual peer, and no peer has answered yet [P4 acking copy/d 0]",
            (
                "runs since 0: 4 virtual peers are at work "
                "[P2 acking copy/b 0, P3 acking copy/c 0, P4 acking copy/d 0, P1 active copy/a 0]"
            ),
        ],
    ),
    (
        "a slot goes to another process than had it last",
        [
            "copy is submitted: orders -> write; orders never ends",
            MADE,
            "P1 is born in east",
            "P1 acks",
            "P1 dies",
            "P2 is born in west",
        ],
        [
            (
                "unanswered at write since 0: task write was offered to 1 virtual peer, and no peer has answered yet; "
                "the coordinator moved slot 0 from process 1 on east to process 1 on west, because no peer of the first "
                "process was idle [P2 acking copy/write 0]"
            ),
            "runs since 0: 1 virtual peer is at work [P2 acking copy/write 0]",
        ],
    ),
    (
        "it stops",
        [ENDLESS, MADE, "P1 is born", "P1 acks", "copy is stopped", "P1 acks"],
        [
            "stopping: a user stopped it: it ends when all that its inputs have read has gone through it",
            "runs since 0: 1 virtual peer is at work [P1 active copy/write 0]",
        ],
    ),
    (
        "only its loop keeps it from its end",
        [LOOP, MADE, "P1, P2 are born", "P1 acks", "P2 acks"],
        [
            (
                "loop-goes-on: loop loop (fetch) goes on: it reads topic read itself; it ends when no row goes round any more "
                "(no max_hops)"
            ),
            "runs since 0: 2 virtual peers are at work [P1 active copy/fetch 0, P2 active copy/write 0]",
        ],
    ),
    (
        "it is to give back",
        [
            ENDLESS,
            MADE,
            "P1, P2, P3, P4 are born",
            "the offers are acked",
            "other is submitted: read -> write; read never ends",
            "the links of other are made",
            "1 s pass",
        ],
        [
            (
                "over-share since 1: it has 4 virtual peers and a share of 2: 2 of them go to other jobs after the "
                "batch in hand"
            ),
            (
                "runs since 0: 4 virtual peers are at work [P1 active copy/write 0, P2 active copy/write 0, P3 "
                "active copy/write 0, P4 active copy/write 0]"
            ),
        ],
    ),
    (
        "it is to get more",
        [
            "other is submitted: read -> write; read never ends",
            "the links of other are made",
            "P1, P2, P3, P4 are born",
            "the offers are acked",
            ENDLESS,
            MADE,
            "1 s pass",
            "P4 dies",
        ],
        [
            (
                "peers-missing since 0 needed 1 free 0: it waits for 1 more virtual peer: task write asks for 1, 0 "
                "are free [P1 active other/write 0, P2 active other/write 0, P3 active other/write 0]"
            ),
            (
                "below-share needed 1: it has 0 virtual peers and a share of 1: other jobs give it some when they "
                "have committed their batches"
            ),
        ],
    ),
    (
        "it has all that it may have",
        [
            "copy is submitted: read -> write; read never ends; at most 1 peers",
            MADE,
            "P1, P2 are born",
            "P1 acks",
        ],
        [
            "job-full limit 1: it has as many peers as its max_peers allows: 1",
            "runs since 0: 1 virtual peer is at work [P1 active copy/write 0]",
        ],
    ),
    (
        "suspended while a peer is at work",
        [COPY, MADE, "P1 is born", "P1 acks", "copy is suspended"],
        [
            (
                "suspended: a user suspended it; 1 virtual peer leaves after the batch in hand; "
                "`sardonyx job resume copy` lets it go on where it was [P1 active copy/write 0]"
            ),
        ],
    ),
    (
        "changed while a peer is at work",
        [COPY, MADE, "P1 is born", "P1 acks", "copy is changed"],
        ["changing: it is being changed; 1 virtual peer leaves after the batch in hand [P1 active copy/write 0]"],
    ),
    (
        "changed when its peers have left",
        [
            *(COPY, MADE, "P1 is born", "P1 acks", "copy is changed", "1 s pass"),
            "the peers that are to give their tasks up do",
        ],
        ["changing: it is being changed: Kafka is being prepared for it"],
    ),
    (
        "changed at a time",
        [
            *(
                "copy is submitted: read -> work -> write, work -> old; read is a topic",
                MADE,
                "4 peers are born",
                "the offers are acked",
            ),
            (
                "copy becomes, with the same code: read -> work -> write, work -> old, work -> new; read is a topic; "
                "rows before 5 go from work to old; rows from 5 go from work to new"
            ),
            *("1 s pass", "the peers that are to give their tasks up do", "the new links of copy are made"),
            "the offers are acked",
        ],
        [
            (
                "changing-at: it is being changed at 1970-01-01T00:00:00.000005Z: old gets the rows before it, new gets the rows "
                "from it on; that is complete when its clock has passed it"
            ),
            (
                "runs since 1: 4 virtual peers are at work [P001 active copy/new 1, P002 active copy/write 1, "
                "P003 active copy/old 1, P004 active copy/work 1]"
            ),
        ],
    ),
    (
        "inputs that stand still",
        [
            *("copy is submitted: read -> work -> write; read is a topic; 2 partitions", MADE, "2 peers are born"),
            "the offers are acked",
            (
                "copy becomes, with the same code: read -> work -> write; read is a topic; 2 partitions; "
                "its inputs stand still for 4 partitions"
            ),
            *("1 s pass", "the peers that are to give their tasks up do", "the new links of copy are made"),
            "the offers are acked",
        ],
        [
            (
                "resizing: nothing is read of its inputs until its queues are read to their end and get 4 partitions; if that "
                "is no longer wanted, `sardonyx job change copy SPEC` lets it go on"
            ),
            "runs since 0: 2 virtual peers are at work [P002 active copy/write 0, P001 active copy/work 1]",
        ],
    ),
    (
        "taken back",
        [
            *("copy is submitted: read -> write; read is a topic; outlives 1 failure", MADE, "P1 is born", "P1 acks"),
            *(
                "copy is changed",
                "1 s pass",
                "the peers that are to give their tasks up do",
                "the new links of copy are made",
                "P1 declines: no module",
                "P1 acks",
            ),
        ],
        [
            (
                "taken-back: revision 2 of job copy was taken back: no peer could begin with it, and none has worked by it: "
                "SX-TEST: no module; the job goes on by the version before; mend the new one, and give `sardonyx job change copy "
                "SPEC` again (SX-JOB-TAKEN-BACK)"
            ),
            "runs since 1: 1 virtual peer is at work [P1 active copy/write 1]",
        ],
    ),
    (
        "suspended after a change was taken back",
        [
            *("copy is submitted: read -> write; read is a topic; outlives 1 failure", MADE, "P1 is born", "P1 acks"),
            *("copy is changed", "1 s pass", "the peers that are to give their tasks up do"),
            *("the new links of copy are made", "P1 declines: no module", "copy is suspended"),
        ],
        [
            (
                "suspended: a user suspended it; 1 virtual peer leaves after the batch in hand; `sardonyx job resume copy` lets "
                "it go on where it was (SX-JOB-TAKEN-BACK) [P1 acking copy/write 1]"
            ),
        ],
    ),
    (
        "failed after a change",
        [
            *(COPY, MADE, "P1 is born", "P1 acks", "copy is changed", "1 s pass"),
            *("the peers that are to give their tasks up do", "the new links of copy are made"),
            *("P1 acks", "P1 fails for good: ZeroDivisionError"),
        ],
        [
            (
                "suspended: it failed after a change: SX-TEST: ZeroDivisionError; change it again with `sardonyx job change copy "
                "SPEC`, and then `sardonyx job resume copy` lets it go on where it was (SX-TEST)"
            ),
        ],
    ),
    (
        "suspended",
        [
            COPY,
            MADE,
            "P1 is born",
            "P1 acks",
            "copy is suspended",
            "1 s pass",
            "the peers that are to give their tasks up do",
        ],
        ["suspended: a user suspended it; `sardonyx job resume copy` lets it go on where it was"],
    ),
    (
        "no peer has the tag",
        ["copy is submitted: read -> write; read never ends; write asks for gpu", MADE, "P1 is born"],
        [
            "no-tag at write: task write needs a virtual peer with the tag gpu, and there is none",
            (
                "queued-behind needed 1: it is queued: with its tags, its release and its max_peers it cannot go on with "
                "the virtual peers that there are"
            ),
        ],
    ),
    (
        "the only peer with the tag is drained, and others are there",
        [
            "P1 is born with gpu",
            "P1 is drained",
            "P2 is born",
            "copy is submitted: read -> write; read never ends; write asks for gpu",
            MADE,
        ],
        [
            (
                "peers-drained at write: task write needs a virtual peer with the tag gpu, and a user has drained the only one "
                "[P1 idle 0]"
            ),
            (
                "queued-behind needed 1: it is queued: with its tags, its release and its max_peers it cannot go on with "
                "the virtual peers that there are"
            ),
            "peers-drained free 1: a user has drained 1 virtual peer: it gets no task until it is taken in again [P1 idle 0]",
        ],
    ),
    (
        "the only peer with the tag has another task",
        [
            "copy is submitted: read -> see -> write; read never ends; see asks for gpu; write asks for gpu",
            MADE,
            "P1 is born with gpu",
            "P2 is born",
            "P1 acks",
        ],
        [
            "tag-busy at write: task write needs a virtual peer with the tag gpu, and the only one has another task",
            "runs since 0: 1 virtual peer is at work [P1 active copy/see 0]",
        ],
    ),
    (
        "nothing is missing",
        [COPY, MADE, "P1 is born", "P1 acks"],
        ["runs since 0: it runs: 1 virtual peer is at work [P1 active copy/write 0]"],
    ),
]
