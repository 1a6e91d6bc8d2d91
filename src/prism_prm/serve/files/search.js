// A search as a tree that grows round by round: the steps that were kept and dropped, and the selected solution.
//
// The overview lists the problems. The tree of a problem is loaded when it is chosen, and reloaded while its search runs.

import { choose, count, field, h, percent, plural, refill, replace, steady, words } from "./dom.js";
import { drawMap } from "./map.js";
import { brief, drawFacts, line, onArrows, onWidth, slider } from "./parts.js";
import { scoreCell, stepList } from "./steps.js";
import { fateOf, grown, pathTo } from "./tree.js";

const FATES = {
  kept: ["✓", "kept"],
  dropped: ["✗", "dropped"],
  open: ["…", "not decided yet"],
  ahead: ["→", "looking ahead"],
  found: ["★", "a solution"],
  chosen: ["★", "selected"],
};
const SHOWN = 8;

export const searchView = { kind: "search", tab: "Search", render };

function render(root, overview, page) {
  const state = { overview, which: 0, tree: null, round: 0, picked: null, timer: null, shown: SHOWN };
  let turn = 0; // counts calls of open(): results of earlier calls are discarded
  let known = ""; // the document of the tree that is shown
  const problem = choose([], "", (value) => page.guarded(() => open(Number(value))));
  const previous = steady("Previous", () => page.guarded(() => open(state.which - 1)));
  const next = steady("Next", () => page.guarded(() => open(state.which + 1)));
  const parts = {
    problems: h("div", { class: "row toolbar" }, field("Problem", problem), previous.element, next.element),
    question: h("div"),
    facts: h("dl", { class: "facts" }),
    rounds: h("div", { class: "rounds" }),
    map: h("div", { class: "map", tabindex: "0", role: "region", "aria-label": "Tree of the search" }),
    fates: h("ul", { class: "legend", "aria-label": "Marks" }),
    candidates: h("section", { class: "candidates" }),
    path: h("section", { class: "path", "aria-live": "polite" }),
  };
  const rounds = slider("Round", (round) => go(round));
  const play = h("button", { type: "button", class: "play", onclick: toggle });
  replace(parts.rounds, play, rounds.element);

  async function open(which) {
    stop();
    const own = ++turn;
    try {
      const found = await page.load(state.overview.problems[which].id);
      if (own !== turn) return;
      take(found);
      Object.assign(state, { which, round: state.tree.last, picked: null, shown: SHOWN });
      replace(parts.question, words(state.tree.problem, "words question"));
      draw();
    } finally {
      if (own === turn) drawProblems(); // unchanged if it failed
    }
  }

  // Use a document; returns whether it has changed.
  function take(found) {
    const content = JSON.stringify(found);
    if (content === known) return false;
    [known, state.tree] = [content, grown(found)];
    return true;
  }

  function go(round, byHand = true) {
    if (byHand) stop();
    state.round = Math.min(Math.max(round, 0), state.tree.last);
    state.picked = null;
    state.shown = SHOWN;
    draw();
  }

  function pick(number) {
    stop();
    state.picked = number;
    draw();
    parts.path.querySelector("h2").scrollIntoView({ block: "nearest" });
  }

  function showAll() {
    const next = parts.candidates.querySelectorAll(".candidate").length;
    state.shown = Infinity;
    draw();
    parts.candidates.querySelectorAll("[data-step]")[next].focus();
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    replace(play, "▶ Play");
  }

  function toggle() {
    if (state.timer) return stop();
    if (state.round >= state.tree.last) go(0);
    state.timer = setInterval(() => {
      if (!root.isConnected || state.round >= state.tree.last) return stop();
      go(state.round + 1, false);
    }, 900);
    replace(play, "❚❚ Pause");
  }

  function drawProblems() {
    const { problems } = state.overview;
    refill(problem, problems.map((one, number) => [String(number), problemLine(one, number)]), String(state.which));
    previous.turn(state.which > 0);
    next.turn(state.which < problems.length - 1);
    for (const { element } of [previous, next]) element.hidden = problems.length < 2;
  }

  function draw() {
    const { tree, round } = state;
    rounds.show(round, tree.last, `${round + 1} of ${tree.last + 1}`);
    play.disabled = tree.last === 0;
    const picked = state.picked ?? tree.best(round);
    drawFacts(parts.facts, facts(tree, round));
    drawMap(parts.map, tree, round, picked, { pick, describe: (fate) => FATES[fate][1] });
    replace(parts.fates, legend(tree, round));
    const held = parts.candidates.contains(document.activeElement) && document.activeElement.dataset.step;
    replace(parts.candidates, candidates(tree, state, picked, pick, showAll));
    if (held) parts.candidates.querySelector(`[data-step="${held}"]`)?.focus({ preventScroll: true });
    replace(parts.path, path(tree, round, picked));
  }

  replace(
    root,
    parts.problems,
    parts.question,
    parts.facts,
    parts.rounds,
    h("div", { class: "columns search" }, h("div", {}, parts.map, parts.fates, parts.path), parts.candidates),
  );
  onArrows(root, (by) => state.tree && go(state.round + by));
  onWidth(parts.map, () => state.tree && draw());
  if (overview.problems.length) page.guarded(() => open(0));
  else replace(parts.question, h("p", { class: "note" }, "No round is done yet."));

  // While a search runs, its tree grows: a view of the last round follows, a view of an earlier one stays.
  return async (changed) => {
    state.overview = changed;
    if (!changed.problems.length) return;
    if (!state.tree || state.which >= changed.problems.length) return open(0); // the search may have restarted
    drawProblems();
    const [own, before] = [turn, state.tree];
    const found = await page.load(changed.problems[state.which].id);
    if (own !== turn || !take(found)) return;
    const { tree } = state;
    if (state.round >= before.last) state.round = tree.last;
    if (tree.steps.length < before.steps.length) [state.round, state.picked] = [tree.last, null];
    draw();
  };
}

