// A solution with the scores of its steps by one or more PRMs. Verdicts are shown by color, number and mark; each is
// enough by itself.

import { field, h, percent, replace, words } from "./dom.js";
import { drawFacts } from "./parts.js";

// A step counts as right above the threshold; null: no score.
export function isRight(probability, threshold) {
  return probability === null || probability === undefined ? null : probability > threshold;
}

export function firstBelow(probabilities, threshold) {
  return probabilities.findIndex((one) => isRight(one, threshold) === false);
}

// For each step the distance between the PRMs' scores, and whether their verdicts are opposite. Opposite verdicts rank
// first, then the distance, since thresholds differ between PRMs; −1 if fewer than two PRMs have a score.
export function disagreements(prms, length, thresholds) {
  return Array.from({ length }, (_, number) => {
    const own = prms
      .map((prm, which) => ({ score: prm.probabilities?.[number], threshold: thresholds[which] }))
      .filter(({ score }) => typeof score === "number");
    if (own.length < 2) return { by: -1, isOpposite: false, rank: -1 };
    const by = Math.max(...own.map(({ score }) => score)) - Math.min(...own.map(({ score }) => score));
    const isOpposite = new Set(own.map(({ score, threshold }) => isRight(score, threshold))).size > 1;
    return { by, isOpposite, rank: by + (isOpposite ? 1 : 0) };
  });
}

// What the numbers mean, and what the bars show.
export const MEANING =
  "A percentage is the PRM's estimate of the probability that a step is right, given the problem and the steps before it: it can be wrong.";

export function barKey() {
  const part = (name) => h("span", { class: name, "aria-hidden": "true" });
  return h(
    "ul",
    { class: "legend" },
    h("li", {}, h("span", { class: "track", "aria-hidden": "true" }, part("fill")), "bar: probability, from 0 to 100 %"),
    h("li", {}, part("tick"), "vertical line: threshold"),
  );
}

// Steps are [{text, after, label}], `after` only where a step does not follow the one before it; prms are
// [{name, probabilities}]. Returns {element, judge(thresholds), arrange(order)}. `flagged` {at, text} marks a
// step instead of the first one below the threshold, which only a chain has, where each step follows the one before it.
export function stepList(steps, prms, { flagged = null, labeled = false, isChain = true } = {}) {
  const judges = [];
  const rows = steps.map((step, number) => {
    const cells = prms.map((prm, which) => {
      const cell = scoreCell(prm.name, prm.probabilities?.[number]);
      judges.push((thresholds) => cell.judge(thresholds[which]));
      return cell.element;
    });
    const flags = h("span", { class: "flags" });
    const row = h(
      "li",
      { class: "step" },
      h("span", { class: "number" }, h("span", { class: "hidden" }, "Step "), String(number + 1)),
      h("div", { class: "text" }, words(step.text), step.after && h("p", { class: "after" }, step.after), flags),
      labeled && h("span", { class: "label" }, truth(step.label)),
      cells,
    );
    judges.push((_, firsts, apart) => {
      const first = prms.filter((_, which) => firsts[which] === number);
      const whose = prms.length > 1 ? ` of ${first.map((prm) => prm.name).join(" and ")}` : "";
      const text = flagged ? flagged.at === number && flagged.text : first.length > 0 && `first below threshold${whose}`;
      const { isOpposite } = apart[number];
      row.classList.toggle("flagged", Boolean(text));
      row.classList.toggle("apart", isOpposite);
      replace(
        flags,
        text && h("span", { class: "flag" }, text),
        isOpposite && h("span", { class: "flag disagree" }, "PRMs disagree"),
      );
    });
    return row;
  });
  const list = h("ol", { class: "steps", role: "list" }, rows);
  const head = h(
    "div",
    { class: "steps-head", "aria-hidden": "true" },
    h("span", {}, "Step"),
    labeled && h("span", {}, "Label"),
    prms.map((prm) => h("span", { class: "who", dir: "auto" }, prm.name)),
  );
  const element = h("div", { class: labeled ? "solution labeled" : "solution", "--prms": String(prms.length) }, head, list);
  const judge = (thresholds) => {
    const firsts = prms.map((prm, which) => isChain && prm.probabilities && firstBelow(prm.probabilities, thresholds[which]));
    const apart = disagreements(prms, steps.length, thresholds);
    judges.forEach((one) => one(thresholds, firsts, apart));
  };
  return {
    element,
    judge,
    arrange: (order) => replace(list, order.map((number) => rows[number])),
  };
}

function truth(label) {
  if (label === 1) return [h("span", { class: "mark right", "aria-hidden": "true" }, "✓"), "right"];
  if (label === 0) return [h("span", { class: "mark wrong", "aria-hidden": "true" }, "✗"), "wrong"];
  return h("span", { class: "none" }, "not judged");
}

// One PRM's score of a step.
export function scoreCell(name, probability) {
  const mark = h("span", { class: "mark", "aria-hidden": "true" });
  const spoken = h("span", { class: "hidden" });
  const tick = h("span", { class: "tick" });
  const hasScore = typeof probability === "number";
  const element = h(
    "span",
    { class: "score", "--right": hasScore ? `${(100 * probability).toFixed(1)}%` : "0%" },
    h("span", { class: "who", dir: "auto" }, name),
    mark,
    h("span", { class: "value" }, percent(probability)),
    spoken,
    hasScore && h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill" }), tick),
  );
  const judge = (threshold) => {
    const right = isRight(probability, threshold);
    element.classList.toggle("is-wrong", right === false);
    mark.className = `mark ${right === null ? "" : right ? "right" : "wrong"}`;
    replace(mark, right === null ? "·" : right ? "✓" : "✗");
    replace(spoken, right === null ? " no score" : right ? " above threshold" : " below threshold");
    tick.style.setProperty("--at", `${100 * threshold}%`);
  };
  return { element, judge };
}

// A card for each PRM with a slider for its threshold: calls onMove() while it moves, onRelease() when it is released.
// `lines` adds facts: lines(which) → [[term, text]].
export function prmCards(prms, thresholds, onMove, { lines = () => [], onRelease = () => {} } = {}) {
  const cards = prms.map((prm, which) => {
    const facts = h("dl", { class: "facts" });
    const shown = h("output", { class: "at" });
    const slider = h("input", { type: "range", min: "0", max: "1", step: "0.001", value: String(thresholds[which]) });
    const reset = h("button", { type: "button", class: "quiet" }, `Reset to ${percent(prm.threshold)}`);
    const draw = () => {
      replace(shown, percent(thresholds[which]));
      slider.setAttribute("aria-valuetext", percent(thresholds[which]));
      reset.hidden = thresholds[which] === prm.threshold;
      drawFacts(facts, lines(which));
    };
    const move = (value) => {
      thresholds[which] = value;
      draw();
      onMove(thresholds);
    };
    slider.addEventListener("input", () => move(Number(slider.value)));
    slider.addEventListener("change", onRelease);
    reset.addEventListener("click", () => {
      slider.value = String(prm.threshold);
      move(prm.threshold);
      onRelease();
      slider.focus();
    });
    draw();
    const control = field("Threshold", slider);
    control.classList.add("threshold");
    control.append(shown, reset);
    return h("section", { class: "card", "aria-label": prm.name }, h("h2", { dir: "auto" }, prm.name), facts, control);
  });
  return h("div", { class: "cards" }, cards);
}
