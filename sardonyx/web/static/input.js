// What is done with the mouse and the keyboard.

import { go, start, visit } from "./going.js";
import { know, load, more } from "./loading.js";
import { keysOn, nextScheme, remember } from "./settings.js";
import { here, hush, redraw, say, store, useToken } from "./store.js";
import { nextMark, shown } from "./time.js";

document.addEventListener("click", (event) => {
  const target = event.target.closest("a, button, input");
  if (
    !target ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return;
  const { dataset } = target;
  if ("route" in dataset) {
    event.preventDefault();
    visit(target.getAttribute("href"));
  } else if ("table" in dataset) store.table = !store.table;
  else if ("help" in dataset) store.help = !store.help;
  else if ("scheme" in dataset && target.tagName === "BUTTON") nextScheme();
  else if ("keys" in dataset) remember("keys", target.checked ? "" : "off");
  else if ("again" in dataset) void load();
  else if ("more" in dataset) void more(dataset.more);
  redraw();
});

document.addEventListener("submit", (event) => {
  if ("login" in event.target.dataset) {
    event.preventDefault();
    useToken(new FormData(event.target).get("token").trim());
    hush();
    void know(true);
    start(false);
    return;
  }
  if (!("filter" in event.target.dataset)) return;
  event.preventDefault();
  const query = new URLSearchParams([...new FormData(event.target)].filter(([, value]) => value));
  visit(`${event.target.dataset.filter}?${query}`);
});

let leading = false;

document.addEventListener("keydown", (event) => {
  const inside = event.target.closest("input:not([type=range], [type=checkbox]), select, textarea");
  if (store.wish) return; // the dialog has the keys
  if (event.key === "Escape") {
    if (store.help) store.help = false;
    else if (store.route.page === "job" && store.route.task) visit(here({ task: "" }));
    redraw();
  }
  if (inside || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.key.startsWith("Arrow") && event.target.dataset && event.target.dataset.task) {
    walk(event);
    return;
  }
  if (!keysOn()) return;
  if (leading) {
    leading = false;
    const path = { c: "/", j: "/jobs", p: "/capacity", d: "/dead-letters", l: "/log" }[event.key];
    if (path) visit(path);
    return;
  }
  const acts = {
    g: () => (leading = true),
    "/": () => (store.route.page === "log" ? document.getElementById("filter-job").focus() : visit("/log")),
    t: () => (store.table = !store.table),
    "?": () => (store.help = !store.help),
    y: () => void copy(new URL(here({}), location.href).href),
    ",": () => go(shown() - 1),
    ".": () => go(shown() + 1),
    "[": () => nextMark(-1) && go(nextMark(-1).n),
    "]": () => nextMark(1) && go(nextMark(1).n),
    p: () => go("play"),
    n: () => store.route.at !== null && visit(here({ at: "" })),
  };
  const act = acts[event.key];
  if (!act || (!store.standing && event.key !== "g")) return;
  event.preventDefault();
  act();
  redraw();
});

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text); // a page without TLS from another machine has no clipboard
    say("address copied");
  } catch {
    say("address not copied: the browser does not let this page");
  }
}

/** To the nearest task in the direction of an arrow key, along the edges where there is one. */
function walk(event) {
  const nodes = store.data.graph.nodes;
  const from = nodes.find((node) => node.name === event.target.dataset.task);
  const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  const joined = new Set(
    store.data.graph.edges
      .map((edge) => (step[0] > 0 ? [edge.source, edge.target] : [edge.target, edge.source]))
      .filter(([one]) => one === from.name)
      .map(([, other]) => other),
  );
  const ahead = nodes.filter((node) =>
    step[0] ? joined.has(node.name) : node.x === from.x && (node.y - from.y) * step[1] > 0,
  );
  ahead.sort((one, other) => Math.abs(one.y - from.y) - Math.abs(other.y - from.y));
  if (!ahead.length) return;
  event.preventDefault();
  document.getElementById(`task-${ahead[0].name}`).focus();
}
