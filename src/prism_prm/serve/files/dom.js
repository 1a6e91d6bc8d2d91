// Create elements from plain values. Text always becomes text nodes: nothing in the page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

// h("button", {class: "primary", onclick: run, disabled: true}, "Score"): attributes and children that are false, null
// or undefined are omitted; a child may be a list.
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

// A form control with a label: field("Threshold", h("input", …)).
let numbered = 0;
export function field(label, control, hint) {
  control.id = control.id || `field-${++numbered}`;
  const note = hint && h("p", { class: "hint", id: `${control.id}-hint` }, hint);
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

// choose([["all", "All classes"], …], "all", (value) => …)
export function choose(options, chosen, changed) {
  const found = h("select", { onchange: () => changed(found.value) });
  refill(found, options, chosen);
  return found;
}

// Replace the options of a select, which keeps the focus.
const optionsOf = new WeakMap();
export function refill(select, options, chosen) {
  const known = JSON.stringify(options);
  if (optionsOf.get(select) !== known) {
    optionsOf.set(select, known);
    replace(select, options.map(([value, text]) => h("option", { value }, text)));
  }
  select.value = chosen;
}

// A button that keeps the focus while it is disabled: {element, turn(isOn)}.
export function steady(text, pressed) {
  let isOn = true;
  const element = h("button", { type: "button", onclick: () => isOn && pressed() }, text);
  const turn = (on) => {
    isOn = on;
    element.setAttribute("aria-disabled", String(!on));
  };
  return { element, turn };
}

// Untrusted text with its own direction and line breaks; a long text is shortened, with a button to show all.
const SHOWN = 4000;
export function words(text, className = "words") {
  const body = h("div", { class: className, dir: "auto" });
  if (text.length <= SHOWN + 500) {
    body.append(text);
    return body;
  }
  const isPair = /[\uD800-\uDBFF]/.test(text[SHOWN - 1]);
  const head = text.slice(0, isPair ? SHOWN - 1 : SHOWN);
  const more = h(
    "button",
    { type: "button", class: "quiet", onclick: () => replace(body, text) },
    `Show all ${count(text.length)} characters`,
  );
  body.append(head, "… ", more);
  return body;
}

export function count(number) {
  return number.toLocaleString("en-US");
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// A probability as percent; "–" means "no score".
export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`;
}

// Buttons for the pages of a long list; calls show(first, last) for the current page.
export function pager(total, size, show) {
  const last = Math.max(0, Math.ceil(total / size) - 1);
  const [previous, next] = [steady("Previous", () => go(at - 1)), steady("Next", () => go(at + 1))];
  const status = h("span", { "aria-live": "polite" });
  let at = 0;
  function go(page) {
    at = page;
    const first = at * size;
    const end = Math.min(total, first + size);
    show(first, end);
    previous.turn(at > 0);
    next.turn(at < last);
    replace(status, total ? `${count(first + 1)}–${count(end)} of ${count(total)}` : "none");
  }
  go(0);
  return h("div", { class: "pager", role: "group", "aria-label": "Pages" }, previous.element, status, next.element);
}
