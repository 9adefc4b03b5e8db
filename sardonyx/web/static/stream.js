// The task stream: the batches of all peers of a job over time, a lane for each peer.

import { took } from "./batches.js";
import { h } from "./dom.js";
import { jobLink, route, table, when } from "./parts.js";
import { here, store } from "./store.js";
import { counted, duration, number, UNKNOWN } from "./text.js";

const SPANS = [60, 300, 900]; // seconds; peers' batches of a quarter of an hour are read
const FINE = 1200; // bars of one lane that can be told apart
const LANES = 60;
const GROUPS = [
  ["work", "function and Spark", ["function", "spark"]],
  ["write", "writing and committing", ["write", "publish", "commit"]],
  ["state", "state", ["state", "restore"]],
  ["other", "the rest", []],
];
const groupOf = (step) => (GROUPS.find(([, , steps]) => steps.includes(step)) || GROUPS[3])[0];
const WAYS = [
  ["step", "where the time went"],
  ["task", "task"],
  ["outcome", "what became of it"],
];
const HUES = 6;

const span = () => Number(SPANS.find((each) => String(each) === store.route.query.span) || SPANS[1]);
const way = () => (WAYS.some(([name]) => name === store.route.query.by) ? store.route.query.by : "step");

/** The page of the task stream. */
export function streamPage(data) {
  const { job } = data;
  const known = store.stream;
  return [
    h("div", { class: "head" }, h("h1", null, "Task stream"), h("span", { class: "mut" }, "of ", jobLink(job.id))),
    known === null ? h("p", { class: "mut" }, "…") : stream(data, known),
  ];
}

function stream(data, known) {
  const end = data.job.ended_at || Date.now() / 1000 + known.ahead;
  const begin = end - span();
  const shown = known.items.filter((each) => each.at >= begin && each.at - took(each) <= end);
  const peers = [...new Set(shown.map((each) => each.peer))].sort();
  const tasks = data.graph.nodes.map((node) => node.name);
  const wrong = data.timeline.filter(({ event }) => event.at >= begin && event.at <= end);
  const lanes = new Map(peers.map((peer) => [peer, shown.filter((each) => each.peer === peer)]));
  return [
    h(
      "p",
      { class: "row" },
      choice("over", SPANS.map((each) => [each, `${each / 60} min`]), span(), "span"),
      choice("coloured by", WAYS, way(), "by"),
      h("span", { class: "grow" }),
      h("span", { class: "legend" }, legend(tasks)),
    ),
    shown.length
      ? [
          h(
            "ol",
            { class: "lanes", "aria-label": "A lane for each virtual peer; gaps are waits for rows" },
            [...lanes].slice(0, LANES).map(([peer, batches]) => lane(peer, batches, begin, tasks, wrong)),
          ),
          h("p", { class: "row mut axis" }, when(begin), h("span", { class: "grow" }), when(end)),
          peers.length > LANES ? h("p", { class: "mut" }, `and ${number(peers.length - LANES)} more peers`) : null,
          told(lanes),
        ]
      : h(
          "p",
          { class: "empty" },
          known.problem || `No peer has told about a batch in the last ${duration(span())}; waits are not told.`,
        ),
    shown.length && known.problem ? h("p", { class: "mut" }, known.problem) : null,
    wrong.length
      ? h(
          "section",
          { "aria-labelledby": "wrong" },
          h("h2", { id: "wrong" }, "What went wrong meanwhile"),
          h(
            "ol",
            { class: "events" },
            wrong.slice(0, 50).map(({ event, text }) =>
              h(
                "li",
                { key: event.n },
                h("a", { href: `/jobs/${encodeURIComponent(data.job.id)}?at=${event.n}`, ...route }, number(event.n)),
                " ",
                when(event.at),
                " ",
                h("span", null, text),
              ),
            ),
          ),
        )
      : null,
  ];
}

function choice(label, values, chosen, name) {
  return [
    `${label} `,
    values.map(([value, text]) =>
      h(
        "a",
        {
          class: "button",
          key: value,
          href: here({ [name]: value }),
          "aria-current": String(value) === String(chosen) ? "true" : null,
          ...route,
        },
        text,
      ),
    ),
  ];
}

function legend(tasks) {
  const named =
    way() === "step"
      ? GROUPS.map(([name, text]) => [name, text])
      : way() === "task"
        ? tasks.map((task, index) => [`hue${index % HUES}`, task])
        : [
            ["work", "committed"],
            ["bad undone", "dropped: read again"],
            ["state undone", "delayed"],
          ];
  return [
    ...named,
    ...(way() === "outcome" ? [] : [["undone", "not committed"]]),
    ["wrong", "went wrong"],
  ].map(([name, text]) =>
    h("span", { class: "pair", key: `${name} ${text}` }, h("i", { class: name, "aria-hidden": "true" }), text),
  );
}

