// Rows: a look into a link with the position of its reader between them, and dead letters.

import { redoAction } from "./actions.js";
import { h } from "./dom.js";
import { written } from "./exact.js";
import { coded, command, further, jobLink, route, table, when } from "./parts.js";
import { here, link, store } from "./store.js";
import { counted, number, UNKNOWN } from "./text.js";

const COLUMNS = 12;
const CUT = 160;

/** The address of a link's page. */
export const linkOf = (job, name) => `/jobs/${encodeURIComponent(job)}/links/${encodeURIComponent(name)}`;

/** The address of the page of a task's dead letters. */
export const lettersOf = (job, task) => `/dead-letters/${encodeURIComponent(job)}/${encodeURIComponent(task)}`;

function cell(value) {
  if (value === undefined) return UNKNOWN;
  const text = typeof value === "string" ? value : written(value);
  return text.length > CUT ? h("span", { title: text }, `${text.slice(0, CUT)}…`) : text;
}

/** The columns of records that are objects with few keys; null: they are shown whole. */
function columnsOf(records) {
  const names = new Set();
  for (const record of records) {
    if (record === null || typeof record !== "object" || Array.isArray(record)) return null;
    for (const name of Object.keys(record)) names.add(name);
  }
  return names.size && names.size <= COLUMNS ? [...names] : null;
}

const cells = (record, columns) =>
  columns
    ? columns.map((name) => h("td", { key: `c ${name}` }, cell(record[name])))
    : h("td", { class: "wrap", key: "record" }, h("code", null, cell(record)));

// A link

/** Rows of a link. */
export function linkPage(data) {
  const { query } = store.route;
  const records = data.partitions.flatMap((each) => each.rows.map((row) => row.record));
  const columns = columnsOf(records);
  const keyed = data.partitions.some((each) => each.rows.some((row) => row.key !== null));
  const heads = [
    ">partition",
    ">offset",
    "written",
    ...(data.kind === "internal" || data.kind === "splits" ? ["by"] : []),
    ...(keyed ? ["key"] : []),
    ...(columns || ["record"]),
  ];
  return [
    h("h1", null, `Link ${data.link}`),
    h(
      "p",
      null,
      jobLink(data.job),
      ` · ${data.kind}, written by `,
      jobLinkOf(data.job, data.writer),
      data.reader ? [", read by ", jobLinkOf(data.job, data.reader)] : ", read by no task",
      ` · topic ${data.topic}`,
    ),
    h(
      "form",
      { class: "row", "aria-label": "Which rows", "data-filter": linkOf(data.job, data.link) },
      h(
        "label",
        null,
        "show ",
        h(
          "select",
          { name: "begin", id: "begin" },
          [
            ["position", "rows around the reader's position"],
            ["end", "the newest rows"],
          ].map(([value, text]) => h("option", { value, selected: (query.begin || "position") === value }, text)),
        ),
      ),
      h(
        "label",
        null,
        "of each partition ",
        h("input", { type: "number", name: "limit", id: "limit", min: 1, max: 200, value: query.limit || "20" }),
      ),
      h(
        "label",
        null,
        "only partition ",
        h("input", { type: "number", name: "partition", id: "partition", min: 0, value: query.partition || "" }),
      ),
      h("button", { type: "submit" }, "show"),
      h("button", { type: "button", "data-again": "" }, store.busy ? "reading …" : "look again"),
    ),
    table(
      `Rows of ${data.link}`,
      heads,
      data.partitions.flatMap((each) => partitionRows(data, each, columns, keyed, heads.length)),
      "The link has no partitions.",
    ),
    data.more
      ? h("p", { class: "mut" }, `${counted(data.more, "partition")} more: name one above to look into it.`)
      : null,
    h(
      "p",
      { class: "mut" },
      "Looking takes no row and moves no position. Ends of transactions take offsets, and are no rows. ",
      command(`sardonyx link peek ${data.job} ${data.link}`),
    ),
  ];
}

const jobLinkOf = (job, task) => h("a", { href: link(`/jobs/${encodeURIComponent(job)}`, { task }), ...route }, task);

function partitionRows(data, each, columns, keyed, width) {
  const whole = (key, text, kind) =>
    h("tr", { key: `${each.number} ${key}`, class: kind }, h("td", { colspan: width }, text));
  const position = whole(
    "here",
    `▸ partition ${each.number}: ${data.reader} has read up to here` +
      (each.position === null ? "; it has committed nothing yet" : `; next is offset ${number(each.position)}`),
    "here",
  );
  const rows = each.rows.map((row) =>
    h(
      "tr",
      { key: `${each.number} ${row.offset} ${row.row}`, class: row.read ? "read" : null },
      h("td", { class: "r" }, number(each.number)),
      h("td", { class: "r" }, row.row === null ? number(row.offset) : `${number(row.offset)}.${row.row}`),
      h("td", null, when(row.at, true)),
      data.kind === "internal" || data.kind === "splits" ? h("td", null, row.by || UNKNOWN) : null,
      keyed ? h("td", null, row.key === null ? UNKNOWN : row.key) : null,
      cells(row.record, columns),
    ),
  );
  if (data.reader) {
    const after = each.rows.findIndex((row) => !row.read);
    rows.splice(after < 0 ? rows.length : after, 0, position);
  }
  const bounds = `partition ${each.number}: offsets ${number(each.first)} to ${number(each.end)}`;
  if (!each.rows.length) rows.unshift(whole("none", `${bounds}, no rows near by`, "mut"));
  if (each.cut)
    rows.push(whole("cut", `${bounds}: there may be more rows; reading took too long, or they are large`, "mut"));
  return rows;
}

