// What is shown, where it comes from, and whether it is up to date. The address of the page alone says what is wanted.

import { parsed } from "./exact.js";

export const store = {
  route: null,
  standing: null, // what the server stands at
  data: null, // of the page
  problem: null, // why there is no data
  broken: null, // since when the stream is broken, milliseconds since 1970
  why: "", // why, if the server says so
  joining: false, // whether the server has yet to say where it stands, since the page began to listen
  ahead: 0, // seconds by which the clock of the server is ahead of the browser's
  scale: null, // the log in short
  entry: null, // the entry that is looked at, with its changes
  from: null, // the entry that the one shown is compared with
  diff: null, // what differs between the two
  log: null, // the page of the log
  batches: null, // the last batches of the task that is open
  partitions: null, // those that it reads, and how far it is in them
  stream: null, // the batches of all tasks of the job whose task stream is open
  busy: false,
  playing: false,
  rest: null, // seconds of the rest that is folded while it plays
  pending: null, // the entry that is shown and does not stand in the address yet
  era: 0, // how often the server was away: what was known of the past may be of another log since
  help: false,
  table: false,
  said: "",
  session: null, // who the server takes us for, and whether we may act
  refused: false, // whether the token that was typed is not known
  wish: null, // the action that is to be confirmed
};

const AGAIN = 1500; // milliseconds until a stream that broke is begun again
const SILENT = 40000; // milliseconds without a word after which a stream is broken: a server says something each 15 s
const PATIENCE = 90000; // milliseconds for an answer: it may wait 20 s for its turn to ask Kafka
const ALIKE = 2; // seconds in which two clocks are the same: answers tell whole ones

let drawn = () => {};
let waiting = false;

/** What is called to draw. */
export function onDraw(draw) {
  drawn = draw;
}

/** Draw soon, once. */
export function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawn();
  });
}

/** The entry in a part of a query. */
export const entryIn = (text) => (/^\d+$/.test(text || "") ? Number(text) : null);

/** A part of an address, decoded; as it is if that cannot be. */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What an address asks for. */
export function readRoute(address) {
  const parts = address.pathname.split("/").filter(Boolean).map(decoded);
  const query = Object.fromEntries(address.searchParams);
  const at = entryIn(query.at);
  if (!parts.length) return { page: "cluster", at, query };
  if (parts[0] === "jobs" && parts[2] === "links")
    return { page: "link", job: parts[1], link: parts[3] || "", at: null, query };
  if (parts[0] === "jobs" && parts[2] === "stream") return { page: "stream", job: parts[1], at: null, query };
  if (parts[0] === "dead-letters")
    return parts.length > 2
      ? { page: "pile", job: parts[1], task: parts[2], at: null, query }
      : { page: "letters", at: null, query };
  if (parts[0] === "capacity") return { page: "capacity", at, query };
  if (parts[0] === "jobs")
    return parts.length > 1
      ? { page: "job", job: parts[1], task: query.task || "", at, query }
      : { page: "jobs", at, query };
  return { page: "log", n: parts.length > 1 ? Number(parts[1]) : null, at: null, query };
}

const TIMELESS = /^\/(log|dead-letters|jobs\/[^/]+\/(links|stream))/;

/** The address of a page, with its moment. */
export function link(path, changes = {}) {
  const query = new URLSearchParams();
  const moment = store.route && store.route.at !== null && !TIMELESS.test(path) ? { at: store.route.at } : {};
  for (const [key, value] of Object.entries({ ...moment, ...changes }))
    if (value !== null && value !== "" && value !== undefined) query.set(key, value);
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** The address of this page with something else in its query. */
export function here(changes) {
  const address = new URL(location.href);
  if (store.pending !== null) address.searchParams.set("at", store.pending);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "" || value === undefined) address.searchParams.delete(key);
    else address.searchParams.set(key, value);
  }
  return address.pathname + address.search;
}

const TOKEN = "sardonyx-token";
let token = "";
try {
  token = localStorage.getItem(TOKEN) || "";
} catch {
  // it is kept for this page only: private windows may not
}

/** From now on, ask with this token. */
export function useToken(given) {
  token = given;
  try {
    localStorage.setItem(TOKEN, given);
  } catch {
    // see above
  }
}

const withToken = (more = {}) => ({ ...(token ? { authorization: `Bearer ${token}` } : {}), ...more });

const kept = new Map();

/** An answer of the API. One that does not come in a long time is an error: its connection may be dead without a word. */
async function fetched(path, how) {
  const attempt = new AbortController();
  const late = setTimeout(() => attempt.abort(new Error(`no answer within ${PATIENCE / 1000} s`)), PATIENCE);
  try {
    const answer = await fetch(`/api/v1${path}`, { ...how, signal: attempt.signal });
    const data = await dataOf(answer);
    if (!answer.ok) throw data;
    return data;
  } finally {
    clearTimeout(late);
  }
}

