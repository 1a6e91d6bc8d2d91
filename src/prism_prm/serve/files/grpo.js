// A policy in training: reward and true accuracy over updates, other measurements, and samples at each evaluation.

import { areShares, drawChart, plain } from "./chart.js";
import { choose, count, field, h, percent, replace, words } from "./dom.js";
import { drawFacts, line, onArrows, onWidth, slider, verdict } from "./parts.js";

const NUMBERS = {
  kl: "Divergence from the untrained policy",
  entropy: "Entropy per token",
  num_tokens: "Tokens per solution",
  num_steps: "Steps per solution",
  repeated_steps: "Share of repeated steps",
  answered: "Share answered",
  cut: "Share cut off",
};
const SHARES = new Set(["repeated_steps", "answered", "cut"]);

export const grpoView = { kind: "grpo", tab: "Training", render };

function render(root, given) {
  let found = given;
  const state = { at: found.updates.length - 1, problem: 0 };
  const parts = {
    alarms: h("ul", { class: "plain alarms", "aria-label": "Alarms" }),
    gold: h("figure", { class: "chart" }),
    kl: h("figure", { class: "chart" }),
    facts: h("dl", { class: "facts" }),
    table: h("details", {}),
    samples: h("div", { class: "list" }),
    exploits: h("div", {}),
    choice: h("div", { class: "row toolbar" }),
  };
  const updates = slider("After update", (at) => go(at));

  function go(at) {
    state.at = Math.min(Math.max(at, 0), found.updates.length - 1);
    draw();
  }

  function draw() {
    const update = found.updates[state.at];
    updates.show(state.at, found.updates.length - 1, count(update));
    drawCharts();
    replace(parts.alarms, found.alarms.map(alarmLine));
    drawFacts(parts.facts, facts(found, state.at));
    replace(parts.samples, samples(found, update, state.problem));
    replace(parts.exploits, exploits(found.exploits));
  }

  function drawCharts() {
    const raised = found.alarms.filter((alarm) => alarm.raised).map((alarm) => alarm.update);
    const common = { updates: found.updates, at: state.at, marks: raised, pick: go };
    const title = `Reward and truth on ${found.num_problems} held-out problems, with 95 % intervals`;
    drawChart(parts.gold, { ...common, lines: found.lines, canBeShare: true, caption: title, yName: "reward and share solved" });
    const kl = found.numbers.kl ?? [];
    const lines = [{ title: "divergence", points: kl.map((value) => [value, value, value]) }];
    drawChart(parts.kl, { ...common, lines, caption: NUMBERS.kl, yName: "nats per solution" });
  }

  function show() {
    replace(parts.table, h("summary", {}, "All numbers"), allNumbers(found));
    draw();
  }

  function drawChoice() {
    const options = found.problems.map((text, number) => [String(number), `${number + 1}. ${line(text, 80)}`]);
    const select = choose(options, String(state.problem), (value) => {
      state.problem = Number(value);
      draw();
    });
    replace(parts.choice, found.problems.length > 0 && field("Held-out problem", select));
  }

  replace(
    root,
    parts.alarms,
    parts.gold,
    parts.kl,
    h("div", { class: "rounds" }, updates.element),
    parts.facts,
    h("h2", { class: "part" }, "What it wrote"),
    parts.choice,
    parts.samples,
    parts.exploits,
    parts.table,
  );
  onArrows(root, (by) => go(state.at + by));
  onWidth(parts.gold, drawCharts);
  drawChoice();
  show();

  return (changed) => {
    const followed = state.at >= found.updates.length - 1;
    const known = found.problems.length;
    found = changed;
    if (followed) state.at = found.updates.length - 1;
    if (found.problems.length !== known) drawChoice();
    show();
  };
}

function alarmLine(alarm) {
  return h(
    "li",
    { class: alarm.raised ? "alarm raised" : "alarm" },
    h("span", { class: "mark", "aria-hidden": "true" }, alarm.raised ? "!" : "✓"),
    h("span", {}, alarm.raised ? `Alarm by ${alarm.by}: ${alarm.text}` : `No alarm by ${alarm.by}`),
  );
}

function shown(name, value) {
  return SHARES.has(name) ? percent(value) : plain(value);
}

// The format of a line's values: percent, unless it is a reward outside of 0 and 1.
function unit(line) {
  return areShares(line.points.flat()) ? percent : plain;
}

function facts(found, at) {
  const lines = found.lines.map((line) => {
    const [value, low, high] = line.points[at];
    const format = unit(line);
    const range = low === null || high === null ? "" : ` ${format(low, 0)} to ${format(high, 0)}`;
    return [line.title, [format(value), h("small", {}, range)]];
  });
  const numbers = Object.entries(NUMBERS)
    .filter(([name]) => found.numbers[name])
    .map(([name, title]) => [title, shown(name, found.numbers[name][at])]);
  return [...lines, ...numbers];
}

function allNumbers(found) {
  const names = Object.keys(found.numbers);
  const head = ["update", ...found.lines.map((one) => one.title), ...names.map((name) => NUMBERS[name] ?? name)];
  const rows = found.updates.map((update, at) => [
    count(update),
    ...found.lines.map((one) => unit(one)(one.points[at][0])),
    ...names.map((name) => shown(name, found.numbers[name][at])),
  ]);
  return table("All numbers", head, rows);
}

// A table that scrolls sideways; the first cell of a row is its header.
function table(label, head, rows) {
  const cells = ([first, ...rest]) => [h("th", { scope: "row" }, first), rest.map((text) => h("td", {}, text))];
  return h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row)))),
    ),
  );
}

// The most frequent wrong steps that the PRM scored high, and what the retrained PRM makes of them.
function exploits(measured) {
  if (!measured) return [];
  const share = (passed) => percent(measured.wrong_steps ? passed / measured.wrong_steps : null);
  const note =
    `Of ${count(measured.wrong_steps)} labeled wrong steps, the PRM of this round passes ` +
    `${share(measured.passed_before)}, the retrained one ${share(measured.passed_after)}.`;
  const head = ["step", "count", "score before", "score after"];
  const scores = (one) => [percent(one.score_before), percent(one.score_after)];
  const rows = measured.most_frequent.map((one) => [one.step, count(one.count), ...scores(one)]);
  return [
    h("h2", { class: "part" }, "What it exploited"),
    h("p", { class: "note" }, note),
    table("Most frequent exploits", head, rows),
  ];
}

// The solutions of a problem at the last evaluation up to an update; the greedy one comes last.
function samples(found, update, problem) {
  const point = found.samples.filter((one) => one.update <= update).at(-1);
  if (!point || !found.problems.length) return h("p", { class: "note" }, "This run has no samples for this update.");
  const solutions = point.solutions[problem] ?? [];
  const reward = unit(found.lines[0]);
  return [
    words(found.problems[problem], "words question"),
    ...solutions.map((one, number) => {
      const isGreedy = one.reward === undefined;
      const title = isGreedy ? "Greedy solution" : `Sample ${number + 1}`;
      return h(
        "article",
        { class: `item ${one.right ? "right" : "wrong"}` },
        h(
          "header",
          {},
          h("h3", {}, title),
          verdict(one.right),
          !isGreedy && h("p", { class: "note" }, `reward ${reward(one.reward)}`),
        ),
        words(one.text || "(nothing)"),
      );
    }),
  ];
}
