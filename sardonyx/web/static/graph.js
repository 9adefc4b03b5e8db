// The graph of a job: tasks are links in a list, in their order; edges are drawn behind them; a table shows the same.

import { h } from "./dom.js";
import { coded } from "./parts.js";
import { here } from "./store.js";
import { counted, duration, number, rate, share, short, unread, UNKNOWN } from "./text.js";

const ICONS = {
  done: "✓",
  stopped: "■",
  suspended: "‖",
  "backs off": "◌",
  "no peer": "✕",
  stuck: "✕",
  bottleneck: "▲",
  behind: "▲",
  "catches up": "◐",
  held: "‖",
  waits: "○",
  bound: "⇉",
  "keeps up": "●",
  works: "●",
};
const LABEL = 104;

/** The graph, or the table if that is wanted. */
export function graph(view, chosen, live, asTable) {
  if (!view.nodes.length)
    return h(
      "p",
      { class: "empty" },
      coded("This job has no tasks that could run: it was refused. `sardonyx job show` says why."),
    );
  return asTable ? tasksTable(view, live) : drawing(view, chosen, live);
}

function drawing(view, chosen, live) {
  const size = { width: `${view.width}px`, height: `${view.height}px` };
  return h(
    "div",
    {
      class: "scroll",
      key: "drawing",
      tabindex: "0",
      role: "region",
      "aria-label": "Graph of the job; scrolls sideways",
    },
    h(
      "div",
      { class: "graph", style: size },
      h("svg", { "aria-hidden": "true", width: view.width, height: view.height }, view.edges.map(edgeInk)),
      h(
        "ul",
        { class: "nodes", "aria-label": "Tasks, from the inputs to the outputs" },
        view.nodes.map((node) => box(node, view, chosen, live)),
      ),
      h(
        "ul",
        { class: "lags", "aria-label": "Links: how long the oldest unread row waits, and how many are unread" },
        view.edges.map((edge) => label(edge, live)),
      ),
    ),
  );
}

function edgeInk(edge) {
  const key = `${edge.source}.${edge.target}`;
  const at = edge.points;
  let way = `M${at[0][0]} ${at[0][1]}`;
  for (let index = 1; index < at.length; index++) {
    const [x, y] = at[index - 1];
    const [to, down] = at[index];
    const last = index === at.length - 1;
    const end = last ? to - 9 : to;
    const middle = (x + end) / 2;
    way += index % 2 ? `C${middle} ${y} ${middle} ${down} ${end} ${down}` : `L${to} ${down}`;
  }
  const [x, y] = at[at.length - 1];
  const kind = `${edge.verdict.level}${edge.slowest ? " slow" : ""}${edge.link === null ? " fused" : ""}`;
  return h(
    "g",
    { class: kind, key },
    h("path", { class: "way", d: way }),
    h("path", { class: "head", d: `M${x - 10} ${y - 6}L${x} ${y}L${x - 10} ${y + 6}Z` }),
  );
}

function label(edge, live) {
  const key = `${edge.source}.${edge.target}`;
  const [[x, y], [to, down]] = edge.points;
  const place = { left: `${(x + to) / 2 - LABEL / 2}px`, top: `${(y + down) / 2 - 20}px` };
  if (edge.link === null)
    return h("li", { class: "lag rest", style: place, key }, h("b", null, "fused"), h("span", null, "no queue"));
  if (edge.kind === "output")
    return h("li", { class: "lag rest", style: place, key }, h("b", null, "written"), h("span", null, "to the topic"));
  if (edge.verdict.word === "done") return h("li", { class: "lag rest", style: place, key }, h("b", null, "all read"));
  const why =
    edge.records === null ? unknownBecause(live) : `${unread(edge.records, edge.precision)} rows unread${growth(edge)}`;
  return h(
    "li",
    {
      class: `lag ${edge.verdict.level}`,
      style: place,
      key: `${edge.source}.${edge.target}`,
      title: `${edge.link}: ${why}`,
    },
    h("b", null, waits(edge)),
    h("span", null, unread(edge.records, edge.precision)),
    h("span", { class: "away" }, ` rows unread on ${edge.link}`),
  );
}

const busyUnknown = (live) => (live ? `${UNKNOWN} (its peers tell it after each batch, with metrics.telemetry)` : UNKNOWN);

/** How long the oldest unread row has waited. */
const waits = (lag) => (lag.records === 0 ? "0 s" : duration(lag.seconds));

function growth(edge) {
  if (edge.growth === null || Math.abs(edge.growth) < 0.5) return "";
  if (edge.growth > 0) return `, grows by ${short(edge.growth)} rows/s`;
  return `, shrinks by ${short(-edge.growth)} rows/s: read in ${duration(edge.drains_in)}`;
}

function unknownBecause(live) {
  return live
    ? "not known: Kafka has not answered yet, or the link does not exist now"
    : "not recorded for that moment";
}

