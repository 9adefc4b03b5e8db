// The log: a list of entries, and one entry with what it changed.

import { h } from "./dom.js";
import { written } from "./exact.js";
import { here, store } from "./store.js";
import { number } from "./text.js";
import { coded, further, route, when } from "./parts.js";

/** One entry and what it changed. */
function changes(entry) {
  return h(
    "section",
    { class: "panel", "aria-labelledby": "changed", key: "changes" },
    h(
      "h2",
      { id: "changed" },
      `Entry ${number(entry.n)}: ${entry.kind} `,
      h("span", { class: "mut" }, when(entry.event.at, true)),
    ),
    h("p", null, entry.summary),
    entry.lines.length
      ? h(
          "ul",
          { class: "changes" },
          entry.lines.map((line) => h("li", { key: line }, line)),
        )
      : h("p", { class: "mut" }, "It changed nothing."),
    entry.request ? h("p", { class: "mut" }, `request ${entry.request}`) : null,
  );
}

const counts = (peers) =>
  Object.entries(peers)
    .map(([state, count]) => `${number(count)} ${state}`)
    .join(", ") || "none";

/** What differs between two moments. */
export function differences(diff) {
  const told = diff.changes.filter((each) => each.text);
  return h(
    "section",
    { class: "panel", "aria-labelledby": "differs", key: "changes" },
    h("h2", { id: "differs" }, `From entry ${number(diff.from)} to entry ${number(diff.to)} `),
    h("p", null, `Virtual peers: ${counts(diff.peers_before)} → ${counts(diff.peers_after)}`),
    told.length
      ? h(
          "ul",
          { class: "changes" },
          told.map((each) => h("li", { key: each.path }, each.text)),
        )
      : h("p", { class: "mut" }, "Nothing differs."),
    diff.left_out ? h("p", { class: "mut" }, `${number(diff.left_out)} more are not listed.`) : null,
  );
}

/** What the entry changed; or what differs from the one that it is compared with. */
export function changed() {
  if (store.from !== null) return store.diff ? differences(store.diff) : null;
  return store.route.at !== null && store.entry ? changes(store.entry) : null;
}

/** Entries, one a line. In a job's page each leads to the job as it was then. */
export function entriesList(items, forJob) {
  if (!items.length)
    return h(
      "p",
      { class: "empty" },
      forJob
        ? "No entry about it is kept."
        : coded("No entry fits. The log holds what coordinators have decided: `sardonyx coordinator` starts one."),
    );
  return h(
    "ol",
    { class: "entries" },
    items.map((line) =>
      h(
        "li",
        { key: line.n, class: line.mark || null },
        h("a", { class: "n", href: forJob ? here({ at: line.n }) : `/log/${line.n}`, ...route }, number(line.n)),
        when(line.at, true),
        h("span", { class: "kind" }, line.kind),
        h(
          "span",
          { class: "grow" },
          line.summary,
          line.leader ? h("b", null, ` · coordinator ${line.leader} had taken over (its first entry in the log)`) : null,
        ),
      ),
    ),
  );
}

const FIELDS = [
  ["job", "job (id)"],
  ["peer", "peer (id)"],
  ["kind", "kind"],
];

/** The list of entries, or one entry. */
export function logPage() {
  const query = store.route.query;
  if (store.route.n !== null) {
    const entry = store.entry;
    if (!entry) return [h("h1", null, `Entry ${number(store.route.n)}`)];
    const job = entry.job || entry.event.job;
    return [
      h("h1", null, `Entry ${number(entry.n)}`),
      changes(entry),
      h(
        "p",
        { class: "row" },
        h("a", { class: "button", href: `/log/${entry.n - 1}`, ...route }, "◂ before"),
        h("a", { class: "button", href: `/log/${entry.n + 1}`, ...route }, "after ▸"),
        h("a", { class: "button", href: `/?at=${entry.n}`, ...route }, "the deployment then"),
        job
          ? h("a", { class: "button", href: `/jobs/${encodeURIComponent(job)}?at=${entry.n}`, ...route }, `${job} then`)
          : null,
      ),
      h("details", null, h("summary", null, "as JSON"), h("pre", { tabindex: "0" }, written(entry, 2))),
    ];
  }
  const page = store.log;
  return [
    h("h1", null, "Log"),
    h(
      "form",
      { class: "row", role: "search", "aria-label": "Entries", "data-filter": "/log" },
      FIELDS.map(([name, text]) =>
        h(
          "label",
          { key: name },
          `${text} `,
          h("input", { type: "search", name, value: query[name] || "", id: `filter-${name}`, autocomplete: "off" }),
        ),
      ),
      h(
        "label",
        null,
        "only ",
        h(
          "select",
          { name: "mark", id: "filter-mark" },
          [
            ["", "all entries"],
            ["incident", "what went wrong"],
            ["user", "what users asked for"],
            ["leader", "new leaders"],
          ].map(([value, text]) => h("option", { value, selected: (query.mark || "") === value }, text)),
        ),
      ),
      h("button", { type: "submit" }, "show"),
    ),
    page
      ? [
          h(
            "p",
            { class: "mut" },
            `The log holds entries ${number(page.first)} to ${number(page.last)}; the newest come first.`,
          ),
          entriesList(page.items, false),
          further(page, "older"),
        ]
      : null,
  ];
}
