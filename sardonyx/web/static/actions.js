// What an operator may do: the buttons, the question before anything is done, and the form that asks for a token.

import { h } from "./dom.js";
import { route } from "./parts.js";
import { act, link, problemOf, redraw, store } from "./store.js";
import { counted, number } from "./text.js";

const DEEDS = {
  suspend: {
    title: (job) => `Suspend ${job}?`,
    text: "All its peers leave after the batch in hand. Its queues, positions and state stay until it is resumed.",
  },
  resume: { title: (job) => `Resume ${job}?`, text: "It gets peers again, and goes on where it was." },
  stop: {
    title: (job) => `Stop ${job}?`,
    text:
      "Its inputs end at what is committed. What they have read goes through all its tasks, and then the job ends. " +
      "Windows that are open give no result. A new version of it can go on from there, with these windows and all states.",
  },
  kill: {
    title: (job) => `Kill ${job}?`,
    text:
      "It ends at once, and cannot go on. Batches in hand are dropped. What was committed stays; " +
      "rows that are unread are not processed.",
    bad: true,
  },
};

const button = (text, wish) => h("button", { type: "button", onclick: () => wants(wish), key: text }, text);

/** The buttons of a job that runs. */
export function jobActions(data) {
  const { job, graph } = data;
  if (!store.session || !store.session.acts || !data.live || job.ended_at !== null) return null;
  const names = [job.suspended ? "resume" : "suspend", graph.bounded || job.stopping ? "" : "stop", "kill"];
  return h(
    "span",
    { class: "row", role: "group", "aria-label": `What you can do with ${job.id}` },
    names.filter(Boolean).map((name) => {
      const { title, text, bad } = DEEDS[name];
      return button(name, { name, path: `/jobs/${encodeURIComponent(job.id)}/${name}`, title: title(job.id), text, bad });
    }),
  );
}

/** The button that redoes the open letters of a task; null if one may not. */
export function redoAction(job, task, waiting) {
  if (!store.session || !store.session.acts) return null;
  return button(`redo ${waiting === null ? "those that are open" : number(waiting)}`, {
    name: "redo",
    path: `/dead-letters/${encodeURIComponent(job)}/${encodeURIComponent(task)}/redo`,
    title: `Redo dead letters of ${task}?`,
    text:
      `A new job runs the records of ${waiting === null ? "all open letters" : counted(waiting, "letter")} through ` +
      `${task} and the tasks after it, with the code that ${job} has. A letter is redone once.`,
  });
}

function wants(wish) {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // a page behind a plain proxy has no randomUUID
  const key = [...bytes].map((each) => each.toString(16).padStart(2, "0")).join("");
  store.wish = { ...wish, key, busy: false, asked: false, problem: null, done: null };
  redraw();
}

async function carryOut() {
  const wish = store.wish;
  Object.assign(wish, { busy: true, asked: true, problem: null });
  redraw();
  try {
    wish.done = await act(wish.path, wish.key);
  } catch (error) {
    wish.problem = problemOf(error);
    if (wish.problem.code === "SX-JOB-STATE-LOST")
      Object.assign(wish, { path: `${wish.path}?discard_state=true`, name: "stop, and lose it", bad: true, asked: false });
  }
  wish.busy = false;
  redraw();
}

function leave() {
  const dialog = document.querySelector("dialog");
  store.wish = null;
  if (dialog?.open) dialog.close(); // and the focus goes back to where it was
  redraw();
}

/** The question before anything is done, and what became of it. */
export function question() {
  const { wish } = store;
  if (!wish) return null;
  return h(
    "dialog",
    { key: `wish ${wish.key}`, class: wish.bad ? "bad" : "", "aria-labelledby": "wish", onclose: () => store.wish === wish && leave() },
    h("h2", { id: "wish" }, wish.title),
    h("p", null, wish.text),
    h("p", { class: "mut" }, `The log will say that ${store.session.name} asked for it.`),
    h("div", { role: "status" }, became(wish)),
    h(
      "p",
      { class: "row" },
      wish.done
        ? null
        : h(
            "button",
            { type: "button", class: wish.bad ? "bad" : "", disabled: wish.busy, onclick: () => void carryOut(), key: "do" },
            wish.busy ? "asking the coordinator …" : wish.name,
          ),
      h("button", { type: "button", onclick: leave, key: "leave", autofocus: true }, wish.asked ? "close" : "do nothing"),
    ),
  );
}

function became({ problem, done, name }) {
  if (problem)
    return h("p", { class: "why bad" }, h("b", null, problem.title), problem.fix ? h("span", null, ` ${problem.fix}`) : null);
  if (!done) return null;
  if (done.n === null)
    return h("p", { class: "why warn" }, "It is asked for, and no coordinator has taken it in yet. It will be done when one does.");
  return h(
    "p",
    { class: "fine" },
    "✓ The coordinator has taken it in: ",
    h("a", { href: `/log/${done.n}`, ...route, onclick: leave }, `entry ${number(done.n)}`),
    name === "redo" ? [", job ", h("a", { href: link(`/jobs/${done.job}`), ...route, onclick: leave }, done.job)] : null,
    ".",
  );
}

/** Show the question over the page, with the focus in it. */
export function showQuestion() {
  const dialog = document.querySelector("dialog");
  if (dialog && !dialog.open) dialog.showModal();
  if (dialog && store.wish.done && !dialog.contains(document.activeElement))
    dialog.querySelector("button").focus(); // the one that was pressed is gone
}

/** The form that asks for a token. */
export function login() {
  return h(
    "form",
    { class: "panel", "data-login": "", key: "login" },
    h("h1", null, "These pages ask for a token"),
    h("p", null, "It stands beside your name in the file with which ", h("code", null, "sardonyx web --tokens"), " was started."),
    h(
      "p",
      { class: "row" },
      h("label", { for: "token" }, "Token "),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true }),
      h("button", { type: "submit" }, "look"),
    ),
    h("div", { role: "status" }, store.refused ? h("p", { class: "why bad" }, "This token is not known here.") : null),
  );
}
