// The tree of one search as values: its steps, and what became of each by the end of a round.

const [PARENT, TEXT, SCORE, VALUE, ENDING, ROUND, AHEAD, LIKELIHOOD] = [0, 1, 2, 3, 4, 5, 6, 7];

// From the document: steps are [parent, text, score, path's score, ending, round, looks ahead, and the path's log-likelihood
// where the search ranks by it], numbered from 1.
export function grown(found) {
  const written = found.steps.map((one, at) => ({
    number: at + 1,
    parent: one[PARENT],
    text: found.texts[one[TEXT]],
    score: one[SCORE],
    value: one[VALUE],
    ending: one[ENDING],
    round: one[ROUND],
    ahead: Boolean(one[AHEAD]),
    likelihood: one[LIKELIHOOD] ?? null,
  }));
  const kept = found.kept.map((numbers) => numbers && new Set(numbers));
  const [steps, stepOf] = folded(written, found.how.method === "beam" ? new Set(found.kept.flat()) : new Set());
  const { result } = found;
  const last = Math.max(0, kept.length - 1);
  const chosen = result && found.chosen !== null ? stepOf.get(result[found.chosen]).number : null;
  const tree = {
    problem: found.problem,
    how: found.how,
    threshold: found.how.threshold ?? 0.5,
    steps,
    stepOf,
    kept,
    last,
    chosen,
    solutions: new Set(result ?? []),
    isRunning: !result,
    verdict: found.chosen === null ? null : (found.grades[found.chosen]?.correct ?? null),
    gradeOf: (number) => found.grades[result?.findIndex((one) => stepOf.get(one).number === number)],
  };
  tree.rows = arranged(tree);
  tree.best = (round) => bestOf(tree, round);
  return tree;
}

// Equal steps after the same step as one, which has the `numbers` of all, and a map from these to it. Those that are
// `apart` stay by themselves: beam search tells apart what looks equal once trimmed.
function folded(written, apart) {
  const [steps, stepOf, firsts] = [[], new Map(), new Map()];
  for (const one of written) {
    const parent = one.parent && stepOf.get(one.parent).number;
    const content = JSON.stringify([one.round, parent, one.text, one.ending, one.ahead]);
    let step = apart.has(one.number) ? undefined : firsts.get(content);
    if (!step) {
      step = { ...one, parent, numbers: [] };
      steps.push(step);
      if (!firsts.has(content)) firsts.set(content, step);
    }
    step.numbers.push(one.number);
    stepOf.set(one.number, step);
  }
  return [steps, stepOf];
}

// The steps that lead to one.
export function pathTo(tree, number) {
  const found = [];
  for (let at = number; at; at = found[0].parent) found.unshift(tree.stepOf.get(at));
  return found;
}

// kept, dropped, open (not decided by then), ahead; at the end: found, or chosen.
export function fateOf(tree, step, round) {
  if (step.ahead) return "ahead";
  if (round >= tree.last && !tree.isRunning) {
    if (step.number === tree.chosen) return "chosen";
    if (step.numbers.some((number) => tree.solutions.has(number))) return "found";
  }
  let fate = "open";
  for (let at = step.round; at <= Math.min(round, tree.last); at += 1) {
    if (!tree.kept[at]) continue;
    fate = step.numbers.some((number) => tree.kept[at].has(number)) ? "kept" : "dropped";
    // One that was continued stays kept; a finished one has to be kept in every round.
    if (fate === "dropped" || !step.ending) break;
  }
  return fate;
}

// The steps that are still part of something by the end of a round: those that are kept then, and all before them.
export function aliveAt(tree, round) {
  const alive = new Set();
  const decided = tree.kept.slice(0, round + 1).findLast((numbers) => numbers);
  const ends = round >= tree.last && tree.chosen ? [tree.chosen] : [...(decided ?? [])];
  for (const end of ends) for (const step of pathTo(tree, end)) alive.add(step.number);
  return alive;
}

// Which step to look at first: the selected one at the end, before that the best of those that are kept.
function bestOf(tree, round) {
  if (round >= tree.last && tree.chosen) return tree.chosen;
  const own = tree.steps.filter((step) => step.round === round);
  const kept = own.filter((step) => fateOf(tree, step, round) !== "dropped");
  const better = (a, b) => ((a.value ?? -1) >= (b.value ?? -1) ? a : b);
  return own.length ? (kept.length ? kept : own).reduce(better).number : null;
}

// Each round's steps from left to right, so that steps of one parent stay together; `x` is in [0, 1].
function arranged(tree) {
  const rows = tree.kept.map(() => []);
  for (const step of tree.steps) rows[step.round].push(step);
  const parentX = (step) => (step.parent ? tree.stepOf.get(step.parent).x : 0.5);
  for (const row of rows) {
    row.sort((a, b) => parentX(a) - parentX(b) || a.number - b.number);
    row.forEach((step, at) => (step.x = (at + 0.5) / row.length));
  }
  return rows;
}
