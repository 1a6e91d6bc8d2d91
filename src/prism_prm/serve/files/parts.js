// Small parts that several views share.

import { field, h, replace } from "./dom.js";

// Facts as terms and values: facts(list, [["Kept", "12"], …]).
export function drawFacts(list, pairs) {
  replace(list, pairs.map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, text))));
}

// ✓ right, ✗ wrong, or the `unknown` text.
export function verdict(isRight, unknown = "not judged") {
  if (isRight === null || isRight === undefined) return h("p", { class: "verdict" }, unknown);
  const mark = h("span", { class: `mark ${isRight ? "right" : "wrong"}`, "aria-hidden": "true" }, isRight ? "✓" : "✗");
  return h("p", { class: "verdict" }, mark, isRight ? "right" : "wrong");
}

// The beginning of a text.
export function brief(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// The same as one line.
export function line(text, most) {
  return brief(text.replace(/\s+/g, " ").trim(), most);
}

// A slider over indices with a text for the current one: {element, show(at, last, text)}.
export function slider(label, moved) {
  const input = h("input", { type: "range", min: "0", step: "1", oninput: () => moved(Number(input.value)) });
  const output = h("output", { class: "at" });
  const element = field(label, input);
  element.append(output);
  const show = (at, last, text) => {
    input.max = String(last);
    input.value = String(at);
    input.disabled = last === 0;
    input.setAttribute("aria-valuetext", text);
    replace(output, text);
  };
  return { element, show };
}

// Call go(-1) and go(1) on arrow keys while a view is shown, except where they have another meaning.
export function onArrows(root, go) {
  function pressed(event) {
    if (!root.isConnected) return document.removeEventListener("keydown", pressed);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const hasOther = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
    if (!by || hasOther || event.target.closest?.("input, select, textarea") || scrollsSideways(event.target)) return;
    event.preventDefault();
    go(by);
  }
  document.addEventListener("keydown", pressed);
}

function scrollsSideways(target) {
  for (let at = target; at instanceof Element && at !== document.body; at = at.parentElement) {
    if (at.scrollWidth > at.clientWidth && ["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
  }
  return false;
}

// Draw again when the width changes.
export function onWidth(element, draw) {
  let width = element.clientWidth;
  const watch = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  watch.observe(element);
}
