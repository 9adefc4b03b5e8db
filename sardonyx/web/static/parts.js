// What several pages are made of.

import { h } from "./dom.js";
import { link, now, store } from "./store.js";
import { clock, isTime, moment, UNKNOWN } from "./text.js";

/** A link that this page follows by itself. */
export const route = { "data-route": "" };

/** A time with its date and zone in the description. */
export function when(at, fine = false) {
  if (at === null || at === undefined) return UNKNOWN;
  if (!isTime(at)) return h("span", { title: `${at} seconds since 1970` }, clock(at));
  return h("time", { datetime: new Date(at * 1000).toISOString(), title: moment(at) }, clock(at, fine));
}

/** A command to type. */
export const command = (text) => (text ? h("code", { class: "command" }, text) : null);

/** A text whose parts in backticks are code. */
export function coded(text) {
  return text.split("`").map((part, index) => (index % 2 ? command(part) : part));
}

/** A table with a heading for each column; `>` before a heading: of numbers. */
export function table(name, heads, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, coded(empty));
  return h(
    "div",
    { class: "tw", tabindex: "0", role: "region", "aria-label": `${name}; scrolls sideways` },
    h(
      "table",
      null,
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          heads.map((text) => h("th", { scope: "col", class: text[0] === ">" ? "r" : null }, text.replace(">", ""))),
        ),
      ),
      h("tbody", null, rows),
    ),
  );
}

/** The button that gets the next part of a list, and why it did not come. */
export const further = (list, word) =>
  list.next
    ? h(
        "p",
        { class: "row" },
        h("button", { type: "button", "data-more": list.next }, list.asking ? "reading …" : word),
        list.failed ? h("span", { class: "bad", role: "alert" }, list.failed.title) : null,
      )
    : null;

/** A link to a job. */
export const jobLink = (id, more = {}) => h("a", { href: link(`/jobs/${encodeURIComponent(id)}`, more), ...route }, id);

/** The time of the moment that is shown, by the clock of the server: seconds since 1970. */
export function nowOf(data) {
  const { standing, broken } = store;
  if (!data || !data.live || !standing || standing.source !== "live") return (data && data.at) || 0;
  if (broken !== null) return broken / 1000 + store.ahead; // what is shown is as of then
  return standing.connected ? now() : standing.since;
}
