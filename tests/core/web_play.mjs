// Plays one test of the pages' scripts: its text and its data come on stdin, what it returns goes to stdout.

import { readFileSync, writeSync } from "node:fs";
import * as page from "./web_browser.mjs";

const { script, given } = JSON.parse(readFileSync(0, "utf8"));
const Played = Object.getPrototypeOf(async () => {}).constructor;
const found = await new Played("page", "given", "load", script)(page, given, (name) => import(`./${name}`));
writeSync(1, JSON.stringify(found === undefined ? null : found));
process.exit(0);
