// The pages: the deployment, its jobs, and one job.

import { h } from "./dom.js";
import { jobActions } from "./actions.js";
import { batches } from "./batches.js";
import { graph, taskPanel } from "./graph.js";
import { changed, entriesList } from "./log.js";
import { command, further, jobLink, nowOf, route, table, when } from "./parts.js";
import { partitions } from "./partitions.js";
import { lettersOf, linkOf } from "./rows.js";
import { here, link, store } from "./store.js";
import { clock, counted, duration, number, UNKNOWN } from "./text.js";

const ERRORS = 20;

// The deployment

/** The page of the deployment. */
export function clusterPage(data) {
  const now = nowOf(data);
  const standing = data.standing;
  const peers = Object.entries(data.peers);
  const total = peers.reduce((sum, [, count]) => sum + count, 0);
  return [
    h("h1", null, `Deployment ${standing.deployment}`),
    h(
      "section",
      { "aria-labelledby": "attention" },
      h("h2", { id: "attention" }, "Needs attention"),
      data.attention.length
        ? h(
            "ul",
            { class: "attention" },
            data.attention.map((each) =>
              h(
                "li",
                { class: each.level, key: `${each.code} ${each.job} ${each.task} ${each.since}` },
                h("span", { class: "icon", "aria-hidden": "true" }, each.level === "bad" ? "✕" : "▲"),
                h(
                  "span",
                  { class: "grow" },
                  h("span", { class: "away" }, each.level === "bad" ? "Stands still: " : "Look at this: "),
                  each.job ? [jobLink(each.job, { task: each.task }), ": "] : null,
                  each.text,
                  each.since
                    ? h("span", { class: "mut" }, ` · since `, when(each.since), ` (${duration(now - each.since)})`)
                    : null,
                ),
                command(each.help),
              ),
            ),
          )
        : h("p", { class: "fine" }, "✓ Nothing does."),
    ),
    standing.source === "live" && data.live
      ? h(
          "section",
          { "aria-labelledby": "leads" },
          h("h2", { id: "leads" }, "Coordinator"),
          standing.leader
            ? h(
                "p",
                null,
                h("b", null, standing.leader),
                ` leads (epoch ${number(standing.epoch)}) · ${counted(standing.standbys, "standby", "standbys")}`,
                ` · last entry ${number(standing.last)}, `,
                when(standing.at),
                ` · ${counted(standing.requests, "request")} not processed`,
                standing.oldest_request ? `, the oldest for ${duration(now - standing.oldest_request)}` : null,
              )
            : h("p", { class: "empty" }, "No coordinator leads. Start one: ", command("sardonyx coordinator")),
        )
      : null,
    h(
      "section",
      { "aria-labelledby": "jobs" },
      h("h2", { id: "jobs" }, "Jobs ", h("a", { class: "more", href: link("/jobs"), ...route }, "all jobs")),
      jobsTable(data.jobs, now),
      endedLine(data.ended),
    ),
    h(
      "section",
      { "aria-labelledby": "peers" },
      h("h2", { id: "peers" }, `Virtual peers `, h("span", { class: "mut" }, number(total))),
      total
        ? h(
            "ul",
            { class: "bars" },
            peers.map(([state, count]) =>
              h(
                "li",
                { key: state },
                h("span", null, state),
                h(
                  "span",
                  { class: "bar", "aria-hidden": "true" },
                  h("i", { class: state, style: { width: `${(100 * count) / total}%` } }),
                ),
                h("b", null, number(count)),
              ),
            ),
          )
        : h("p", { class: "empty" }, "No virtual peer lives. A peer daemon brings some: ", command("sardonyx peer")),
    ),
    h(
      "section",
      { "aria-labelledby": "daemons" },
      h("h2", { id: "daemons" }, "Peer daemons"),
      table(
        "Peer daemons",
        ["machine", ">process", "daemon", "version", "tags", ">peers", ">at work", "jobs"],
        data.daemons.map((each) =>
          h(
            "tr",
            { key: `${each.host} ${each.pid} ${each.daemon}` },
            h("th", { scope: "row" }, each.host || UNKNOWN),
            h("td", { class: "r" }, each.pid || UNKNOWN),
            h("td", null, each.daemon || UNKNOWN),
            h("td", null, each.version || UNKNOWN),
            h("td", null, each.tags.join(", ") || UNKNOWN),
            h("td", { class: "r" }, number(each.peers)),
            h("td", { class: "r" }, number(each.at_work)),
            h(
              "td",
              null,
              each.jobs.map((job, index) => [index ? ", " : "", jobLink(job)]),
            ),
          ),
        ),
        data.live ? "No peer daemon runs. Start one with `sardonyx peer`." : "No peer daemon ran at that moment.",
      ),
    ),
  ];
}

