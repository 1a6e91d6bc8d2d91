// Programs with the outcome of every test, one problem at a time.

import { choose, field, h, pager, plural, refill, replace, words } from "./dom.js";
import { verdict } from "./parts.js";

const SIZE = 8;
const MARKS = { passed: "✓", failed: "✗", "not run": "·" };
const passesPublic = (one) => one.public.length > 0 && one.public.every((test) => test === "passed");
const KINDS = [
  ["all", "All", () => true],
  ["right", "Right", (one) => one.correct === true],
  ["wrong", "Wrong", (one) => one.correct === false],
  ["fooled", "Pass the public tests only", (one) => one.correct === false && passesPublic(one)],
];

export const programsView = { kind: "programs", tab: "Programs", render };

function render(root, overview, page) {
  const body = h("div");
  let which = 0;
  let turn = 0; // counts calls of open(): results of earlier calls are discarded
  let found = null;
  const title = (one) => `${one.name} (${one.right} of ${one.solutions} right)`;
  const problems = overview.problems.map((one, number) => [String(number), title(one)]);
  const problem = choose(problems, "0", (value) => page.guarded(() => open(Number(value))));
  const kind = choose(KINDS, "all", () => found && draw());

  async function open(number) {
    const own = ++turn;
    try {
      const loaded = await page.load(overview.problems[number].id);
      if (own !== turn) return;
      [which, found] = [number, loaded];
      draw();
    } finally {
      if (own === turn) problem.value = String(which); // unchanged if it failed
    }
  }

  function draw() {
    const kinds = KINDS.map(([value, title, fits]) => [value, `${title} (${found.solutions.filter(fits).length})`]);
    refill(kind, kinds, kind.value);
    const [, , fits] = KINDS.find(([value]) => value === kind.value);
    const chosen = found.solutions.map((one, number) => ({ ...one, number })).filter(fits);
    const list = h("div", { class: "list" });
    const pages = pager(chosen.length, SIZE, (first, end) => replace(list, chosen.slice(first, end).map(card)));
    const question = found.problem && words(found.problem, "words question");
    replace(body, question, tally(found), chosen.length > SIZE && pages, list);
  }

  replace(root, h("div", { class: "row toolbar" }, field("Problem", problem), field("Programs", kind)), body);
  page.guarded(() => open(0));
}

function tally(found) {
  const all = plural(found.solutions.length, "program");
  const right = found.solutions.filter((one) => one.correct).length;
  const judged = found.solutions.some((one) => one.correct !== null);
  return h("p", { class: "note part" }, judged ? `${right} of ${all} pass all tests` : all);
}

function card(one) {
  const why = one.correct === false && !["ok", "no public tests"].includes(one.status) ? one.status : "";
  return h(
    "article",
    { class: `item ${one.correct ? "right" : "wrong"}` },
    h(
      "header",
      {},
      h("h2", {}, `Program ${one.number + 1}`),
      verdict(one.correct),
      why && h("p", { class: "note" }, why),
      one.selected.length > 0 && h("p", { class: "note" }, `selected by ${one.selected.join(", ")}`),
      one.program && one.times > 1 && h("p", { class: "note" }, `written ${one.times} times`),
    ),
    tests("Public tests", one.public),
    tests("Hidden tests", one.hidden),
    one.program ? words(one.program, "words code") : h("p", { class: "note" }, "This solution has no program."),
  );
}

function tests(title, endings) {
  if (!endings.length) return null;
  const passed = endings.filter((one) => one === "passed").length;
  const notRun = endings.filter((one) => one === "not run").length;
  const at = endings.findIndex((one) => one !== "passed");
  const facts = [
    `${passed} of ${endings.length} passed`,
    at >= 0 && endings[at] !== "not run" && `test ${at + 1}: ${endings[at]}`,
    notRun && `${notRun} not run`,
  ];
  return h(
    "div",
    { class: "tests" },
    h("h3", {}, title),
    h("p", { class: "note" }, facts.filter(Boolean).join(", ")),
    h("ol", { class: "marks", "aria-hidden": "true" }, endings.map(mark)),
  );
}

function mark(ending, number) {
  const kind = { passed: "passed", "not run": "idle" }[ending] ?? "failed";
  return h("li", { class: kind, title: `test ${number + 1}: ${ending}` }, MARKS[ending] ?? "!");
}
