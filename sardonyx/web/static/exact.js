// Reads and writes JSON with all digits of its integers: a browser's own numbers hold 15 of them, and keys of rows may have 19.

const LONG = /[[:,]-?\d{16,}[\],}]/;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

/** What marks integers among texts while they are read or written: no text of `json` holds it. */
function markFor(json) {
  for (;;) {
    const mark = `integer ${String(Math.random()).slice(2)}: `;
    if (!json.includes(mark)) return mark;
  }
}

const isLong = (token) => /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token));

/** The value of a JSON text. Integers that a number cannot hold are `BigInt`s. */
export function parsed(text) {
  const rounded = JSON.parse(text);
  if (!LONG.test(text)) return rounded;
  const mark = markFor(JSON.stringify(rounded)); // here no letter is written as an escape
  const marked = text.replace(TOKENS, (token) => (isLong(token) ? `"${mark}${token}"` : token));
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  );
}

/** The JSON text of a value. */
export function written(value, indent) {
  const json = (integer) => JSON.stringify(value, (_, each) => (typeof each === "bigint" ? integer(each) : each), indent);
  const mark = markFor(json(() => 0));
  return json((each) => `${mark}${each}`).replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}