// Dead letters

/** Dead letters by job and task. */
export function lettersPage(data) {
  return [
    h("h1", null, "Dead letters"),
    h(
      "p",
      { class: "mut" },
      coded("Records that tasks could not process, kept with `on_error`. A letter is redone or dropped once."),
    ),
    table(
      "Dead letters",
      ["job", "task", ">letters", ">open", ">dropped", "first", "last", "errors", "redo those that are open"],
      data.items.map((pile) =>
        h(
          "tr",
          { key: `${pile.job} ${pile.task}` },
          h("th", { scope: "row" }, jobLink(pile.job)),
          h("td", null, h("a", { href: lettersOf(pile.job, pile.task), ...route }, pile.task)),
          h("td", { class: "r" }, `${number(pile.letters)}${pile.counting ? " …" : ""}`),
          h("td", { class: `r ${pile.waiting ? "warn" : ""}` }, number(pile.waiting)),
          h("td", { class: "r" }, number(pile.dropped)),
          h("td", null, when(pile.first_at)),
          h("td", null, when(pile.last_at)),
          h("td", { class: "wrap" }, errorsOf(pile)),
          h("td", null, pile.waiting ? redo(pile.job, pile.task, pile.waiting) : UNKNOWN),
        ),
      ),
      'No job has any. `on_error="dead_letter"` on a task keeps the records that it fails on.',
    ),
    h("p", null, h("button", { type: "button", "data-again": "" }, store.busy ? "reading …" : "look again")),
  ];
}

const redo = (job, task, waiting) =>
  redoAction(job, task, waiting) || command(`sardonyx dlq redo ${job} --task ${task}`);

function errorsOf(pile) {
  const all = Object.entries(pile.errors);
  const first = all.slice(0, 4).map(([name, count]) => `${name} ${number(count)}`);
  return first.join(" · ") + (all.length > 4 ? ` · and ${all.length - 4} more` : "");
}

/** The letters of one task. */
export function pilePage(data) {
  const { job, task, query } = store.route;
  const columns = columnsOf(data.items.map((letter) => letter.record));
  return [
    h("h1", null, `Dead letters of ${task}`),
    h(
      "p",
      null,
      h("a", { href: "/dead-letters", ...route }, "all dead letters"),
      " · ",
      jobLink(job),
      " · redo those that are open: ",
      redo(job, task, null),
    ),
    table(
      `Dead letters of ${task}`,
      [">letter", "at", "error", ">tries", "came from", "state", ...(columns || ["record"])],
      data.items.map((letter) => letterRow(letter, columns)),
      Number(query.first) ? "There are no letters from this number on." : "There are none.",
    ),
    further(data, "more"),
    letterPanel(data.items.find((letter) => String(letter.offset) === query.letter)),
  ];
}

function letterRow(letter, columns) {
  const { origin, attempts, error } = letter.letter;
  const chosen = store.route.query.letter === String(letter.offset);
  return h(
    "tr",
    { key: letter.offset, "aria-current": chosen ? "true" : null },
    h(
      "th",
      { scope: "row", class: "r" },
      h("a", { href: here({ letter: chosen ? "" : letter.offset }), ...route }, number(letter.offset)),
    ),
    h("td", null, when(letter.at)),
    h("td", { class: "bad" }, error),
    h("td", { class: "r" }, number(attempts)),
    h("td", null, `${origin.topic}[${origin.partition}]@${number(origin.offset)}`),
    h("td", null, stateOf(letter)),
    cells(letter.record, columns),
  );
}

const stateOf = (letter) =>
  letter.dropped ? "dropped" : letter.redone_by ? ["redone by ", jobLink(letter.redone_by)] : "open";

function letterPanel(letter) {
  if (!letter) return null;
  const { failure, origin } = letter.letter;
  return h(
    "section",
    { class: "panel", "aria-labelledby": "letter", key: "letter" },
    h(
      "h2",
      { id: "letter" },
      `Letter ${number(letter.offset)} `,
      h("a", { href: here({ letter: "" }), ...route, class: "button" }, "close"),
    ),
    h("p", null, h("b", null, `${failure.code}: `), failure.message),
    failure.cause ? h("p", null, `cause: ${failure.cause}`) : null,
    failure.fix ? h("p", null, `fix: ${failure.fix}`) : null,
    h(
      "p",
      { class: "mut" },
      "Where the record is on its way: ",
      command(`sardonyx job trace ${letter.job} ${origin.topic}[${origin.partition}]@${origin.offset}`),
    ),
    h("h3", null, "Record"),
    h("pre", { tabindex: "0" }, written(letter.record, 2)),
    failure.traceback ? [h("h3", null, "Traceback"), h("pre", { tabindex: "0" }, failure.traceback)] : null,
  );
}
