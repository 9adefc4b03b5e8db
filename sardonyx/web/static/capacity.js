// Which job has how many virtual peers, what it is entitled to, and what it waits for.

import { h } from "./dom.js";
import { command, jobLink, nowOf, table, when } from "./parts.js";
import { counted, duration, number, UNKNOWN } from "./text.js";

/** The page of the capacity. */
export function capacityPage(data) {
  const now = nowOf(data);
  const most = Math.max(1, ...data.jobs.map((job) => Math.max(job.has, job.share)));
  return [
    h("h1", null, "Capacity"),
    h(
      "p",
      null,
      `${counted(data.peers, "virtual peer")}, ${number(data.idle)} idle · scheduler ${data.scheduler} `,
      command("sardonyx cluster policy"),
    ),
    data.kinds.length > 1 || (data.kinds[0] && data.kinds[0].tags.length)
      ? h(
          "section",
          { "aria-labelledby": "kinds" },
          h("h2", { id: "kinds" }, "Virtual peers by tags"),
          table(
            "Virtual peers by tags",
            ["tags", ">peers", ">idle"],
            data.kinds.map((kind) =>
              h(
                "tr",
                { key: kind.tags.join(" ") },
                h("th", { scope: "row" }, kind.tags.join(", ") || "none"),
                h("td", { class: "r" }, number(kind.peers)),
                h("td", { class: "r" }, number(kind.idle)),
              ),
            ),
            "",
          ),
        )
      : null,
    h(
      "section",
      { "aria-labelledby": "shares" },
      h("h2", { id: "shares" }, "Jobs that run"),
      table(
        "Jobs that run",
        ["job", "has", ">share", ">least", ">most", ">priority", ">weight", "tags", "waits for", "why", "by"],
        data.jobs.map((job) => line(job, most, now)),
        "No job runs. `sardonyx job submit SPEC` submits one.",
      ),
      h(
        "p",
        { class: "mut" },
        "Share: what the job is entitled to now. Least: without so many it cannot go on. Most: what its tasks can take. ",
        command("sardonyx job scale JOB"),
      ),
    ),
  ];
}

function line(job, most, now) {
  const waits = job.queued ? "queued" : job.waits_for ? counted(job.waits_for, "peer") : UNKNOWN;
  return h(
    "tr",
    { key: job.id },
    h("th", { scope: "row" }, jobLink(job.id)),
    h(
      "td",
      null,
      h(
        "span",
        { class: "share" },
        h(
          "span",
          { class: "bar", "aria-hidden": "true" },
          h("i", { class: "active", style: { width: `${(100 * job.has) / most}%` } }),
          h("u", { style: { left: `${(100 * job.share) / most}%` } }),
        ),
        h("b", null, number(job.has)),
      ),
    ),
    h("td", { class: "r" }, number(job.share)),
    h("td", { class: "r" }, number(job.least)),
    h("td", { class: "r" }, number(job.most)),
    h("td", { class: "r" }, number(job.priority)),
    h("td", { class: "r" }, job.percentage === null ? String(job.weight) : `${job.percentage} %`),
    h("td", null, job.tags.join(", ") || UNKNOWN),
    h("td", { class: job.waits_for || job.queued ? "warn" : null }, waits),
    h(
      "td",
      { class: "wrap" },
      job.why || UNKNOWN,
      job.since ? h("span", { class: "mut" }, " · since ", when(job.since), ` (${duration(now - job.since)})`) : null,
    ),
    h("td", null, job.by || UNKNOWN),
  );
}
