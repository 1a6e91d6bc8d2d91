// The errors of an evaluation with their texts: wrong steps that passed first, then right ones that were rejected.

import { choose, count, field, h, pager, percent, replace, words } from "./dom.js";
import { barKey, stepList } from "./steps.js";

const SIZE = 10;
const KINDS = {
  fp: { title: "False positive", flag: "wrong, but passed", many: "False positives", of: "wrong" },
  fn: { title: "False negative", flag: "right, but rejected", many: "False negatives", of: "right" },
};

export const errorsView = { kind: "errors", tab: "Errors", render };

function render(root, found) {
  const wanted = { kind: "", bench: "", group: "", order: "sure" };
  const body = h("div", { class: "list" });
  const bar = h("div");
  const filters = h("div", { class: "row toolbar" });
  const group = (error) => found.items[error.item].group;

  function kept(error, except) {
    return Object.entries({ kind: error.kind, bench: error.bench, group: group(error) }).every(
      ([name, value]) => name === except || !wanted[name] || wanted[name] === value,
    );
  }

  function filter(name, label, all, texts = (value) => value) {
    const counts = new Map();
    for (const error of found.errors) {
      if (!kept(error, name)) continue;
      const value = name === "group" ? group(error) : error[name];
      counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    if (wanted[name] && !counts.has(wanted[name])) counts.set(wanted[name], 0);
    const options = [...counts].map(([value, number]) => [value, `${texts(value)} (${count(number)})`]);
    const select = choose([["", all], ...options], wanted[name], (value) => {
      wanted[name] = value;
      draw(name);
    });
    select.id = `filter-${name}`;
    return field(label, select);
  }

  function draw(used) {
    const orders = [["sure", "Most confident first"], ["given", "As in the benchmark"]];
    const order = choose(orders, wanted.order, (value) => {
      wanted.order = value;
      draw("order");
    });
    order.id = "filter-order";
    const several = found.benchmarks.length > 1;
    replace(
      filters,
      filter("kind", "Errors", "Both kinds", (kind) => KINDS[kind].many),
      several && filter("bench", "Benchmark", "All benchmarks"),
      filter("group", "Class", "All classes"),
      field("Order", order),
    );
    if (used) document.getElementById(`filter-${used}`)?.focus();
    const chosen = arranged(found.errors.filter((error) => kept(error)), wanted.order, found.items);
    replace(
      bar,
      pager(chosen.length, SIZE, (first, end) => {
        replace(body, chosen.slice(first, end).map((error) => card(error, found)));
      }),
    );
  }

  replace(root, h("div", { class: "cards" }, found.benchmarks.map(tile)), barKey(), filters, bar, body);
  draw();
}

// False positives first: they mislead a search, the others only cost samples.
function arranged(errors, order, items) {
  const score = (error) => items[error.item].scores[error.step];
  const wrongness = (error) => (error.kind === "fp" ? score(error) : 1 - score(error));
  return errors
    .map((error, number) => ({ error, number }))
    .sort(
      (a, b) =>
        (a.error.kind === "fp" ? 0 : 1) - (b.error.kind === "fp" ? 0 : 1) ||
        (order === "sure" ? wrongness(b.error) - wrongness(a.error) : 0) ||
        a.number - b.number,
    )
    .map(({ error }) => error);
}

function tile(bench) {
  const rows = Object.entries(KINDS).map(([kind, { many, of }]) => {
    const share = bench.counts[of] ? percent(bench.counts[kind] / bench.counts[of]) : "–";
    return h(
      "div",
      {},
      h("dt", {}, many),
      h("dd", {}, share, h("small", {}, ` ${count(bench.counts[kind])} of ${count(bench.counts[of])} ${of} steps`)),
    );
  });
  const passed = Object.entries(bench.thresholds).map(([what, threshold]) => `P(${what}) above ${percent(threshold)}`);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, bench.name),
    h("dl", { class: "facts" }, rows),
    h("p", { class: "note" }, `Passed: ${passed.join("; in redundancy classes, ")}`),
  );
}

function card(error, found) {
  const item = found.items[error.item];
  const bench = found.benchmarks.find((one) => one.name === error.bench);
  const path = [];
  for (let at = error.step; at >= 0; at = item.parents[at]) path.unshift(at);
  const is = KINDS[error.kind];
  const name = item.decides === "right" ? found.prm : item.decides; // a score is P(right), or P(not redundant)
  const prms = [{ name, probabilities: path.map((at) => item.scores[at]) }];
  const steps = path.map((at) => ({ text: item.texts[at], label: item.labels[at] }));
  const list = stepList(steps, prms, { labeled: true, flagged: { at: path.length - 1, text: is.flag } });
  list.judge([bench.thresholds[item.decides]]);
  const scored = `P(${item.decides}) ${percent(item.scores[error.step])}`;
  const rest = item.texts.length - path.length;
  return h(
    "article",
    { class: `item ${error.kind}` },
    h(
      "header",
      {},
      h("h2", {}, is.title),
      h("p", { class: "note" }, [scored, item.group, item.name].join(" · ")),
    ),
    words(item.problem, "words question"),
    list.element,
    rest > 0 && h("p", { class: "note" }, `${rest} further ${rest === 1 ? "step" : "steps"} not shown`),
  );
}
