// The data of one search: its steps, and the fate of each at the end of a round.

const [PARENT, TEXT, SCORE, VALUE, ENDING, ROUND, AHEAD, LIKELIHOOD] = [0, 1, 2, 3, 4, 5, 6, 7];

// In the document, a step is [parent, text, score, path's score, ending, round, looks ahead, and the path's log-likelihood
// if the search ranks by it]; steps are numbered from 1.
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

// Merge equal steps after the same step into one with the `numbers` of all; also returns a map from number to step. Steps
// in `apart` are not merged: beam search may distinguish steps that look equal after trimming.
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

// The path to a step.
export function pathTo(tree, number) {
  const found = [];
  for (let at = number; at; at = found[0].parent) found.unshift(tree.stepOf.get(at));
  return found;
}

// kept, dropped, open (not decided yet), ahead; at the end: found or chosen.
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
    // A step that was continued stays kept; a finished one must be kept in every round.
    if (fate === "dropped" || !step.ending) break;
  }
  return fate;
}

// The steps that are alive at the end of a round: the kept ones and all steps before them.
export function aliveAt(tree, round) {
  const alive = new Set();
  const decided = tree.kept.slice(0, round + 1).findLast((numbers) => numbers);
  const ends = round >= tree.last && tree.chosen ? [tree.chosen] : [...(decided ?? [])];
  for (const end of ends) for (const step of pathTo(tree, end)) alive.add(step.number);
  return alive;
}

// The step to show first: the selected one at the end, before that the best of the kept ones.
function bestOf(tree, round) {
  if (round >= tree.last && tree.chosen) return tree.chosen;
  const own = tree.steps.filter((step) => step.round === round);
  const kept = own.filter((step) => fateOf(tree, step, round) !== "dropped");
  const better = (a, b) => ((a.value ?? -1) >= (b.value ?? -1) ? a : b);
  return own.length ? (kept.length ? kept : own).reduce(better).number : null;
}

// The steps of each round from left to right, with steps of one parent side by side; `x` is in [0, 1].
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
