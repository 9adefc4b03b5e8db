// The partitions that a task reads: how far it is in each of them.

import { h } from "./dom.js";
import { table } from "./parts.js";
import { duration, number, unread } from "./text.js";

const MOST = 200; // rows of the table

/** The partitions that a task reads, those that are furthest behind first. */
export function partitions(known, task) {
  const heading = h("h3", null, "Partitions");
  if (!known || known.task !== task) return null;
  if (!known.items.length) return known.problem ? [heading, h("p", { class: "empty" }, known.problem)] : null;
  const behind = (each) => (each.records === null ? Infinity : each.records);
  const sorted = [...known.items].sort((one, other) => behind(other) - behind(one) || order(one, other));
  return [
    heading,
    table(
      `Partitions that ${task} reads`,
      ["link", ">partition", ">committed", ">end", ">unread", ">oldest waits"],
      sorted.slice(0, MOST).map((each) =>
        h(
          "tr",
          { key: `${each.topic} ${each.partition}` },
          h("th", { scope: "row", title: each.topic }, each.link),
          h("td", { class: "r" }, number(each.partition)),
          h("td", { class: "r" }, number(each.committed)),
          h("td", { class: "r" }, number(each.end)),
          h("td", { class: "r" }, unread(each.records, each.precision)),
          h("td", { class: "r" }, each.records === 0 ? "0 s" : duration(each.seconds)),
        ),
      ),
      "",
    ),
    sorted.length > MOST
      ? h("p", { class: "mut" }, `and ${number(sorted.length - MOST)} that are less far behind`)
      : null,
  ];
}

const order = (one, other) =>
  one.link < other.link ? -1 : one.link > other.link ? 1 : one.partition - other.partition;
