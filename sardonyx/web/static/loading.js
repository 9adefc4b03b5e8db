// Asks for what the page shows, and takes what the stream brings.

import { filmed, frameOf, prepare } from "./film.js";
import { ask, problemOf, redraw, say, store } from "./store.js";

/** Pages for which Kafka is asked. */
export const ASKING = new Set(["link", "letters", "pile"]);

let asked = 0;
let streamed = 0; // how many states of the page that is shown the stream has brought
let topic = ""; // of the stream, for the page that is shown

/** Which topic of the stream the page that is shown is drawn from. */
export function topicOf() {
  const { route } = store;
  topic = route.page === "cluster" ? "cluster" : ["job", "stream"].includes(route.page) ? `job:${route.job}` : "";
  return topic;
}

/** The address of what a page shows. */
export function pathOf(route) {
  const at = route.at === null ? "" : `?at=${route.at}`;
  const job = encodeURIComponent(route.job);
  if (route.page === "cluster") return `/cluster${at}`;
  if (route.page === "capacity") return `/capacity${at}`;
  if (route.page === "letters") return "/dead-letters";
  if (route.page === "pile")
    return `/dead-letters/${job}/${encodeURIComponent(route.task)}${asks(route, ["first", "limit"])}`;
  if (route.page === "link")
    return `/jobs/${job}/links/${encodeURIComponent(route.link)}/rows${asks(route, ["begin", "limit", "partition"])}`;
  return route.page === "jobs" ? `/jobs${at || asMany()}` : `/jobs/${job}/overview${at}`;
}

const PART = 100; // jobs that the server gives without a limit
const MOST = 1000; // jobs that it gives at once

/** The number of jobs that are asked for: as many as someone has read. */
function asMany() {
  const count = store.data && store.data.items ? store.data.items.length : 0;
  return count > PART ? `?limit=${Math.min(count, MOST)}` : "";
}

/** The part of the page's query that its data depend on. */
function asks(route, names) {
  const query = new URLSearchParams(Object.entries(route.query).filter(([key, value]) => names.includes(key) && value));
  return query.size ? `?${query}` : "";
}

let era = 0; // when the page was asked for: what the stream does not bring may be of another log since
let flying = null; // the page of which a past moment is on its way
let again = false;

/** Get what the page shows; of the past one moment at a time, however fast the slider goes. */
export async function load() {
  const { route } = store;
  const page = `${route.page} ${route.job}`;
  if (route.at !== null && flying === page) {
    again = true;
    asked += 1;
    return;
  }
  flying = route.at === null ? null : page;
  await loaded(route);
  if (route.at === null) {
    void refresh();
    return;
  }
  flying = null;
  if (!again) return;
  again = false;
  if (screen()) redraw();
  else void load();
}

const LISTS = new Set(["log", "jobs", "capacity"]);

const listed = () => (store.route.page === "log" ? store.log : store.data);

/** Get the list that is shown anew, one question at a time, as long as it is older than the log: the stream brings no lists. */
async function refresh() {
  const { route, standing } = store;
  if (!standing || store.busy || !LISTS.has(route.page) || route.at !== null || route.query.before) return;
  if ((route.page === "log" && route.n !== null) || readsOn()) return;
  const list = listed();
  if (list && !store.problem && (route.page === "log" ? list.last : list.n) === standing.last) return;
  await loaded(route, () => !readsOn());
  if (store.standing !== standing) void refresh();
}

/** Whether someone reads on in the list that is shown: a new one would take away what was read. */
function readsOn() {
  const list = listed();
  if (!list || store.problem) return false;
  return list.asking || list.failed || (list.paged && (store.route.page === "log" || list.items.length > MOST));
}

async function loaded(route, wanted = () => true) {
  const mine = ++asked;
  const before = streamed;
  era = store.era;
  store.busy = true;
  const overtaken = () => route.at === null && streamed !== before; // the stream brought a state that was made later
  const done = (change) => {
    if (mine === asked) {
      store.busy = false;
      if (wanted()) change();
      redraw();
    }
  };
  try {
    if (route.page === "log") {
      const query = new URLSearchParams(
        Object.entries(route.query).filter(([key]) => ["job", "peer", "kind", "mark", "before"].includes(key)),
      );
      const found = route.n === null ? await ask(`/log?${query}`) : await ask(`/log/${route.n}`);
      done(() => ((store.problem = null), route.n === null ? (store.log = found) : (store.entry = found)));
      return;
    }
    const past = route.at !== null;
    const [data, entry] = await Promise.all([
      ask(pathOf(route), past),
      past && compared(route) === null ? ask(`/log/${route.at}`, true).catch(() => null) : null,
    ]);
    const diff = await differing(route, data);
    done(() => {
      if (!overtaken()) Object.assign(store, { data, problem: null });
      Object.assign(store, { entry, diff });
    });
    if (past && mine === asked) void prepare(filmed(route, data), route.at);
    void askTask(true);
    void askStream();
  } catch (error) {
    done(() => {
      if (!overtaken()) store.problem = problemOf(error);
    });
  }
}

/** The entry with which the page is compared; null: it is not. */
const compared = (route) => (["cluster", "job"].includes(route.page) ? store.from : null);

async function differing(route, data) {
  const from = compared(route);
  const job = route.page === "job" ? `&job=${encodeURIComponent(data.job.id)}` : "";
  return from === null ? null : ask(`/log/diff?from=${from}&to=${data.n}${job}`, route.at !== null);
}

/** Show the entry of the address from a film, if there is one. What is on its way from the server is not shown any more. */
export function screen() {
  const { route } = store;
  const topic = filmed(route, store.data);
  const frame = route.at === null ? null : frameOf(topic, route.at);
  if (!frame) return false;
  asked += 1;
  store.busy = false;
  store.data = { ...frame.data, standing: store.standing };
  store.entry = frame.entry;
  store.problem = null;
  void prepare(topic, route.at);
  return true;
}

