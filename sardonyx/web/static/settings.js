// What the browser remembers of its user, and the list of keys.

import { h } from "./dom.js";

/** Keep a setting of the user. */
export function remember(key, value) {
  try {
    localStorage.setItem(`sardonyx-${key}`, value);
  } catch {
    // it remembers nothing: private windows may not
  }
}

/** What was remembered under a key. */
export function remembered(key) {
  try {
    return localStorage.getItem(`sardonyx-${key}`) || "";
  } catch {
    return "";
  }
}

/** Whether single keys act. */
export const keysOn = () => remembered("keys") !== "off";
/** Which colours are wanted: system, dark or light. */
export const scheme = () => remembered("scheme") || "system";

/** On to the next of them. */
export function nextScheme() {
  remember("scheme", { system: "dark", dark: "light", light: "system" }[scheme()]);
  showScheme();
}

/** Show the colours that are wanted. */
export function showScheme() {
  document.documentElement.dataset.scheme = scheme();
}

const KEYS = [
  ["g c", "the deployment"],
  ["g j", "all jobs"],
  ["g p", "capacity"],
  ["g d", "dead letters"],
  ["g l", "the log"],
  ["/", "filter the log"],
  ["t", "graph or table"],
  ["arrow keys on a task", "along the edges"],
  [", and .", "one entry back, on"],
  ["[ and ]", "to what stands out before, after"],
  ["p", "play, stop; rests take a second"],
  ["n", "back to now"],
  ["y", "copy the address"],
  ["?", "this list"],
  ["Esc", "close"],
];

/** The list of keys. */
export function help() {
  return h(
    "section",
    { class: "panel", "aria-labelledby": "keys" },
    h("h2", { id: "keys" }, "Keys"),
    h(
      "dl",
      null,
      KEYS.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)]),
    ),
    h("label", null, h("input", { type: "checkbox", "data-keys": "", checked: keysOn() }), " single keys work"),
  );
}
