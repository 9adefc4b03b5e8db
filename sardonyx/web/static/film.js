// Films: stretches of the log as the page shows them, fetched once. What is in one is shown without a question to the server.

import { ask, store } from "./store.js";

const STRETCH = 200; // entries of a film; the server makes no longer ones
const SMALL = 6; // stretches of a log that is fetched whole
const KEPT = 24;
const AGAIN = 5000; // milliseconds until films are asked for again, if there was none

const reels = new Map(); // by topic and number of the stretch: the frames from its first entry on
let era = 0; // of the server: after it was away, the log may be another one
let aim = null; // where someone looks: { topic, n }
let fetching = false;
let failed = 0;

/** Which page a film of what is shown now is of; empty: there are none of it. */
export function filmed(route, data) {
  if (route.page === "job") return data && data.job ? `job:${data.job.id}` : "";
  return ["cluster", "jobs", "capacity"].includes(route.page) ? route.page : "";
}

/** The page after entry `n`: its data, and the entry with what it changed. Null: no film of it is here. */
export function frameOf(topic, n) {
  const reel = reelOf(topic, n);
  const frame = reel && reel.frames[n - reel.begin];
  return frame && frame.data ? frame : null;
}

/** When entry `n` was taken in; null: no film of it is here. */
export function timeOf(topic, n) {
  const reel = reelOf(topic, n);
  const frame = reel && reel.frames[n - reel.begin];
  return frame ? frame.entry.event.at : null;
}

/** Whether films can be had at all. */
export const filming = () => Date.now() - failed > AGAIN;

function reelOf(topic, n) {
  if (era !== store.era) {
    reels.clear();
    era = store.era;
  }
  return reels.get(`${topic} ${Math.floor(n / STRETCH)}`) || null;
}

/** Get the film of the stretch around an entry, those beside it, and of a small log all. */
export async function prepare(topic, n) {
  if (!topic || !store.standing) return;
  aim = { topic, n };
  if (fetching || !filming()) return;
  fetching = true;
  try {
    for (let part = missing(); part !== null; part = missing()) {
      const query = new URLSearchParams(part);
      const asked = store.era;
      const film = await ask(`/log/film?${query}`);
      if (asked === store.era) keep(film);
    }
  } catch {
    failed = Date.now(); // entries are asked for one by one meanwhile
  } finally {
    fetching = false;
  }
}

/** What is to be asked for next. The page after the last entry of the log still changes: no film holds it. */
function missing() {
  const { first, last } = store.standing;
  const here = Math.floor(aim.n / STRETCH);
  const [low, high] = [first, last - 1].map((n) => Math.floor(n / STRETCH));
  const wanted = [here, here + 1, here - 1];
  if (high - low < SMALL) for (let each = low; each <= high; each++) wanted.push(each);
  for (const each of wanted) {
    const end = Math.min((each + 1) * STRETCH, last) - 1;
    const reel = reelOf(aim.topic, each * STRETCH);
    const from = reel ? reel.begin + reel.frames.length : Math.max(each * STRETCH, first);
    if (each >= low && from <= end) return { topic: aim.topic, from, to: end };
  }
  return null;
}

function keep({ topic, frames }) {
  const begin = frames[0].line.n;
  const key = `${topic} ${Math.floor(begin / STRETCH)}`;
  const reel = reels.get(key) || { begin, frames: [] };
  reels.delete(key);
  if (reel.begin + reel.frames.length === begin) {
    let data;
    for (const { line, lines, request, changes } of frames) {
      data = changes.reduce((whole, change) => changed(whole, change, 0), data);
      reel.frames.push({ data, entry: { ...line, lines, request, event: { at: line.at } } });
    }
  }
  reels.set(key, reel);
  while (reels.size > KEPT) reels.delete(reels.keys().next().value);
}

/** The value with one change; what does not change is shared with the value before. */
function changed(value, change, depth) {
  if (depth === change.path.length) {
    if (change.index === undefined) return change.value;
    const list = [...value];
    list.splice(change.index, change.removed || 0, ...(change.items || []));
    return list;
  }
  const copy = Array.isArray(value) ? [...value] : { ...value };
  const name = change.path[depth];
  if (change.gone && depth === change.path.length - 1) delete copy[name];
  else copy[name] = changed(copy[name], change, depth + 1);
  return copy;
}
