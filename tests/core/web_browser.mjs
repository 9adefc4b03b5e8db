// A browser with just what the pages' scripts use: nodes, an address, a clock that only the test moves, and a server whose answers
// the test gives. `web_play.mjs` plays one test in it.

const XHTML = "http://www.w3.org/1999/xhtml";

class Knot {
  childNodes = [];
  parentNode = null;

  get firstChild() {
    return this.childNodes[0] || null;
  }

  get nextSibling() {
    const all = this.parentNode.childNodes;
    return all[all.indexOf(this) + 1] || null;
  }

  get textContent() {
    return this.childNodes.map((each) => each.textContent).join("");
  }

  insertBefore(node, next) {
    node.remove();
    this.childNodes.splice(next ? this.childNodes.indexOf(next) : this.childNodes.length, 0, node);
    node.parentNode = this;
  }

  get isConnected() {
    return this === body || Boolean(this.parentNode?.isConnected);
  }

  /** As in a browser, what is removed, or moved, has the focus no more. */
  remove() {
    if (this.contains(document.activeElement)) document.activeElement = body;
    if (this.parentNode) this.parentNode.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1);
    this.parentNode = null;
  }

  /** All elements below this one that have this tag. */
  all(tag) {
    return this.childNodes.flatMap((each) => [...(each.localName === tag ? [each] : []), ...each.all(tag)]);
  }

  querySelector(tag) {
    return this.all(tag)[0] || null;
  }

  contains(node) {
    return node === this || this.childNodes.some((each) => each.contains(node));
  }
}

class Text extends Knot {
  nodeType = 3;

  constructor(data) {
    super();
    this.data = data;
  }

  get textContent() {
    return this.data;
  }
}

class Element extends Knot {
  nodeType = 1;
  #value = "";
  checked = false;
  selected = false;
  attributes = new Map();
  style = { setProperty: () => {}, removeProperty: () => {} };

  constructor(tag, space) {
    super();
    Object.assign(this, { localName: tag, tagName: tag.toUpperCase(), namespaceURI: space });
  }

  /** As in a browser, that of an option without one is its text. */
  get value() {
    return this.localName === "option" ? (this.getAttribute("value") ?? this.textContent) : this.#value;
  }

  set value(value) {
    if (this.localName === "option") this.setAttribute("value", value);
    else this.#value = String(value);
  }

  get dataset() {
    const named = [...this.attributes].filter(([name]) => name.startsWith("data-"));
    return Object.fromEntries(named.map(([name, value]) => [name.slice(5), value]));
  }

  getAttribute(name) {
    return this.attributes.has(name) ? this.attributes.get(name) : null;
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }

  removeAttribute(name) {
    this.attributes.delete(name);
  }

  focus() {
    document.activeElement = this;
  }

  showModal() {
    this.open = true;
    this.before = document.activeElement;
    document.activeElement = this;
  }

  close() {
    this.open = false;
    document.activeElement = this.before;
    this.onclose?.();
  }

