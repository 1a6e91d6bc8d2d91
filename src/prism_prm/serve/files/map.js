// A drawing of the tree of a search: one row per round, one mark per step, lines from step to step. Equal steps share a
// mark that shows how often they were written.

import { percent, svg } from "./dom.js";
import { aliveAt, fateOf } from "./tree.js";

const ROW = 46;
const EDGE = 26;
const NAMES = 62; // pixels for the names of the rows
const LEAST = 15; // pixels from one mark to the next, without and with a number between them
const NUMBERED = 40;

// `describe` gives the words for a fate.
export function drawMap(box, tree, round, picked, { pick, describe }) {
  const most = Math.max(1, ...tree.rows.map((row) => row.length));
  const each = tree.steps.some((step) => step.numbers.length > 1) ? NUMBERED : LEAST;
  const width = Math.max(box.clientWidth - 2, NAMES + most * each);
  const room = width - NAMES - (each === NUMBERED ? NUMBERED / 4 : 0); // the last mark may have a number, too
  const height = EDGE + (round + 1) * ROW + 8;
  const at = (step) => ({ x: NAMES + step.x * room, y: step.round * ROW + EDGE + ROW / 2 });
  const top = { x: NAMES + room / 2, y: EDGE / 2 };
  const alive = aliveAt(tree, round);
  const size = Math.min(8, Math.max(4.5, (0.36 * room) / most));
  const steps = tree.rows.slice(0, round + 1).flat();
  const from = (step) => (step.parent ? at(tree.stepOf.get(step.parent)) : top);
  const byStrength = steps.toSorted((a, b) => alive.has(a.number) - alive.has(b.number)); // strong ones on top
  const lines = byStrength.map((step) => line(from(step), at(step), alive.has(step.number)));
  const marks = steps.map((step) => mark(step, at(step), size, { fate: fateOf(tree, step, round), picked, pick, describe }));
  const rows = Array.from({ length: round + 1 }, (_, row) => [`Round ${row + 1}`, row * ROW + EDGE + ROW / 2]);
  const names = [["Problem", top.y], ...rows].map(([text, y]) => svg("text", { class: "row-name", x: 8, y: y + 4 }, text));
  const band = svg("rect", { class: "band", x: 0, y: round * ROW + EDGE, width, height: ROW, rx: 6 });
  const root = svg("circle", { class: "root", cx: top.x, cy: top.y, r: 5 });
  const label = `${steps.length} steps in ${round + 1} rounds; the list of candidates shows the same as text`;
  const before = box.scrollTop;
  const frame = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label };
  box.replaceChildren(svg("svg", frame, band, names, lines, root, marks));
  const end = round * ROW + EDGE + ROW;
  box.scrollTop = end > before + box.clientHeight || end - ROW < before ? end - box.clientHeight + 8 : before;
}

function line(from, to, strong) {
  const middle = (from.y + to.y) / 2;
  const d = `M${from.x} ${from.y}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y}`;
  return svg("path", { d, class: strong ? "edge alive" : "edge" });
}

// Kept steps are filled, dropped ones hollow and crossed out; a square ends a solution. The color is the score.
function mark(step, { x, y }, size, { fate, picked, pick, describe }) {
  const r = fate === "ahead" ? 0.65 * size : size;
  const shape = step.ending
    ? svg("rect", { class: "shape", x: x - r, y: y - r, width: 2 * r, height: 2 * r, rx: 1.5 })
    : svg("circle", { class: "shape", cx: x, cy: y, r });
  const c = 0.55 * r;
  const crossed = `M${x - c} ${y - c}L${x + c} ${y + c}M${x - c} ${y + c}L${x + c} ${y - c}`;
  const ring = svg("circle", { class: "ring", cx: x, cy: y, r: r + 4 });
  const hasRing = fate === "chosen" || step.number === picked;
  const times = step.numbers.length;
  const title = [`Step ${step.number}`, percent(step.score), describe(fate), times > 1 && `written ${times} times`];
  return svg(
    "g",
    {
      class: `dot ${fate}${step.number === picked ? " picked" : ""}`,
      "--right": step.score === null ? "50%" : `${(100 * step.score).toFixed(1)}%`,
      onclick: () => pick(step.number),
    },
    svg("title", {}, title.filter(Boolean).join(", ")),
    hasRing && ring,
    shape,
    fate === "dropped" && svg("path", { class: "cross", d: crossed }),
    times > 1 && svg("text", { class: "times", x: x + r + (hasRing ? 8 : 5), y: y + 4 }, `×${times}`),
  );
}