function endedLine(ended) {
  const words = Object.entries(ended).map(([status, count]) => `${number(count)} ${status}`);
  return words.length ? h("p", { class: "mut" }, `Ended jobs that are kept: ${words.join(", ")}.`) : null;
}

function jobsTable(jobs, now) {
  return table(
    "Jobs",
    ["job", "status", "tasks", ">peers", "submitted", "took", "by", "what keeps it from going on"],
    jobs.map((job) =>
      h(
        "tr",
        { key: job.id },
        h("th", { scope: "row" }, jobLink(job.id)),
        h("td", null, pill(job)),
        h("td", null, `${job.complete} of ${job.tasks} complete`),
        h("td", { class: "r" }, job.ended_at === null ? number(job.peers) : UNKNOWN),
        h("td", null, when(job.submitted_at)),
        h("td", null, duration((job.ended_at || now) - job.submitted_at)),
        h("td", null, job.by || UNKNOWN),
        h("td", { class: "wrap" }, job.why || UNKNOWN),
      ),
    ),
    "No job was submitted yet. `sardonyx job submit SPEC` submits one, `sardonyx run SPEC` runs one and waits.",
  );
}

const LEVELS = {
  running: "ok",
  completed: "rest",
  stopped: "rest",
  planning: "info",
  submitted: "info",
  failed: "bad",
  killed: "bad",
};

function pill(job) {
  const word =
    job.stopping && job.ended_at === null
      ? "stopping"
      : job.suspended && job.ended_at === null
        ? "suspended"
        : job.queued
          ? "queued"
          : job.status;
  return h("span", { class: `pill ${LEVELS[word] || "warn"}` }, word);
}

/** The list of all jobs. */
export function jobsPage(data) {
  return [
    h("h1", null, "Jobs"),
    jobsTable(data.items, nowOf(data)),
    further(data, "more"),
  ];
}

// One job

/** The page of a job. */
export function jobPage(data) {
  const { job, graph: view } = data;
  const now = nowOf(data);
  const holding = data.reasons.filter((reason) => reason.holds);
  return [
    h(
      "div",
      { class: "head" },
      h("h1", null, job.id),
      pill(job),
      h(
        "span",
        { class: "mut" },
        `${view.bounded ? "bounded" : "unbounded"} · ${counted(job.tasks.length, "task")} · submitted `,
        when(job.submitted_at),
        ` (${duration((job.ended_at || now) - job.submitted_at)}${job.ended_at ? " to its end" : ""})`,
        job.by ? ` by ${job.by}` : "",
        job.resumes ? [job.replays ? " · replays " : " · resumes ", jobLink(job.resumes)] : "",
        job.resumed_by ? [" · resumed by ", jobLink(job.resumed_by)] : "",
      ),
      jobActions(data),
    ),
    banner(data, holding),
    h(
      "section",
      { "aria-labelledby": "graph", id: "main-graph" },
      h(
        "div",
        { class: "head" },
        h("h2", { id: "graph" }, "Graph"),
        h(
          "button",
          { type: "button", "data-table": "" },
          store.table ? "show as a graph" : "show as a table",
        ),
        data.live
          ? h("a", { class: "button", href: `/jobs/${encodeURIComponent(job.id)}/stream`, ...route }, "task stream")
          : null,
        h("span", { class: "mut" }, counting(data)),
      ),
      graph(view, store.route.task, data.live, store.table),
    ),
    store.route.task ? taskPanel(view, store.route.task, data.lags, data.live, taskMore(data, store.route.task)) : null,
    changed(),
    h(
      "div",
      { class: "two" },
      h(
        "section",
        { "aria-labelledby": "why" },
        h("h2", { id: "why" }, "Why does it not run?"),
        h(
          "ul",
          { class: "attention" },
          data.reasons.map((reason) =>
            h(
              "li",
              { class: reason.holds ? "bad" : "rest", key: `${reason.code} ${reason.task}` },
              h(
                "span",
                { class: "icon", "aria-hidden": "true" },
                reason.holds ? "✕" : reason.code === "runs" ? "●" : "·",
              ),
              h(
                "span",
                { class: "grow" },
                reason.text,
                reason.since
                  ? h("span", { class: "mut" }, " · since ", when(reason.since), ` (${duration(now - reason.since)})`)
                  : null,
              ),
              command(reason.help),
            ),
          ),
        ),
      ),
      h(
        "section",
        { "aria-labelledby": "happened" },
        h("h2", { id: "happened" }, "What went wrong"),
        data.timeline.length
          ? h(
              "ol",
              { class: "events" },
              data.timeline
                .slice(0, 50)
                .map(({ event, text }) =>
                  h(
                    "li",
                    { key: event.n },
                    h(
                      "a",
                      { href: here({ at: event.n }), ...route, title: "show the job as it was then" },
                      number(event.n),
                    ),
                    " ",
                    when(event.at),
                    " ",
                    h("span", null, text),
                  ),
                ),
            )
          : h("p", { class: "fine" }, data.live ? "✓ Nothing so far." : "✓ Nothing until then."),
        data.timeline.length > 50
          ? h("p", { class: "mut" }, `and ${number(data.timeline.length - 50)} before that`)
          : null,
      ),
    ),
    h(
      "section",
      { "aria-labelledby": "entries" },
      h(
        "h2",
        { id: "entries" },
        "Log ",
        h("a", { class: "more", href: `/log?job=${encodeURIComponent(job.id)}`, ...route }, "all entries about it"),
      ),
      entriesList(data.entries, true),
    ),
  ];
}

