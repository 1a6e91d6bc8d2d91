// Solutions scored by one or more PRMs; those on which they disagree come first.

import { choose, count, field, h, pager, percent, plural, replace, words } from "./dom.js";
import { barKey, disagreements, firstBelow, MEANING, prmCards, stepList } from "./steps.js";

const SIZE = 5;

export const scoresView = { kind: "scores", tab: "Solutions", render };

function render(root, found) {
  const { prms } = found;
  const thresholds = prms.map((prm) => prm.threshold);
  const { solutions } = found;
  const hasSeveral = prms.length > 1;
  let lists = [];
  const facts = (which) => {
    const judged = solutions.filter((one) => one.prms[which].probabilities);
    const below = judged.filter((one) => firstBelow(one.prms[which].probabilities, thresholds[which]) >= 0);
    return [["With a step below threshold", `${count(below.length)} of ${count(judged.length)}`]];
  };
  const body = h("div", { class: "list" });
  const pages = h("div");
  const judge = () => lists.forEach((list) => list.judge(thresholds));
  const cards = prmCards(prms, thresholds, judge, { lines: facts, onRelease: () => hasSeveral && draw() });
  function draw() {
    const chosen = arranged(solutions.map((one) => ({ ...one, apart: widest(one, thresholds) })), select.value);
    const bar = pager(chosen.length, SIZE, (first, end) => {
      lists = [];
      replace(body, chosen.slice(first, end).map((one) => card(one, prms, lists)));
      judge();
    });
    replace(pages, bar);
  }
  const orders = [
    ...(hasSeveral ? [["apart", "Where they disagree first"]] : []),
    ["given", "As given"],
    ["low", `Lowest score${hasSeveral ? ` of ${prms[0].name}` : ""} first`],
  ];
  const select = choose(orders, orders[0][0], draw);
  const meaning = h("p", { class: "note meaning" }, MEANING);
  replace(root, meaning, cards, barKey(), h("div", { class: "row toolbar" }, field("Order", select), pages), body);
  draw();
}

// The step on which the PRMs disagree most.
function widest(solution, thresholds) {
  const apart = disagreements(solution.prms, solution.texts.length, thresholds);
  return apart.reduce((most, one, at) => (one.rank > most.rank ? { ...one, at } : most), { ...apart[0], at: 0 });
}

function arranged(solutions, order) {
  const found = [...solutions];
  if (order === "apart") found.sort((a, b) => b.apart.rank - a.apart.rank);
  if (order === "low") found.sort((a, b) => (a.prms[0].score ?? 2) - (b.prms[0].score ?? 2));
  return found;
}

function card(solution, prms, lists) {
  const steps = solution.texts.map((text, number) => ({
    text,
    label: judged(solution.labels[number]),
    after: afterWhich(solution.parents, number),
  }));
  const labeled = solution.labels.some((label) => label !== null);
  const scored = prms.map((prm, which) => ({ name: prm.name, probabilities: solution.prms[which].probabilities }));
  const list = stepList(steps, scored, { labeled, isChain: steps.every((step) => step.after === null) });
  lists.push(list);
  const score = (prm, which) => `${prm.name} ${percent(solution.prms[which].score)} (${prm.aggregator})`;
  const { by, at, isOpposite } = solution.apart;
  const apart = `${isOpposite ? "opposite verdicts" : "largest difference"} at step ${at + 1}, ${percent(by)} apart`;
  const facts = [`Scores: ${prms.map(score).join(", ")}`, by >= 0 && apart];
  return h(
    "article",
    { class: "item" },
    h(
      "header",
      {},
      h("h2", { dir: "auto" }, solution.name || plural(steps.length, "step")),
      h("p", { class: "note", dir: "auto" }, facts.filter(Boolean).join(" · ")),
    ),
    words(solution.problem, "words question"),
    list.element,
  );
}

// As in an evaluation: right above 0.5, wrong below.
function judged(label) {
  return label === null || label === 0.5 ? null : Number(label > 0.5);
}

function afterWhich(parents, number) {
  if (parents[number] === number - 1) return null;
  return parents[number] < 0 ? "another first step" : `another step after step ${parents[number] + 1}`;
}
