// Begins: draws whenever something has changed, and listens while someone looks.

import { attend, start } from "./going.js";
import "./input.js";
import { askStream, know } from "./loading.js";
import { showScheme } from "./settings.js";
import { frame } from "./shell.js";
import { hush, onDraw, redraw, store } from "./store.js";

// A hidden page stops listening after a while, and begins again with the whole state.
let hiding = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
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
  redraw();
  void askStream();
}, 1000);