function problemLine(one, number) {
  const mark = one.running ? "…" : one.right === null ? " " : one.right ? "✓" : "✗";
  const state = one.running ? "running" : plural(one.rounds, "round");
  return `${mark} ${number + 1}. ${line(one.text, 70)} (${state})`;
}

function facts(tree, round) {
  const steps = tree.steps.filter((step) => step.round <= round && !step.ahead);
  const written = timesOf(steps);
  const fates = steps.map((step) => fateOf(tree, step, round));
  const kept = fates.filter((fate) => fate === "kept" || fate === "found" || fate === "chosen").length;
  const dropped = fates.filter((fate) => fate === "dropped").length;
  const { method, n, prm } = tree.how;
  const right = tree.verdict === null ? [] : [["Selected", tree.verdict ? "✓ right" : "✗ wrong"]];
  return [
    ["Search", [method, h("small", {}, ` n = ${n}${prm ? `, ${prm}` : ""}`)]],
    ["Steps written", count(written)],
    ["Kept", count(kept)],
    ["Dropped", count(dropped)],
    ...(written > steps.length ? [["Equal to others", count(written - steps.length)]] : []),
    ...(tree.isRunning ? [["State", "running"]] : right),
  ];
}

// How many steps were written, including equal ones.
function timesOf(steps) {
  return steps.reduce((sum, step) => sum + step.numbers.length, 0);
}

function legend(tree, round) {
  const steps = tree.steps.filter((step) => step.round <= round);
  const used = new Set(steps.map((step) => fateOf(tree, step, round)));
  const part = (name) => h("span", { class: name, "aria-hidden": "true" });
  return [
    ...Object.entries(FATES)
      .filter(([fate]) => used.has(fate))
      .map(([fate, [, text]]) => h("li", { class: fate }, part("swatch"), text)),
    steps.some((step) => step.numbers.length > 1) && h("li", {}, "×2 written twice"),
    tree.how.prm && h("li", {}, "score 0 %", part("scale"), "100 %"),
    tree.how.prm && h("li", {}, part("tick"), `threshold ${percent(tree.threshold)}`),
  ];
}

