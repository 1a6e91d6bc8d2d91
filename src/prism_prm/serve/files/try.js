// Score a pasted solution with one PRM, or with two side by side.

import { choose, field, h, percent, replace } from "./dom.js";
import { barKey, disagreements, firstBelow, MEANING, prmCards, stepList } from "./steps.js";

const EXAMPLE = { problem: "1+1+2-1", solution: "1+1=2\n\n2+2=3\n\n3-1=2\n\n#### 2" };
const typed = { ...EXAMPLE, first: null, second: "" }; // kept while other views are shown, like the results
const results = h("div", { class: "results", "aria-live": "polite" });
let isNew = true; // the first time, the example is scored
let asked = null; // the input that is being scored: results of earlier inputs are discarded

export const tryView = { kind: "try", tab: "Score", render };

function render(root, _found, page) {
  const names = page.models.map((model) => model.id);
  if (!names.includes(typed.first)) [typed.first, typed.second] = [names[0], names[1] ?? ""];
  const problem = h("textarea", { rows: "2", dir: "auto", required: true, value: typed.problem });
  const solution = h("textarea", { rows: "8", dir: "auto", required: true, value: typed.solution });
  const options = names.map((name) => [name, name]);
  const first = choose(options, typed.first, (value) => (typed.first = value));
  const second = choose([["", "nothing"], ...options], typed.second, (value) => (typed.second = value));
  problem.addEventListener("input", () => (typed.problem = problem.value));
  solution.addEventListener("input", () => (typed.solution = solution.value));

  async function submit() {
    const own = JSON.stringify(typed);
    if (own === asked) return;
    asked = own;
    results.setAttribute("aria-busy", "true");
    const chosen = [...new Set([typed.first, typed.second])].filter(Boolean);
    let found = null;
    try {
      found = shown(await Promise.all(chosen.map((name) => page.score(name, typed.problem, typed.solution))));
    } catch (error) {
      if (own === asked) throw error;
    } finally {
      if (own === asked) finish(found);
    }
  }

  // Also removes the results of earlier inputs.
  function finish(found) {
    asked = null;
    results.removeAttribute("aria-busy");
    replace(results, found);
  }

  function fill(given) {
    [problem.value, solution.value] = [given.problem, given.solution];
    Object.assign(typed, given);
  }

  const form = h(
    "form",
    {
      class: "ask",
      onsubmit: (event) => {
        event.preventDefault();
        page.guarded(submit);
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      },
    },
    field("Problem", problem),
    field("Solution", solution, "A blank line ends a step. Fenced code is not split while a bracket is open."),
    h("div", { class: "row" }, field("PRM", first), names.length > 1 && field("Compare with", second)),
    h(
      "div",
      { class: "row actions" },
      h("button", { class: "primary" }, "Score"),
      h("button", { type: "button", class: "quiet", onclick: clear }, "Clear"),
      h("button", { type: "button", class: "quiet", onclick: showExample }, "Example"),
    ),
  );

  function clear() {
    fill({ problem: "", solution: "" });
    finish(null);
    problem.focus();
  }

  function showExample() {
    fill(EXAMPLE);
    page.guarded(submit);
  }

  const meaning = h("p", { class: "note" }, MEANING);
  replace(root, h("h1", {}, "Score a solution"), meaning, h("div", { class: "columns" }, form, results));
  if (isNew) page.guarded(submit);
  isNew = false;
  return () => {}; // it has no document
}

function shown(answers) {
  const [{ items: [{ steps: texts }] }] = answers;
  if (!texts.length) return h("p", { class: "problem" }, "The solution has no step.");
  const prms = answers.map((answer) => ({
    name: answer.model,
    threshold: answer.threshold,
    aggregator: answer.aggregator,
    score: answer.items[0].score,
    probabilities: answer.items[0].probabilities,
  }));
  const thresholds = prms.map((prm) => prm.threshold);
  const list = stepList(texts.map((text) => ({ text })), prms);
  const facts = (which) => {
    const prm = prms[which];
    const first = firstBelow(prm.probabilities, thresholds[which]);
    return [
      [`Score (${prm.aggregator})`, percent(prm.score)],
      ["First below threshold", first < 0 ? "none" : `step ${first + 1}`],
    ];
  };
  const hasTwo = prms.length === 2;
  const inOrder = texts.map((_, number) => number);
  const orders = [["order", "In order"], ["apart", "Where they disagree first"]];
  const order = choose(orders, orders[0][0], arrange);
  function arrange() {
    const apart = disagreements(prms, texts.length, thresholds);
    const byRank = [...inOrder].sort((a, b) => apart[b].rank - apart[a].rank);
    list.arrange(hasTwo && order.value === "apart" ? byRank : inOrder);
  }
  const cards = prmCards(prms, thresholds, list.judge, { lines: facts, onRelease: arrange });
  list.judge(thresholds);
  arrange();
  const warnings = answers.flatMap((answer) => answer.warnings ?? []);
  const notes = warnings.map((warning) => h("p", { class: "problem" }, `${warning}.`));
  return [...notes, cards, hasTwo && h("div", { class: "row toolbar" }, field("Steps", order)), list.element, barKey()];
}