function box(node, view, chosen, live) {
  const read = view.edges.filter((edge) => edge.target === node.name && edge.link !== null && edge.kind !== "output");
  const here_ = chosen === node.name;
  const extra = [];
  if (node.failures) extra.push(counted(node.failures, "failure"));
  if (node.dead) extra.push(`${number(node.dead)} dead`);
  if (node.skipped) extra.push(`${number(node.skipped)} skipped`);
  if (node.late) extra.push(`${number(node.late)} late`);
  const peers = node.bound
    ? node.fused
      ? "runs inside the task before it"
      : "no peers of its own"
    : node.limit === null
      ? counted(node.peers, "peer")
      : `${node.peers} of ${counted(node.limit, "peer")}`;
  const work = node.busy === null ? "" : ` · busy ${share(node.busy)}`;
  const flow =
    node.rates.rows_in === null && node.rates.rows_out === null
      ? ""
      : `${rate(node.rates.rows_in)} in · ${rate(node.rates.rows_out)} out`;
  return h(
    "li",
    { style: { left: `${node.x}px`, top: `${node.y}px` }, key: node.name },
    h(
      "a",
      {
        class: `node ${node.verdict.level}`,
        id: `task-${node.name}`,
        href: here({ task: here_ ? "" : node.name }),
        "data-route": "",
        "data-task": node.name,
        "aria-current": here_ ? "true" : null,
        title: node.verdict.text,
      },
      h(
        "span",
        { class: "name" },
        h(
          "span",
          { class: "clip" },
          h("span", { "aria-hidden": "true", class: "icon" }, ICONS[node.verdict.word]),
          ` ${node.name}`,
        ),
        h("em", null, node.type),
      ),
      h(
        "span",
        { class: "word" },
        node.verdict.word,
        extra.length ? h("span", { class: "extra" }, ` · ${extra.join(" · ")}`) : null,
      ),
      h("span", { class: "line" }, `${peers}${work}`),
      h("span", { class: "line" }, flow || `rows ${number(node.rows_in)} in · ${number(node.rows_out)} out`),
      read.length
        ? h(
            "span",
            { class: "line narrow" },
            read
              .map(
                (edge) => `from ${edge.source}: waits ${waits(edge)}, ${unread(edge.records, edge.precision)} unread`,
              )
              .join("; "),
          )
        : null,
    ),
  );
}

function tasksTable(view, live) {
  const cells = (node) => {
    const read = view.edges.filter((edge) => edge.target === node.name && edge.link !== null && edge.kind !== "output");
    return h(
      "tr",
      { key: node.name },
      h("th", { scope: "row" }, h("a", { href: here({ task: node.name }), "data-route": "" }, node.name)),
      h("td", null, node.type),
      h(
        "td",
        { class: node.verdict.level },
        h("span", { "aria-hidden": "true" }, `${ICONS[node.verdict.word]} `),
        node.verdict.word,
      ),
      h("td", { class: "r" }, node.bound ? UNKNOWN : `${node.peers} of ${node.limit === null ? UNKNOWN : node.limit}`),
      h("td", { class: "r" }, share(node.busy)),
      h("td", { class: "r" }, number(node.rows_in)),
      h("td", { class: "r" }, number(node.rows_out)),
      h("td", { class: "r" }, rate(node.rates.rows_in)),
      h("td", { class: "r" }, rate(node.rates.rows_out)),
      h(
        "td",
        null,
        read.map((edge) => `${edge.source}: ${unread(edge.records, edge.precision)}, ${waits(edge)}`).join("; ") ||
          UNKNOWN,
      ),
      h("td", { class: "r" }, number(node.failures)),
    );
  };
  return h(
    "div",
    { class: "tw", key: "table", tabindex: "0", role: "region", "aria-label": "Tasks; scrolls sideways" },
    h(
      "table",
      null,
      h("caption", null, live ? "Tasks now" : "Tasks at that moment; what was not recorded is a dash"),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          [
            "task",
            "type",
            "verdict",
            ">peers",
            ">busy",
            ">rows in",
            ">rows out",
            ">in",
            ">out",
            "unread, oldest waits",
            ">failures",
          ].map((text) => h("th", { scope: "col", class: text[0] === ">" ? "r" : null }, text.replace(">", ""))),
        ),
      ),
      h("tbody", null, view.nodes.map(cells)),
    ),
  );
}

/** All that is known of one task, and `more` below it. */
export function taskPanel(view, name, lags, live, more = null) {
  const node = view.nodes.find((each) => each.name === name);
  if (!node)
    return h(
      "section",
      { class: "panel" },
      h("h2", null, `Task ${name}`),
      h("p", { class: "empty" }, "The job has no task of this name."),
    );
  const read = (lags || []).filter((lag) => lag.reader === name);
  const facts = [
    ["verdict", h("span", null, h("b", { class: node.verdict.level }, node.verdict.word), `: ${node.verdict.text}`)],
    ["runs", node.what || UNKNOWN],
    ["state", node.state],
    [
      "virtual peers",
      node.bound
        ? "none of its own"
        : [
            `${node.peers} of at most ${number(node.limit)}`,
            node.peer_ids.length ? `: ${node.peer_ids.join(", ")}` : "",
          ],
    ],
    ["busy", node.busy === null ? busyUnknown(live && !node.bound) : `${share(node.busy)} of the time of its peers`],
    ["rows in", `${number(node.rows_in)} (${rate(node.rates.rows_in)})`],
    ["rows out", `${number(node.rows_out)} (${rate(node.rates.rows_out)})`],
    ["dead letters", number(node.dead)],
    ["skipped", number(node.skipped)],
    ["late", number(node.late)],
    ["failures", number(node.failures)],
    ...read.map((lag) => [
      `unread on ${lag.link}`,
      `${unread(lag.records, lag.precision)} ${lag.unit}; the oldest waits ${waits(lag)}${growth(
        view.edges.find((edge) => edge.link === lag.link) || { growth: null },
      )}`,
    ]),
  ];
  return h(
    "section",
    { class: "panel", key: "panel", "aria-label": `Task ${name}` },
    h("h2", null, `Task ${name} `, h("a", { href: here({ task: "" }), "data-route": "", class: "button" }, "close")),
    h(
      "dl",
      null,
      facts.map(([what, value]) => [h("dt", null, what), h("dd", null, value)]),
    ),
    live && lags === null
      ? h("p", { class: "mut" }, "Rows and what is unread come from Kafka; it has not answered yet.")
      : null,
    live ? null : h("p", { class: "mut" }, "A dash means that it was not recorded for that moment."),
    more,
  );
}
