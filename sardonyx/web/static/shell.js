// The frame of every page: header, notices, what is in the middle, and the bar at the foot.

import { draw, h } from "./dom.js";
import { login, question, showQuestion } from "./actions.js";
import { capacityPage } from "./capacity.js";
import { go } from "./going.js";
import { ASKING } from "./loading.js";
import { changed, logPage } from "./log.js";
import { clusterPage, jobPage, jobsPage } from "./pages.js";
import { lettersPage, linkPage, pilePage } from "./rows.js";
import { here, store } from "./store.js";
import { streamPage } from "./stream.js";
import { help, scheme } from "./settings.js";
import { timeBar } from "./time.js";
import { clock, number } from "./text.js";

const app = document.getElementById("app");
const TITLES = { cluster: "Deployment", jobs: "Jobs", log: "Log", capacity: "Capacity", letters: "Dead letters" };
const WITHIN = { job: "jobs", stream: "jobs", link: "jobs", pile: "letters" };
const PAGES = {
  jobs: jobsPage,
  job: jobPage,
  stream: streamPage,
  link: linkPage,
  letters: lettersPage,
  pile: pilePage,
  capacity: capacityPage,
};

/** Draw everything. */
export function frame() {
  const { route, standing } = store;
  document.title = title();
  document.documentElement.classList.toggle("stale", stale());
  document.documentElement.classList.toggle("past", route.at !== null);
  const focused = document.activeElement;
  draw(app, [
    h("a", { class: "skip", href: "#main" }, "Skip to the content"),
    h(
      "header",
      { key: "header" },
      h("a", { class: "brand", href: "/", "data-route": "" }, h("span", { "aria-hidden": "true" }, "◈ "), "Sardonyx"),
      h(
        "nav",
        { "aria-label": "Pages" },
        [
          ["cluster", "/", "Deployment"],
          ["jobs", "/jobs", "Jobs"],
          ["capacity", "/capacity", "Capacity"],
          standing && standing.rows ? ["letters", "/dead-letters", "Dead letters"] : null,
          ["log", "/log", "Log"],
        ]
          .filter(Boolean)
          .map(([page, path, text]) =>
            h(
              "a",
              {
                href: path,
                key: page,
                "data-route": "",
                "aria-current": page === (WITHIN[route.page] || route.page) ? "page" : null,
              },
              text,
            ),
          ),
      ),
      h("span", { class: "grow" }),
      standing
        ? h(
            "span",
            { class: "mut wide" },
            standing.source === "file"
              ? `file ${standing.file} · deployment ${standing.deployment}`
              : `${standing.deployment} · ${standing.leader ? `leader ${standing.leader}` : "no leader"}`,
          )
        : null,
      state(),
      h(
        "button",
        { type: "button", "data-scheme": "", title: "dark, light, or as the system has it" },
        `${scheme()} colours`,
      ),
      h("button", { type: "button", "data-help": "", "aria-expanded": String(store.help) }, "? keys"),
    ),
    h(
      "main",
      { id: "main", tabindex: "-1", key: "main" },
      h("div", { role: "status", class: "notices" }, notices()),
      store.help ? help() : null,
      safely(content),
    ),
    h("div", { class: "away", "aria-live": "polite", key: "said" }, store.said),
    safely(() => timeBar(store.data, go)),
    question(),
  ]);
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true }); // it was moved
  showQuestion();
}

let complained = "";

/** A part of the page; if it cannot be made, why not: the other parts go on. */
function safely(make) {
  try {
    return make();
  } catch (error) {
    if (complained !== String(error)) console.error(error); // it is drawn each second
    complained = String(error);
    return h(
      "section",
      { class: "why bad", key: "broken" },
      h("h1", null, "This part of the page cannot be shown"),
      h("p", null, complained),
      h("p", null, "Reload the page. If that does not help, report this text with the address of the page."),
    );
  }
}

function title() {
  const { route } = store;
  const what =
    route.page === "job"
      ? `${store.data && store.data.job ? `${store.data.job.id} · ${store.data.job.status}` : route.job}`
      : route.page === "stream"
        ? `Task stream · ${route.job}`
      : route.page === "link"
        ? `${route.link} · ${route.job}`
        : route.page === "pile"
          ? `Dead letters of ${route.task} · ${route.job}`
          : TITLES[route.page];
  return `${what}${route.at !== null ? ` · after entry ${number(route.at)}` : ""} · Sardonyx`;
}

function stale() {
  const { route, broken, joining, standing } = store;
  return route.at === null && (broken !== null || (standing !== null && (joining || !standing.connected)));
}

function state() {
  const { standing, route } = store;
  if (route.at !== null) return h("span", { class: "state info" }, "◂ the past");
  if (!standing) return h("span", { class: "state mut" }, "…");
  if (store.joining && store.broken === null) return h("span", { class: "state mut" }, "… connecting");
  if (standing.source === "file") return h("span", { class: "state info" }, "a file");
  return stale() ? h("span", { class: "state bad" }, "✕ not live") : h("span", { class: "state ok" }, "● live");
}

function notices() {
  const { standing, route } = store;
  const all = [];
  if (store.broken !== null && route.at === null)
    all.push(
      h(
        "p",
        { class: "notice bad" },
        `Not live since ${clock(store.broken / 1000)}: ${store.why || "this page does not reach the server"}. `,
        "It tries again by itself; what it shows is as of then.",
      ),
    );
  else if (standing && !standing.connected && route.at === null)
    all.push(
      h(
        "p",
        { class: "notice bad" },
        `Not live since ${clock(standing.since)}: ${standing.problem}. `,
        "The server tries again by itself; what is shown is as of then.",
      ),
    );
  if (route.at !== null)
    all.push(
      h(
        "p",
        { class: "notice info" },
        `As of entry ${number(route.at)}${store.data && store.data.at ? `, ${clock(store.data.at, true)}` : ""}. `,
        "What was not recorded then is a dash. ",
        h(
          "a",
          { href: here({ at: "" }), "data-route": "" },
          standing && standing.source === "file" ? "To the end of the file" : "Back to now",
        ),
      ),
    );
  return all;
}

function content() {
  const { route, data, problem } = store;
  if (problem && problem.code === "SX-WEB-LOGIN") return login();
  if (problem) {
    return h(
      "section",
      { class: "why bad" },
      h("h1", null, problem.title),
      problem.code ? h("p", null, h("code", null, problem.code)) : null,
      problem.cause ? h("p", null, problem.cause) : null,
      problem.fix ? h("p", null, problem.fix) : null,
      h("p", null, h("button", { type: "button", "data-again": "" }, store.busy ? "asking …" : "try again")),
      route.page === "job" && route.at !== null
        ? h(
            "p",
            null,
            h("a", { href: `/log?job=${encodeURIComponent(route.job)}`, "data-route": "" }, "entries about it"),
          )
        : null,
    );
  }
  if (route.page === "log") return logPage();
  if (!data) return h("p", { class: "mut" }, ASKING.has(route.page) ? "Kafka is asked …" : "…");
  if (PAGES[route.page]) return PAGES[route.page](data);
  return [...clusterPage(data), changed()];
}
