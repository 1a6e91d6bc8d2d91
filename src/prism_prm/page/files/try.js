// Score a pasted solution with one PRM, or with two side by side.

import { choose, field, h, percent, replace } from "./dom.js";
import { differences, firstError, prmCards, stepList } from "./steps.js";

const EXAMPLE = { problem: "1+1+2-1", solution: "1+1=2\n\n2+2=3\n\n3-1=2\n\n#### 2" };
const typed = { problem: "", solution: "", first: null, second: "" };

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
    button.disabled = true;
    results.setAttribute("aria-busy", "true");
    try {
      const chosen = [...new Set([typed.first, typed.second])].filter(Boolean);
      const answers = await Promise.all(chosen.map((name) => page.score(name, typed.problem, typed.solution)));
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
        page.guarded(submit);
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
  const cards = prmCards(prms, thresholds, list.judge, facts);
  list.judge(thresholds);
  return [cards, prms.length === 2 && arranging(prms, texts.length, list), list.element];
}

function arranging(prms, length, list) {
  const inOrder = Array.from({ length }, (_, number) => number);
  const apart = differences(prms, length);
  const byDifference = [...inOrder].sort((a, b) => apart[b] - apart[a]);
  const orders = [["order", "In order"], ["apart", "Where they disagree most"]];
  const select = choose(orders, "order", (value) => list.arrange(value === "order" ? inOrder : byDifference));
  return h("div", { class: "row toolbar" }, field("Steps", select));
}