let comparing = false;

/** Get what differs from the entry that the page is compared with, one question at a time. */
export async function compare() {
  const { route, data } = store;
  if (comparing || compared(route) === null || !data || (store.diff && store.diff.to === data.n)) return;
  comparing = true;
  const mine = asked;
  const diff = await differing(route, data).catch(() => null);
  comparing = false;
  if (mine === asked) store.diff = diff;
  redraw();
  if (store.data !== data) void compare();
}

/** Whether the page is still that of this job. */
const isAt = ({ page, job }) => store.route.page === page && store.route.job === job;

let scaled = 0;

/** The scale is that of another page. */
export function unscaled() {
  store.scale = null;
  scaled = 0;
}

async function rescale() {
  if (Date.now() - scaled < 2000 || document.hidden) return;
  scaled = Date.now();
  const { route, data } = store;
  const job = route.page === "job" && data && data.job ? `&job=${encodeURIComponent(data.job.id)}` : "";
  try {
    const found = await ask(`/log/scale?buckets=1${job}`);
    if (!isAt(route)) return;
    store.scale = found;
    redraw();
  } catch {
    // it is asked for again
  }
}

/** Get the scale anew if it is older than the log. */
export function keepScale() {
  const { standing, scale, broken } = store;
  if (standing && broken === null && (!scale || scale.last !== standing.last)) void rescale();
}

/** Take a state of a topic from the stream. */
export function take(named, data, gone) {
  const { route } = store;
  if (named === "standing") {
    const away = store.era !== era;
    if (!store.session || away) void know();
    era = store.era;
    if (away && (route.at !== null || !topic) && !ASKING.has(route.page) && !readsOn()) void load();
    else if (route.at !== null && store.data && store.data.live && store.data.n < data.last) void load(); // it was the present
    else void refresh();
    keepScale();
    return;
  }
  if (route.at !== null || named !== topic) return;
  streamed += 1;
  if (gone) store.problem = data;
  else {
    const before = store.data;
    store.problem = null;
    store.data = data;
    if (route.page === "job") tell(before, data);
    void askTask();
    void compare();
  }
}

const EVERY = { batches: 1000, partitions: 3000 }; // milliseconds between two questions, at least
const toldAt = { batches: 0, partitions: 0 };

/** The last batches of the task that is open, and its partitions. */
export async function askTask(soon = false) {
  await Promise.all(Object.keys(EVERY).map((what) => askOfTask(what, soon)));
}

async function askOfTask(what, soon) {
  const { route, data } = store;
  if (route.page !== "job" || !route.task || route.at !== null || !data || document.hidden) return;
  if (!soon && Date.now() - toldAt[what] < EVERY[what]) return;
  toldAt[what] = Date.now();
  const task = route.task;
  const path = `/jobs/${encodeURIComponent(data.job.id)}/tasks/${encodeURIComponent(task)}/${what}`;
  const found = await ask(path).catch(() => null);
  if (!isAt(route) || store.route.task !== task) return;
  store[what] = found && { task, ...found };
  redraw();
}

let streaming = false;
const STREAM = 5000; // batches that are kept here

/** What the peers of the job have told since the last time, if its task stream is open. */
export async function askStream() {
  const { route, data, era } = store;
  if (route.page !== "stream" || !data || !data.job || document.hidden || streaming) return;
  streaming = true;
  const known = store.stream && store.stream.job === data.job.id && store.stream.era === era ? store.stream : null;
  const after = known === null ? "" : `?after=${known.last}`;
  try {
    const found = await ask(`/jobs/${encodeURIComponent(data.job.id)}/batches${after}`);
    if (!isAt(route)) return;
    const items = [...(known === null ? [] : known.items), ...found.items].slice(-STREAM);
    store.stream = { ...found, items, job: data.job.id, era, ahead: found.at - Date.now() / 1000 };
    redraw();
  } catch {
    // it is asked for again in a second
  } finally {
    streaming = false;
  }
}

let told = 0;

/** Say what has become worse, at most one sentence in five seconds. */
function tell(before, data) {
  if (!before || !before.graph || Date.now() - told < 5000) return;
  const was = new Map(before.graph.nodes.map((node) => [node.name, node.verdict]));
  const worse = data.graph.nodes.find(
    (node) =>
      ["warn", "bad"].includes(node.verdict.level) &&
      was.has(node.name) &&
      was.get(node.name).word !== node.verdict.word,
  );
  if (!worse) return;
  told = Date.now();
  say(`Task ${worse.name}: ${worse.verdict.word}`);
}

const nameOf = (item) => item.id ?? item.n ?? item.offset;

/** Get the next part of the list that is shown. If that is another one by then, it is not wanted any more. */
export async function more(path) {
  const list = listed();
  if (!list || list.asking) return;
  Object.assign(list, { asking: true, failed: null });
  redraw();
  try {
    const page = await ask(path.replace("/api/v1", ""));
    const known = new Set(list.items.map(nameOf)); // it may have been refreshed meanwhile
    const items = page.items.filter((each) => !known.has(nameOf(each)));
    Object.assign(list, { items: [...list.items, ...items], next: page.next, paged: true });
  } catch (error) {
    list.failed = problemOf(error);
  }
  list.asking = false;
  void refresh();
  redraw();
}

/** Ask who we are. */
export async function know(typed = false) {
  try {
    store.session = await ask("/session");
    store.refused = false;
  } catch (error) {
    store.refused = typed && problemOf(error).code === "SX-WEB-LOGIN";
  }
  redraw();
}
