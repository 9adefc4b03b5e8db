// Numbers, times and durations as people read them. What is not known is a dash, never a made-up number.

export const UNKNOWN = "—";

/** A count with separators. */
export function number(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return (typeof value === "bigint" ? value : Math.round(value)).toLocaleString("en-US");
}

/** A number in few characters: 812, 8.1k, 2.4M. */
export function short(value) {
  const size = Math.abs(value);
  if (size < 10 && size % 1 > 0.05) return value.toFixed(1);
  if (size < 1000) return String(Math.round(value));
  if (size < 1e6) return `${(value / 1e3).toFixed(size < 1e4 ? 1 : 0)}k`;
  return size < 1e9 ? `${(value / 1e6).toFixed(1)}M` : `${(value / 1e9).toFixed(1)}G`;
}

/** A rate. */
export function rate(value) {
  return value === null || value === undefined ? `${UNKNOWN}/s` : `${short(value)}/s`;
}

/** A share of 1, in hundredths. */
export const share = (value) => (value === null || value === undefined ? UNKNOWN : `${Math.round(100 * value)} %`);

/** A duration as the command line writes it: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d 2 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 10) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const all = Math.round(seconds);
  const minutes = Math.floor(all / 60);
  if (!minutes) return `${all} s`;
  const hours = Math.floor(minutes / 60);
  if (!hours) return `${minutes} min ${all % 60} s`;
  const days = Math.floor(hours / 24);
  return days ? `${days} d ${hours % 24} h` : `${hours} h ${minutes % 60} min`;
}

const two = (value) => String(value).padStart(2, "0");

/** Whether a browser can show this time: a user may have written any number into a record. */
export const isTime = (at) => Math.abs(at) <= 8.64e12;

/** The time of day; with the date if that is not today. */
export function clock(at, fine = false) {
  if (at === null || at === undefined) return UNKNOWN;
  if (!isTime(at)) return "not a time";
  const when = new Date(at * 1000);
  const day =
    when.toDateString() === new Date().toDateString()
      ? ""
      : `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} `;
  const ms = fine ? `.${String(when.getMilliseconds()).padStart(3, "0")}` : "";
  return `${day}${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}${ms}`;
}

/** A moment with its date and zone, for a description. */
export function moment(at) {
  return at === null || at === undefined ? "not known" : new Date(at * 1000).toString();
}

/** What is unread, with how well that is known: `~` an estimate, `≤` at most. */
export function unread(records, precision) {
  const mark = records === null || records === undefined ? "" : { estimate: "~", "at-most": "≤ " }[precision] || "";
  return mark + number(records);
}

/** One of them, or many. */
export function counted(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many || `${one}s`}`;
}
