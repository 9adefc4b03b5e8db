// Goes somewhere: reads the address, moves to an entry of the log, and plays it.

import { ASKING, askTask, compare, know, load, pathOf, screen, take, topicOf, unscaled } from "./loading.js";
import { play, stop } from "./play.js";
import { decoded, entryIn, here, hush, listen, readRoute, redraw, store, useToken } from "./store.js";
import { shown } from "./time.js";

/** What a page is about. */
const subjectOf = ({ page, job, link, task }) => [page, job, link, page === "pile" ? task : ""].join("\n");

/** Show what the address says; with the data that are there if it is the same page. */
export function start(keepData) {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    history.replaceState(history.state, "", location.pathname + location.search); // the address may be sent to others
    useToken(decoded(given[1]));
    hush();
    void know();
  }
  const route = readRoute(new URL(location.href));
  const before = store.route;
  const same = keepData && before && subjectOf(before) === subjectOf(route);
  const again =
    !same ||
    before.at !== route.at ||
    before.query.from !== route.query.from ||
    before.page === "log" ||
    (ASKING.has(route.page) && pathOf(before) !== pathOf(route));
  store.route = route;
  store.from = entryIn(route.query.from);
  if (!same) {
    Object.assign(store, { data: null, problem: null, entry: null, diff: null });
    Object.assign(store, { stream: null, batches: null, partitions: null });
  }
  if (!same) unscaled();
  if (!same) stop();
  if (route.at === null) store.entry = route.page === "log" ? store.entry : null;
  attend();
  if (again && before && before.query.from === route.query.from && same && screen()) void compare();
  else if (again) void load();
  else if (route.task !== before.task) void askTask(true);
  redraw();
}

/** Listen to what the page needs; nothing that happens now changes the past. */
export function attend() {
  const topic = topicOf();
  listen(store.route.at === null ? topic : "", take);
}

/** Go to an address of these pages. */
export function visit(address, replace = false) {
  settle();
  const to = new URL(address, location.href);
  const samePage = to.pathname === location.pathname;
  if (replace || to.href === location.href) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  start(samePage);
  if (!samePage) {
    scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  }
}

const REST = 150; // milliseconds: browsers refuse an address that changes with each movement of the slider

let settling = 0;

/** Write the entry that is shown into the address. */
function settle() {
  clearTimeout(settling);
  if (store.pending === null) return;
  const address = here({});
  store.pending = null;
  history.replaceState(null, "", address);
}

/** Show an entry: from a film if there is one, without a question to the server. */
function show(n) {
  const { first, last, source } = store.standing;
  const to = Math.min(Math.max(n, first), last);
  if (to === last && source === "live") {
    visit(here({ at: "" }), true);
    return;
  }
  const before = store.route;
  store.route = { ...before, at: to, query: { ...before.query, at: String(to) } };
  if (!screen()) {
    store.route = before;
    visit(here({ at: to }), true);
    return;
  }
  store.pending = to;
  clearTimeout(settling);
  settling = setTimeout(() => {
    settle();
    void compare();
  }, REST);
  attend();
  redraw();
}

/** To an entry; or play, or stop playing. */
export function go(n) {
  const playing = store.playing;
  stop();
  if (n !== "play") show(n);
  else if (!playing) play(shown, show);
  redraw();
}
