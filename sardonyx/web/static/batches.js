// The last batches of a task, as its peers tell.

import { h } from "./dom.js";
import { table, when } from "./parts.js";
import { duration, number } from "./text.js";

/** The last batches of a task, with where their time went. */
export function batches(known, task) {
  const heading = h("h3", null, "Last batches");
  if (!known || known.task !== task) return heading;
  if (!known.items.length)
    return [
      heading,
      h("p", { class: "empty" }, known.problem || "Its peers have told about none in the last 15 minutes."),
    ];
  const longest = Math.max(...known.items.map((each) => took(each)), 0.001);
  return [
    heading,
    table(
      `Last batches of ${task}`,
      ["ended", "peer", ">rows in", ">rows out", ">took", "where the time went", "outcome"],
      known.items.map((each) =>
        h(
          "tr",
          { key: `${each.peer} ${each.at}` },
          h("th", { scope: "row" }, when(each.at, true)),
          h("td", null, each.peer),
          h("td", { class: "r" }, number(each.rows_in || 0)),
          h("td", { class: "r" }, number(each.rows_out || 0)),
          h("td", { class: "r" }, duration(took(each))),
          h("td", null, steps(each, longest)),
          h("td", { class: each.outcome === "committed" ? "wrap" : "wrap warn" }, [
            each.outcome,
            each.skipped ? ` · ${number(each.skipped)} skipped` : "",
            each.dead ? ` · ${number(each.dead)} dead` : "",
            each.late ? ` · ${number(each.late)} late` : "",
            each.cause ? `: ${each.cause}` : "",
          ]),
        ),
      ),
      "",
    ),
    known.problem ? h("p", { class: "mut" }, known.problem) : null,
  ];
}

/** Seconds that a batch took, without waiting for rows. */
export const took = (batch) =>
  Object.entries(batch.seconds || {}).reduce((sum, [step, spent]) => (step === "wait" ? sum : sum + spent), 0);

function steps(batch, longest) {
  const parts = Object.entries(batch.seconds || {}).filter(([step]) => step !== "wait");
  const told = parts.map(([step, spent]) => `${step} ${Math.round(spent * 1000)} ms`).join(", ");
  return h(
    "span",
    { class: "steps", title: told },
    h("span", { class: "away" }, told),
    parts.map(([step, spent]) =>
      h("i", { key: step, "data-step": step, "aria-hidden": "true", style: { width: `${(100 * spent) / longest}%` } }),
    ),
  );
}
