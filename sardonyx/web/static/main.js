// Begins: draws whenever something has changed, and listens while someone looks.

import { attend, start } from "./going.js";
import "./input.js";
import { askStream, keepScale, know } from "./loading.js";
import { showScheme } from "./settings.js";
import { frame } from "./shell.js";
import { hush, onDraw, redraw, store } from "./store.js";

const ASLEEP = 10000; // milliseconds

// A hidden page stops listening after a while, and begins again with the whole state.
let hiding = 0;
let ticked = Date.now();
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  ticked = Date.now();
  if (document.hidden) hiding = setTimeout(hush, 30000);
  else if (store.route) attend();
});

addEventListener("popstate", () => {
  store.pending = null;
  start(true);
});
onDraw(frame);
showScheme();
start(false);
if (!store.session) void know();
setInterval(() => {
  const passed = Date.now() - ticked;
  if (passed > ASLEEP && !document.hidden && store.route) {
    hush(); // the machine has slept, and its connections may be dead
    store.broken ??= ticked;
    attend();
  }
  ticked += passed;
  redraw();
  keepScale();
  void askStream();
}, 1000);
