// Reads and writes JSON with all digits of its integers: a browser's own numbers hold 15 of them, and keys of rows may have 19.

const MARK = "\uE000"; // a letter that no text has: it is kept for private use
const LONG = /[[:,]-?\d{16,}[\],}]/;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

const exactly = (token) =>
  /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token;

/** The value of a JSON text. Integers that a number cannot hold are `BigInt`s. */
export function parsed(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  return JSON.parse(text.replace(TOKENS, exactly), (_, value) =>
    typeof value === "string" && value[0] === MARK ? BigInt(value.slice(1)) : value,
  );
}

/** The JSON text of a value. */
export function written(value, indent) {
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `${MARK}${each}` : each), indent);
  return text.replace(new RegExp(`"${MARK}(-?\\d+)"`, "g"), "$1");
}