/** Seconds of a time in which a peer worked. Batches of one peer do not overlap. */
const worked = (batches) => batches.reduce((sum, each) => sum + took(each), 0);

function lane(peer, batches, begin, tasks, wrong) {
  const part = (seconds) => `${(100 * seconds) / span()}%`;
  const bars = [];
  let drawn = -1;
  for (const each of batches) {
    const from = Math.max(each.at - took(each), begin);
    const place = Math.round(((each.at - begin) / span()) * FINE);
    if (place === drawn && each.outcome === "committed") continue; // it would lie on the bar before
    drawn = place;
    bars.push(
      h("i", {
        key: `${each.at} ${each.task}`,
        class: `batch ${kind(each, tasks)}${each.outcome === "committed" ? "" : " undone"}`,
        title: described(each),
        style: { left: part(from - begin), width: part(each.at - from), ...ground(each) },
      }),
    );
  }
  return h(
    "li",
    { key: peer },
    h("b", null, peer),
    h("span", { class: "mut" }, `${counted(batches.length, "batch", "batches")}, busy ${busy(batches)}`),
    h(
      "span",
      { class: "lane", "aria-hidden": "true" },
      bars,
      wrong.map(({ event, text }) =>
        h("u", { key: event.n, title: `${number(event.n)} ${text}`, style: { left: part(event.at - begin) } }),
      ),
    ),
  );
}

const busy = (batches) => `${Math.min(Math.round((100 * worked(batches)) / span()), 100)} %`;

function kind(batch, tasks) {
  if (way() === "task") return `hue${tasks.indexOf(batch.task) % HUES}`;
  if (way() === "outcome") return { committed: "work", dropped: "bad", delayed: "state" }[batch.outcome] || "other";
  return "";
}

/** The colours of a batch's steps, one after the other. */
function ground(batch) {
  if (way() !== "step") return {};
  const all = took(batch);
  const by = GROUPS.map(([name]) => [
    name,
    Object.entries(batch.seconds || {}).reduce(
      (sum, [step, spent]) => (step !== "wait" && groupOf(step) === name ? sum + spent : sum),
      0,
    ),
  ]);
  let done = 0;
  const stops = by
    .filter(([, spent]) => spent > 0)
    .map(([name, spent]) => {
      const from = done;
      done += (100 * spent) / all;
      return `var(--${name}) ${from.toFixed(1)}% ${done.toFixed(1)}%`;
    });
  return { background: stops.length ? `linear-gradient(90deg, ${stops.join(", ")})` : "var(--other)" };
}

function described(batch) {
  const steps = Object.entries(batch.seconds || {}).map(([step, spent]) => `${step} ${Math.round(spent * 1000)} ms`);
  return `${batch.task}: ${number(batch.rows_in || 0)} rows in, ${number(batch.rows_out || 0)} out, ${batch.outcome}${
    batch.cause ? `: ${batch.cause}` : ""
  }; ${steps.join(", ")}`;
}

/** The same in numbers. */
function told(lanes) {
  return table(
    "What each virtual peer did",
    ["virtual peer", "tasks", ">batches", ">not committed", ">rows in", ">rows out", ">busy", "where the time went"],
    [...lanes].map(([peer, batches]) => {
      const sum = (name) => batches.reduce((all, each) => all + (each[name] || 0), 0);
      const undone = batches.filter((each) => each.outcome !== "committed").length;
      return h(
        "tr",
        { key: peer },
        h("th", { scope: "row" }, peer),
        h("td", null, [...new Set(batches.map((each) => each.task))].sort().join(", ")),
        h("td", { class: "r" }, number(batches.length)),
        h("td", { class: undone ? "r warn" : "r" }, number(undone)),
        h("td", { class: "r" }, number(sum("rows_in"))),
        h("td", { class: "r" }, number(sum("rows_out"))),
        h("td", { class: "r" }, busy(batches)),
        h("td", null, shares(batches)),
      );
    }),
    "",
  );
}

function shares(batches) {
  const all = new Map();
  for (const each of batches)
    for (const [step, spent] of Object.entries(each.seconds || {}))
      if (step !== "wait") all.set(step, (all.get(step) || 0) + spent);
  const whole = [...all.values()].reduce((sum, each) => sum + each, 0);
  return whole
    ? [...all]
        .sort(([, one], [, other]) => other - one)
        .slice(0, 4)
        .map(([step, spent]) => `${step} ${Math.round((100 * spent) / whole)} %`)
        .join(", ")
    : UNKNOWN;
}
