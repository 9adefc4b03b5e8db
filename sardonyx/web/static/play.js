// Plays the log: as fast as it went, or some times as fast; in rests it does not wait.

import { h } from "./dom.js";
import { filmed, filming, prepare, timeOf } from "./film.js";
import { remember, remembered } from "./settings.js";
import { redraw, store } from "./store.js";
import { duration } from "./text.js";

const REST = 1; // seconds for which a longer rest is shown
const FRAME = 0.04; // seconds for which an entry is shown at least; of several in that time, the last one
const BY_ENTRY = 0.25;
const WAIT = 0.1;
const SPEEDS = [
  ["1", "1 ×"],
  ["10", "10 ×"],
  ["100", "100 ×"],
  ["entries", "4 entries/s"],
];

const speed = () => (SPEEDS.some(([value]) => value === remembered("speed")) ? remembered("speed") : "10");

let timer = 0;

/** Stop playing. */
export function stop() {
  clearTimeout(timer);
  store.playing = false;
  store.rest = null;
}

/** Play from the entry that is shown, by `show`; from the beginning if that is the last one. */
export function play(shown, show) {
  store.playing = true;
  if (shown() >= store.standing.last) show(store.standing.first);
  tick(shown, show);
}

function tick(shown, show) {
  if (!store.playing) return;
  const later = (seconds, act = () => {}) => {
    timer = setTimeout(() => {
      store.rest = null;
      act();
      tick(shown, show);
    }, seconds * 1000);
    redraw();
  };
  const last = store.standing.last;
  const n = shown();
  if (n >= last) {
    stop();
    redraw();
    return;
  }
  if (document.hidden) {
    later(1);
    return;
  }
  const topic = filmed(store.route, store.data);
  const times = (each) => (each === last ? store.standing.at : timeOf(topic, each));
  if (times(n) === null || times(n + 1) === null) {
    void prepare(topic, n + 1);
    if (topic && filming()) later(WAIT);
    else later(BY_ENTRY, () => show(n + 1));
    return;
  }
  if (speed() === "entries") {
    later(BY_ENTRY, () => show(n + 1));
    return;
  }
  let [to, spent] = [n, 0];
  while (to < last && spent < FRAME && times(to + 1) !== null) {
    const gap = Math.max(times(to + 1) - times(to), 0);
    if (gap / Number(speed()) > REST) {
      if (to > n) break;
      later(REST, () => show(n + 1));
      store.rest = gap;
      return;
    }
    spent += gap / Number(speed());
    to += 1;
  }
  later(Math.max(spent, FRAME), () => show(to));
}

/** How fast it is played. */
export function speeds() {
  return h(
    "select",
    {
      id: "speed",
      "aria-label": "How many times as fast as it went the log is played; rests take a second",
      title: "how many times as fast as it went the log is played; rests take a second",
      onchange: (event) => {
        remember("speed", event.target.value);
        redraw();
      },
    },
    SPEEDS.map(([value, text]) => h("option", { value, selected: speed() === value }, text)),
  );
}

/** The rest that is being folded. */
export function resting() {
  return store.rest ? h("span", { class: "folded" }, `⋯ nothing for ${duration(store.rest)}`) : null;
}