  /** Itself, if its tag is one of these; what stands in brackets is left out of account. */
  closest(selectors) {
    return selectors.split(",").some((each) => each.trim().split(/[:[]/)[0] === this.localName) ? this : null;
  }
}

const heard = {};
const hears = (name, call) => (heard[name] ||= []).push(call);

/** Let something happen that scripts listen to. */
export async function happen(name, target = document.body, more = {}) {
  for (const call of heard[name] || []) call({ target, preventDefault: () => {}, ...more });
  await settled();
}

/** Press a button, or follow a link. */
export async function press(element) {
  if (element.onclick) element.onclick();
  else await happen("click", element);
  await pass(20);
}

export const body = new Element("body", XHTML);
let address = new URL("http://pages/");
const visited = [];
const move = (_state, _title, to) => (address = new URL(to, address));
const push = (...given) => (visited.push(address), move(...given));
const memory = new Map();
Object.defineProperty(globalThis, "navigator", { value: {}, configurable: true, writable: true });
Object.assign(globalThis, {
  Node: { ELEMENT_NODE: 1, TEXT_NODE: 3 },
  document: {
    body,
    hidden: false,
    activeElement: body,
    documentElement: { dataset: {}, classList: { toggle: () => {} } },
    addEventListener: hears,
    createElement: (tag) => new Element(tag, XHTML),
    createElementNS: (space, tag) => new Element(tag, space),
    createTextNode: (data) => new Text(data),
    getElementById: (id) => {
      const named = (node) =>
        node.childNodes.map((each) => (each.attributes?.get("id") === id ? each : named(each))).find(Boolean);
      return named(body) || null;
    },
    querySelector: (tag) => body.querySelector(tag),
  },
  addEventListener: hears,
  scrollTo: () => {},
  history: { state: null, pushState: push, replaceState: move },
  localStorage: { getItem: (key) => memory.get(key) || null, setItem: (key, value) => memory.set(key, value) },
  location: {
    get href() {
      return address.href;
    },
    get hash() {
      return address.hash;
    },
    get pathname() {
      return address.pathname;
    },
    get search() {
      return address.search;
    },
  },
});

// The clock

const turn = setImmediate;
const timers = new Map();
let now = 1_800_000_000_000; // always the same, so that no test depends on when it is played
let numbered = 0;
const later = (call, after, every) => (timers.set(++numbered, { call, at: now + (after || 0), every }), numbered);
Date.now = () => now;
globalThis.setTimeout = (call, after) => later(call, after);
globalThis.setInterval = (call, every) => later(call, every, every);
globalThis.clearTimeout = globalThis.clearInterval = (id) => timers.delete(id);
globalThis.requestAnimationFrame = (call) => later(call, 16);

/** Until nothing goes on but timers. */
async function settled() {
  for (let each = 0; each < 20; each++) await new Promise((done) => turn(done));
}

/** Let time pass, in milliseconds. */
export async function pass(milliseconds) {
  const end = now + milliseconds;
  for (;;) {
    await settled();
    const [id, next] = [...timers].sort(([, one], [, other]) => one.at - other.at)[0] || [];
    if (!next || next.at > end) break;
    now = Math.max(now, next.at);
    if (next.every) next.at += next.every;
    else timers.delete(id);
    next.call();
  }
  now = end;
}

/** Let the machine sleep for a time, in milliseconds, in which no timer goes on. */
export function sleep(milliseconds) {
  now += milliseconds;
  for (const each of timers.values()) each.at += milliseconds;
}

// The server

/** By how many seconds its clock is ahead. */
export const clock = { ahead: 0 };
/** By path, the answer as data or as a text; or what gives it, or a promise of it, from the whole address. */
export const answers = { "/session": { name: "ana", role: "operator", acts: true } };
/** The addresses that were asked for, without streams. */
export const asked = [];
/** The streams that were asked for. */
export const streams = [];

/** An answer that the test gives when it wants to. */
export function promised() {
  const one = {};
  one.promise = new Promise((give, fail) => Object.assign(one, { give, fail }));
  return one;
}

class Stream {
  over = false;

  constructor(path, signal) {
    this.topics = new URL(path, address).searchParams.get("topics");
    this.body = new ReadableStream({
      start: (control) => (this.control = control),
      cancel: () => (this.over = true),
    });
    signal.addEventListener("abort", () => {
      if (!this.over) this.control.error(signal.reason);
      this.over = true;
    });
  }

  /** Say a text as it is. */
  async say(text) {
    this.control.enqueue(new TextEncoder().encode(text));
    await pass(20);
  }

  /** Send the state of a topic. */
  async send(topic, data, event = "state") {
    await this.say(`id: 1\nevent: ${event}\ndata: ${JSON.stringify({ topic, data })}\n\n`);
  }
}

const headers = { get: (name) => (name === "date" ? new Date(now + 1000 * clock.ahead).toUTCString() : null) };

/** As in a browser, an answer whose attempt is ended is an error. */
const ended = (signal) => new Promise((_, fail) => signal.addEventListener("abort", () => fail(signal.reason)));

globalThis.fetch = async (path, { signal }) => {
  if (path.startsWith("/api/v1/stream") && !answers["/stream"]) {
    const made = new Stream(path, signal);
    streams.push(made);
    return { ok: true, status: 200, headers, body: made.body };
  }
  const wanted = path.replace("/api/v1", "");
  asked.push(wanted);
  const found = answers[wanted.split("?")[0]];
  const given = await Promise.race([typeof found === "function" ? found(wanted) : found, ended(signal)]);
  const answer = given === undefined ? { code: "SX-WEB-PATH", title: wanted, status: 404 } : given;
  const status = answer.status || (answer.code ? 500 : 200);
  const text = typeof answer === "string" ? answer : JSON.stringify(answer);
  return { ok: status === 200, status, headers, text: async () => text };
};

/** Begin at this address. */
export async function open(to) {
  address = new URL(to, address);
  const app = new Element("div", XHTML);
  app.setAttribute("id", "app");
  body.insertBefore(app, null);
  await import("./main.js");
  await pass(20);
}

/** The text of the page. */
export const text = () => body.textContent;

/** The button or link that says this. */
export const named = (word) => [...body.all("button"), ...body.all("a")].find((each) => each.textContent.trim() === word);

/** Follow an address within the pages. */
export async function follow(to) {
  const link = new Element("a", XHTML);
  link.setAttribute("data-route", "");
  link.setAttribute("href", to);
  await press(link);
}

/** Go back to where one was. */
export async function back() {
  address = visited.pop();
  await happen("popstate");
  await pass(20);
}

/** Leave the page, and come back after a time, in milliseconds. */
export async function away(milliseconds) {
  document.hidden = true;
  await happen("visibilitychange");
  await pass(milliseconds);
  document.hidden = false;
  await happen("visibilitychange");
  await pass(20);
}
