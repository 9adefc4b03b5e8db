// Draws a tree of plain objects, and changes only what differs from the last drawing. So focus, scrolling and selection stay.

const SVG = "http://www.w3.org/2000/svg";

/** An element: its tag, properties (attributes, `on...` handlers, `style` as an object, `key`) and children. */
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children };
}

const isShown = (child) => child !== null && child !== undefined && child !== false && child !== "";

/** The children in one list, each with what it is known by from one drawing to the next: its key, or its place. So one that comes
or goes moves no other one to another node. */
function* listed(children, place = "#") {
  for (const [index, child] of children.entries()) {
    if (Array.isArray(child)) yield* listed(child, `${place}${index}.`);
    else if (isShown(child)) yield [child.props?.key === undefined ? `${place}${index}` : child.props.key, child];
  }
}

/** Make the children of a node look like this list. Several may have one key: they keep their nodes in order. */
export function draw(parent, children) {
  const space = parent.namespaceURI === SVG ? SVG : null;
  const known = new Map();
  for (const node of parent.childNodes) known.get(node.sxKey)?.push(node) ?? known.set(node.sxKey, [node]);
  const wanted = [...listed(children)].map(([key, child]) => {
    const old = known.get(key)?.shift();
    return [fits(old, child) ? old : make(child, space, key), child];
  });
  const kept = new Set(wanted.map(([node]) => node));
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
  let here = parent.firstChild;
  for (const [node, child] of wanted) {
    if (here && here !== node && here.nextSibling === node) {
      parent.insertBefore(here, node.nextSibling); // it moves down: the others need not move up, and keep focus and scrolling
      here = node;
    }
    if (node === here) here = here.nextSibling;
    else parent.insertBefore(node, here);
    if (typeof child === "object") update(node, child);
    else if (node.data !== String(child)) node.data = String(child);
  }
}

function fits(node, child) {
  if (!node) return false;
  if (typeof child !== "object") return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === child.tag.toLowerCase();
}

function make(child, space, key) {
  const node =
    typeof child !== "object"
      ? document.createTextNode(String(child))
      : space || child.tag === "svg"
        ? document.createElementNS(SVG, child.tag)
        : document.createElement(child.tag);
  node.sxKey = key;
  node.sxProps = {};
  return node;
}

function update(node, { props, children }) {
  const before = node.sxProps || {};
  for (const name of Object.keys(before)) if (!(name in props)) set(node, name, null, before[name]);
  for (const [name, value] of Object.entries(props)) set(node, name, value, before[name]);
  node.sxProps = props;
  draw(node, children);
}

function set(node, name, value, before) {
  if (name === "key") return;
  if (name.startsWith("on")) {
    node[name] = value;
  } else if (name === "style") {
    for (const each of Object.keys(before || {})) if (!value || !(each in value)) node.style.removeProperty(each);
    for (const [each, text] of Object.entries(value || {}))
      if (!before || before[each] !== text) node.style.setProperty(each, text);
  } else if (name === "checked") {
    node.checked = Boolean(value);
  } else if (name === "value") {
    // A field keeps what one types into it until another value is wanted; a slider stands where the page puts it.
    if (value !== before || node.type === "range") node.value = value === null ? "" : value;
  } else if (name === "selected") {
    if (value !== before) node.selected = Boolean(value);
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}
