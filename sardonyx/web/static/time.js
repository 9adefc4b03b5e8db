// The bar at the foot: a slider over the coordinator's log. It puts the whole page into the past, and plays it.

import { h } from "./dom.js";
import { filmed, prepare } from "./film.js";
import { resting, speeds } from "./play.js";
import { here, store } from "./store.js";
import { clock, number } from "./text.js";

const WORDS = { incident: "went wrong", leader: "new leader", user: "a user's wish" };

/** The entry that is shown. */
export function shown() {
  return store.route.at !== null ? store.route.at : store.standing ? store.standing.last : 0;
}

/** The nearest entry before or after this one that stands out. */
export function nextMark(step) {
  const marks = store.scale ? store.scale.marks : [];
  const fitting = marks.filter((mark) => (step > 0 ? mark.n > shown() : mark.n < shown()));
  return fitting.length ? fitting[step > 0 ? 0 : fitting.length - 1] : null;
}

/** The bar. */
export function timeBar(data, go) {
  const { standing, scale, route } = store;
  if (!standing || !["cluster", "jobs", "job", "capacity"].includes(route.page) || standing.last < standing.first) return null;
  const past = route.at !== null;
  const n = shown();
  const mark = scale ? scale.marks.find((each) => each.n === n) : null;
  const at = data && data.n === n ? data.at : null;
  const look = () => void prepare(filmed(route, store.data), n);
  const button = (text, name, act, off = false) =>
    h("button", { type: "button", "aria-label": name, title: name, onclick: act, disabled: off }, text);
  return h(
    "section",
    { class: "time", "aria-label": "Time travel", key: "time" },
    h(
      "div",
      { class: "row" },
      button("◂ entry", "one entry back", () => go(n - 1), n <= standing.first),
      button(store.playing ? "❚❚ stop" : "▸ play", store.playing ? "stop playing" : "play the log", () => go("play")),
      speeds(),
      button("entry ▸", "one entry on", () => go(n + 1), n >= standing.last),
      button("◂ mark", "back to a mark: what stands out", () => go((nextMark(-1) || { n }).n), !nextMark(-1)),
      button("mark ▸", "on to a mark: what stands out", () => go((nextMark(1) || { n }).n), !nextMark(1)),
      ["jobs", "capacity"].includes(route.page)
        ? null
        : store.from === null
        ? h(
            "a",
            { class: "button", href: here({ from: n }), "data-route": "", title: "shows what differs from this entry" },
            "compare from here",
          )
        : h(
            "a",
            { class: "button", href: here({ from: "" }), "data-route": "" },
            `stop comparing with ${number(store.from)}`,
          ),
      h("span", { class: "grow" }),
      resting(),
      h(
        "span",
        { class: "moment" },
        "entry ",
        h("b", null, number(n)),
        h("span", { class: "wide" }, ` of ${number(standing.last)}`),
        at ? ` · ${clock(at, true)}` : "",
      ),
      past
        ? h(
            "a",
            { class: "button", href: here({ at: "" }), "data-route": "" },
            standing.source === "live" ? "back to now" : "to the end",
          )
        : h("span", { class: "mut wide" }, standing.source === "live" ? "now" : "the end of the file"),
      scale && scale.marks.length ? meaning() : null,
    ),
    scale ? ticks(scale, n) : null,
    h("input", {
      type: "range",
      id: "slider",
      min: standing.first,
      max: standing.last,
      value: n,
      "aria-label": "Entry of the log",
      "aria-valuetext": `entry ${number(n)}${at ? `, ${clock(at, true)}` : ""}${mark ? `, ${mark.text}` : ""}`,
      onpointerdown: look,
      onfocus: look,
      oninput: (event) => go(Number(event.target.value)),
    }),
  );
}

/** What the marks above the slider mean. */
function meaning() {
  return h(
    "span",
    { class: "marks wide" },
    Object.entries(WORDS).map(([what, text]) =>
      h("span", { class: "pair", key: what }, h("i", { class: what, "aria-hidden": "true" }), text),
    ),
  );
}

// The scale runs over entries, as the slider does: so a mark stands where the slider is when it shows that entry.
function ticks(scale) {
  const span = Math.max(scale.last - scale.first, 1);
  return h(
    "div",
    { class: "ticks", "aria-hidden": "true" },
    scale.marks.map((mark) =>
      h("i", {
        key: mark.n,
        class: mark.what,
        title: `${number(mark.n)} ${WORDS[mark.what]}: ${mark.text}`,
        style: { left: `${(100 * (mark.n - scale.first)) / span}%` },
      }),
    ),
  );
}
