// Score a pasted solution with one PRM, or with two side by side.

import { choose, field, h, percent, replace } from "./dom.js";
import { disagreements, firstError, prmCards, stepList } from "./steps.js";

const EXAMPLE = { problem: "1+1+2-1", solution: "1+1=2\n\n2+2=3\n\n3-1=2\n\n#### 2" };
const typed = { problem: "", solution: "", first: null, second: "", answers: null }; // kept while other views are shown
let turn = 0; // whoever is not the last to ask is answered too late

export const tryView = { kind: "try", tab: "Score", render };

function render(root, _found, page) {
  const names = page.models.map((model) => model.id);
  if (!names.includes(typed.first)) [typed.first, typed.second] = [names[0], names[1] ?? ""];
  const problem = h("textarea", { rows: "3", dir: "auto", required: true, value: typed.problem });
  const solution = h("textarea", { rows: "9", dir: "auto", required: true, value: typed.solution });
  const results = h("div", { class: "results", "aria-live": "polite" });
  const options = names.map((name) => [name, name]);
  const first = choose(options, typed.first, (value) => (typed.first = value));
  const second = choose([["", "nothing"], ...options], typed.second, (value) => (typed.second = value));
  const button = h("button", { class: "primary" }, "Score");
  problem.addEventListener("input", () => (typed.problem = problem.value));
  solution.addEventListener("input", () => (typed.solution = solution.value));

  async function submit() {
    const own = ++turn;
    button.disabled = true;
    results.setAttribute("aria-busy", "true");
    try {
      const chosen = [...new Set([typed.first, typed.second])].filter(Boolean);
      const answers = await Promise.all(chosen.map((name) => page.score(name, typed.problem, typed.solution)));
      if (own !== turn) return;
      typed.answers = answers;
      replace(results, shown(answers));
    } finally {
      button.disabled = false;
      results.removeAttribute("aria-busy");
    }
  }

  const form = h(
    "form",
    {
      class: "ask",
      onsubmit: (event) => {
        event.preventDefault();
        if (!button.disabled) page.guarded(submit);
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      },
    },
    field("Problem", problem),
    field("Solution", solution, "A blank line ends a step. Code in a fence stays whole while a bracket is open."),
    h("div", { class: "row" }, field("PRM", first), names.length > 1 && field("Compare with", second)),
    h(
      "div",
      { class: "row actions" },
      button,
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => {
            [problem.value, solution.value] = [EXAMPLE.problem, EXAMPLE.solution];
            Object.assign(typed, EXAMPLE);
            solution.focus();
          },
        },
        "Use an example",
      ),
    ),
  );
  if (typed.answers) replace(results, shown(typed.answers));
  replace(root, h("h1", {}, "Score a solution"), h("div", { class: "columns" }, form, results));
  return () => {}; // it has no document that changes
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
    const first = firstError(prm.probabilities, thresholds[which]);
    return [
      [`Score (${prm.aggregator})`, percent(prm.score)],
      ["First error", first < 0 ? "none" : `step ${first + 1}`],
    ];
  };
  const hasTwo = prms.length === 2;
  const inOrder = texts.map((_, number) => number);
  const orders = [["apart", "Where they disagree first"], ["order", "In order"]];
  const order = choose(orders, orders[0][0], arrange);
  function arrange() {
    const apart = disagreements(prms, texts.length, thresholds);
    const byRank = [...inOrder].sort((a, b) => apart[b].rank - apart[a].rank);
    list.arrange(hasTwo && order.value === "apart" ? byRank : inOrder);
  }
  const cards = prmCards(prms, thresholds, list.judge, { lines: facts, settled: arrange });
  list.judge(thresholds);
  arrange();
  const warnings = answers.flatMap((answer) => answer.warnings ?? []);
  const notes = warnings.map((warning) => h("p", { class: "problem" }, `${warning}.`));
  return [...notes, cards, hasTwo && h("div", { class: "row toolbar" }, field("Steps", order)), list.element];
}