/** What an answer says. Of one that is not the server's own, it is an error. */
async function dataOf(answer) {
  const text = await answer.text();
  try {
    return parsed(text);
  } catch {
    throw {
      title: `something before the server answers, with HTTP status ${answer.status}`,
      cause: "the answer is not JSON, as all of the server's own are: a proxy may have made it",
      fix: "look whether `sardonyx web` runs, and at the log of the proxy in front of it",
    };
  }
}

/** The time by the clock of the server, seconds since 1970. */
export const now = () => Date.now() / 1000 + store.ahead;

/** Learn by how much the clock of the server is ahead. Only of an answer that no browser keeps: another one may be older. */
function setClock(answer) {
  const ahead = (Date.parse(answer.headers.get("date")) + 500 - Date.now()) / 1000;
  if (Math.abs(ahead - store.ahead) > ALIKE) store.ahead = ahead;
}

/** Ask the API; answers about the past are kept for a while, because they are asked for again while one looks around. */
export async function ask(path, keep = false) {
  if (keep && kept.has(path)) return kept.get(path);
  const data = await fetched(path, { headers: withToken() });
  if (keep && !data.live) {
    if (kept.size > 300) kept.delete(kept.keys().next().value);
    kept.set(path, data);
  }
  return data;
}

/** Change something. The same key makes it the same wish, however often it is sent. */
export async function act(path, key) {
  return fetched(path, { method: "POST", headers: withToken({ "idempotency-key": key }) });
}

/** What an error is to the page. */
export function problemOf(error) {
  return error && error.title
    ? error
    : { code: "", title: "the server does not answer", cause: String(error), fix: "is `sardonyx web` still running?" };
}

/** What was known of the past is asked for again: the server may have begun with another log. */
function forget() {
  store.era += 1;
  kept.clear();
}

const SAID = 5000; // milliseconds
let saying = 0;

/** Say a sentence to who hears the page; after a while it is gone, so that the same one can be said again. */
export function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    store.said = "";
    redraw();
  }, SAID);
  store.said = text;
  redraw();
}

let stream = null;
let topics = "";

/** Listen to these topics, whose states go to `take`. It begins again by itself when the stream breaks. */
export function listen(wanted, take) {
  if (stream && topics === wanted) return;
  if (!stream) {
    forget(); // a page that was hidden for long did not hear whether the server went away
    store.joining = true;
    redraw();
  }
  hush();
  topics = wanted;
  stream = { attempt: null };
  void follow(stream, wanted, take);
}

/** Stop listening, while the page is hidden. */
export function hush() {
  if (stream) stream.attempt.abort();
  stream = null;
}

async function follow(mine, wanted, take) {
  while (mine === stream) {
    mine.attempt = new AbortController();
    let why = "";
    try {
      await read(mine, wanted, take);
    } catch (error) {
      if (error && error.title) why = error.fix ? `${error.title}; ${error.fix}` : error.title;
      // otherwise it broke, or the server is away
    }
    mine.attempt.abort(); // or an answer that was not read to its end would keep its connection
    if (mine !== stream) return;
    if (store.broken === null) store.broken = Date.now();
    store.why = why;
    redraw();
    await new Promise((done) => setTimeout(done, AGAIN));
  }
}

/** Read one stream to its end. A browser's own `EventSource` cannot send a token. */
async function read(mine, wanted, take) {
  const path = `/api/v1/stream?topics=${encodeURIComponent(wanted)}`;
  const { attempt } = mine;
  const answer = await heard(attempt, () => fetch(path, { headers: withToken(), signal: attempt.signal }));
  if (!answer.ok) {
    const problem = await heard(attempt, () => dataOf(answer));
    if (problem.code === "SX-WEB-LOGIN" && mine === stream) {
      Object.assign(store, { problem, broken: null, joining: true });
      stream = null;
      redraw();
    }
    throw problem;
  }
  setClock(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    if (store.broken !== null && mine === stream) {
      Object.assign(store, { broken: null, why: "" });
      forget();
      redraw();
    }
    const { value, done } = await heard(attempt, () => reader.read());
    if (done || mine !== stream) return;
    const frames = (text + value).split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const event = /^event: (.*)$/m.exec(frame);
      if (!event) continue;
      if (event[1] === "bye") return;
      const { topic, data } = JSON.parse(/^data: (.*)$/m.exec(frame)[1]);
      const gone = event[1] === "gone";
      if (mine !== stream) return;
      if (topic === "standing") {
        if (!gone && store.standing && data.last < store.standing.last) forget(); // the deployment was made anew
        store.standing = gone ? unknown(data) : data;
        store.joining = false;
      }
      if (topic !== "standing" || !gone) take(topic, data, gone);
    }
    redraw();
  }
}

/** What the server stands at, if it cannot tell. */
const unknown = (problem) =>
  store.standing && { ...store.standing, connected: false, since: now(), problem: problem.title };

/** Wait for the next word of the server. One that does not come ends the attempt: a connection can die without a word. */
async function heard(attempt, next) {
  const since = Date.now();
  const late = setTimeout(() => {
    if (store.broken === null) store.broken = since;
    attempt.abort();
  }, SILENT);
  try {
    return await next();
  } finally {
    clearTimeout(late);
  }
}