// The steps of a round, kept ones first; each with the step that it follows.
function candidates(tree, state, picked, pick, showAll) {
  const { round } = state;
  const own = tree.steps.filter((step) => step.round === round);
  const rank = { chosen: 0, found: 0, kept: 0, open: 1, ahead: 1, dropped: 2 };
  const place = (step) => rank[fateOf(tree, step, round)];
  const sorted = own.sort((a, b) => place(a) - place(b) || (b.value ?? -1) - (a.value ?? -1) || a.number - b.number);
  const what = own.some((step) => step.ahead) ? "looking ahead" : plural(own.length, "candidate");
  const written = timesOf(own);
  const times = own.length < written ? `, written ${count(written)} times` : "";
  const more = sorted.length - state.shown;
  return [
    h("h2", {}, `Round ${round + 1}: ${what}${times}`),
    h(
      "ul",
      { class: "plain", role: "list" },
      sorted.slice(0, state.shown).map((step) => candidate(tree, step, round, picked, pick)),
    ),
    more > 0 &&
      h(
        "button",
        { type: "button", class: "quiet", onclick: showAll },
        `Show ${count(more)} more`,
      ),
  ];
}

function candidate(tree, step, round, picked, pick) {
  const fate = fateOf(tree, step, round);
  const [mark, text] = FATES[fate];
  const cell = scoreCell(tree.how.prm, step.score);
  cell.judge(tree.threshold);
  const isPicked = step.number === picked;
  const after = step.parent ? `after step ${step.parent}` : "first step";
  const times = step.numbers.length;
  const ended = { end: " · ends the solution", cut: " · cut off" }[step.ending] ?? "";
  return h(
    "li",
    { class: `candidate ${fate}${isPicked ? " picked" : ""}` },
    h("span", { class: "fate" }, h("span", { class: "mark", "aria-hidden": "true" }, mark), text),
    h("div", { class: "text" }, words(brief(step.text || "(nothing more)", 300))),
    h(
      "div",
      { class: "numbers" },
      step.score !== null && cell.element,
      step.value !== null && h("span", { class: "note" }, `path ${percent(step.value)}`),
      step.likelihood !== null && h("span", { class: "note" }, `log-likelihood ${step.likelihood.toFixed(2)}`),
    ),
    h(
      "p",
      { class: "note" },
      `Step ${step.number}, ${after}${ended}${times > 1 ? ` · written ${times} times` : ""} `,
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "data-step": String(step.number),
          "aria-pressed": String(isPicked),
          "aria-label": `Show the path to step ${step.number}`,
          onclick: () => pick(step.number),
        },
        "path",
      ),
    ),
  );
}

// The path to a step, and the outcome of the solution.
function path(tree, round, picked) {
  if (!picked) return null;
  const steps = pathTo(tree, picked);
  const shown = steps.filter((step) => step.text);
  const prms = tree.how.prm ? [{ name: tree.how.prm, probabilities: shown.map((step) => step.score) }] : [];
  const list = stepList(shown.map((step) => ({ text: step.text })), prms, {});
  list.judge([tree.threshold]);
  list.element.classList.toggle("unscored", !prms.length);
  const last = steps.at(-1);
  const [, fate] = FATES[fateOf(tree, last, round)];
  const grade = tree.gradeOf(picked);
  const facts = [
    fate,
    last.value !== null && `path score ${percent(last.value)} (${tree.how.aggregator})`,
    grade?.answer && grade.answer.length < 80 && `answer ${grade.answer}`,
    grade && grade.correct !== null && grade.correct !== undefined && (grade.correct ? "✓ right" : "✗ wrong"),
  ].filter(Boolean);
  const note = h("p", { class: "note", dir: "auto" }, facts.join(" · "));
  return [h("h2", {}, `Path to step ${picked}`), note, list.element];
}