/** The errors of a task, and where its rows can be looked at. */
function taskMore(data, task) {
  const { job, graph: view } = data;
  const errors = data.timeline.filter(({ event }) => event.task === task && event.error);
  const node = view.nodes.find((each) => each.name === task);
  const links = view.edges.filter((edge) => edge.link && (edge.source === task || edge.target === task));
  const looks = data.live && job.ended_at === null && data.standing.rows;
  return [
    looks && links.length
      ? h(
          "p",
          { class: "row" },
          "Look into ",
          links.map((edge) => h("a", { href: linkOf(job.id, edge.link), ...route, key: edge.link }, edge.link)),
          node && node.dead ? h("a", { href: lettersOf(job.id, task), ...route }, "its dead letters") : null,
        )
      : null,
    data.live && job.ended_at === null ? partitions(store.partitions, task) : null,
    data.live && job.ended_at === null ? batches(store.batches, task) : null,
    h("h3", null, `Errors ${errors.length ? `(${number(errors.length)})` : ""}`),
    errors.length
      ? h(
          "ol",
          { class: "events" },
          errors.slice(0, ERRORS).map(({ event, text }) => taskError(event, text)),
        )
      : h("p", { class: "fine" }, "✓ No peer has reported one."),
    errors.length > ERRORS ? h("p", { class: "mut" }, `and ${number(errors.length - ERRORS)} before that`) : null,
  ];
}

function taskError(event, text) {
  const { error } = event;
  return h(
    "li",
    { key: event.n },
    h("a", { href: here({ at: event.n }), ...route, title: "show the job as it was then" }, number(event.n)),
    " ",
    when(event.at),
    " ",
    text,
    error.cause ? h("div", { class: "mut" }, `cause: ${error.cause}`) : null,
    error.fix ? h("div", { class: "mut" }, `fix: ${error.fix}`) : null,
    error.traceback
      ? h("details", null, h("summary", null, "traceback"), h("pre", { tabindex: "0" }, error.traceback))
      : null,
  );
}

function counting(data) {
  if (!data.live) return "peers and states as they were; rows, rates and what was unread were not recorded";
  if (data.job.ended_at) return "the job has ended: rows are final";
  if (data.standing.source === "file") return "a file holds no rates and nothing that was unread";
  if (data.problem) return `rows and what is unread are not known: ${data.problem}`;
  if (data.sampled_at === null) return "asking Kafka for rows and what is unread …";
  return `rows and what is unread as of ${clock(data.sampled_at)}, asked every ${duration(data.every)}`;
}

function banner(data, holding) {
  const slowest = data.graph.slowest;
  const error = data.job.error;
  if (error) {
    return h(
      "div",
      { class: "why bad" },
      h("b", null, `${error.code}: `),
      error.message,
      error.cause ? h("div", null, `cause: ${error.cause}`) : null,
      error.fix ? h("div", null, `fix: ${error.fix}`) : null,
      error.traceback
        ? h("details", null, h("summary", null, "traceback"), h("pre", { tabindex: "0" }, error.traceback))
        : null,
    );
  }
  if (!holding.length && !slowest) return null;
  return h(
    "div",
    { class: `why ${holding.length ? "bad" : "warn"}` },
    holding.length
      ? h("div", null, h("b", null, "Does not go on: "), holding[0].text, " ", h("a", { href: "#why" }, "explain"))
      : null,
    slowest
      ? h(
          "div",
          null,
          h("b", null, "Slowest way: "),
          slowest.tasks.map((task, index) => [index ? " → " : "", task === slowest.worst ? h("b", null, task) : task]),
          `. The oldest unread rows on it have waited ${duration(slowest.seconds)} together, most of it before ${slowest.worst}`,
          slowest.waits_for ? `, which pauses until ${slowest.waits_for} has read` : "",
          ".",
        )
      : null,
  );
}
