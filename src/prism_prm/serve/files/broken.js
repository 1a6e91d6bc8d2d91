// Results that cannot be read, with the error.

import { h, replace } from "./dom.js";

export const brokenView = { kind: "broken", tab: "Problems", render };

function render(root, found) {
  replace(root, h("p", { class: "problem", dir: "auto" }, found.message));
}
