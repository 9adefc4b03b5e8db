// Draws a tree of plain objects, and changes only what differs from the last drawing. So focus, scrolling and selection stay.

const SVG = "http://www.w3.org/2000/svg";

/** An element: its tag, properties (attributes, `on...` handlers, `style` as an object, `key`) and children. */
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children };
}

const isShown = (child) => child !== null && child !== undefined && child !== false && child !== "";

/** Make the children of a node look like this list. Several may have one key: they keep their nodes in order. */
export function draw(parent, children) {
  const space = parent.namespaceURI === SVG ? SVG : null;
  const keyed = new Map();
  for (const node of parent.childNodes)
    if (node.sxKey !== undefined) keyed.get(node.sxKey)?.push(node) ?? keyed.set(node.sxKey, [node]);
  let here = parent.firstChild;
  for (const child of children.flat(Infinity).filter(isShown)) {
    let node =
      typeof child === "object" && child.props.key !== undefined ? (keyed.get(child.props.key) || []).shift() : here;
    if (!fits(node, child)) node = make(child, space);
    if (node === here) here = here.nextSibling;
    else parent.insertBefore(node, here);
    if (typeof child === "object") update(node, child);
    else if (node.data !== String(child)) node.data = String(child);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

function fits(node, child) {
  if (!node) return false;
  if (typeof child !== "object") return node.nodeType === Node.TEXT_NODE;
  return (
    node.nodeType === Node.ELEMENT_NODE && node.localName === child.tag.toLowerCase() && node.sxKey === child.props.key
  );
}

function make(child, space) {
  if (typeof child !== "object") return document.createTextNode(String(child));
  const node =
    space || child.tag === "svg" ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  node.sxKey = child.props.key;
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
