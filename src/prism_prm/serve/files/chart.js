// A chart of lines with intervals over updates, as wide as its figure. Lines differ in color, dash and marker.

import { h, percent, svg } from "./dom.js";

const HEIGHT = 312;
const SPACE = { left: 52, right: 14, top: 32, bottom: 48 };

// lines: [{title, points: [[value, low, high], …]}], one point per update. `at` is the index of the update shown below,
// `marks` are updates with an alarm, `yName` is the label of the y axis. With `canBeShare`, values are shown as percent
// if all are between 0 and 1. Without values, the figure is hidden.
export function drawChart(figure, { updates, lines, at, marks = [], pick, caption, yName, canBeShare = false }) {
  const values = lines.flatMap((line) => line.points.flat()).filter((value) => Number.isFinite(value));
  figure.hidden = !values.length;
  if (!values.length) return;
  const isShare = canBeShare && areShares(values);
  const width = Math.max(280, figure.clientWidth);
  const [left, right] = [SPACE.left, width - SPACE.right];
  const [top, bottom] = [SPACE.top, HEIGHT - SPACE.bottom];
  const first = updates[0];
  const span = Math.max(1, updates.at(-1) - first);
  const ticks = niceTicks(Math.min(...values), Math.max(...values), isShare);
  const [low, high] = [ticks[0], ticks.at(-1)];
  const x = (update) => left + ((update - first) / span) * (right - left);
  const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  const shown = (value) => (isShare ? percent(value, 0) : plain(value));

  const grid = ticks.map((tick) => [
    svg("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
    svg("text", { class: "tick-text", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, shown(tick)),
  ]);
  const every = Math.max(1, Math.ceil(updates.length / Math.max(2, Math.floor((right - left) / 56))));
  const text = { class: "tick-text", y: bottom + 18, "text-anchor": "middle" };
  const labels = updates
    .filter((_, number) => number % every === 0)
    .map((update) => svg("text", { ...text, x: x(update) }, String(update)));
  const upright = (update, name) => svg("line", { class: name, x1: x(update), x2: x(update), y1: top, y2: bottom });
  const alarms = marks.map((update) => upright(update, "alarm-line"));
  const now = upright(updates[at], "now");
  const isLeft = x(updates[at]) < (left + right) / 2;
  const names = [
    svg("text", { class: "tick-text axis-name", x: 2, y: 12 }, yName),
    svg("text", { ...text, class: "tick-text axis-name", x: (left + right) / 2, y: bottom + 38 }, "update"),
    svg(
      "text",
      { class: "tick-text now-name", x: x(updates[at]), y: top - 5, "text-anchor": isLeft ? "start" : "end" },
      `shown below: update ${updates[at]}`,
    ),
  ];
  const drawn = lines.map((line, number) => lineOf(line, number, updates, x, y));
  const label = `${caption}. ${lines.map((line) => describe(line, updates, shown)).join(" ")}`;
  const picture = svg(
    "svg",
    {
      width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label,
      onclick: (event) => pick(nearest(updates, first + ((event.offsetX - left) / (right - left)) * span)),
    },
    grid, labels, alarms, now, drawn, names,
  );
  const legend = h(
    "ul",
    { class: "legend" },
    lines.map((line, number) => h("li", {}, key(number), line.title)),
    marks.length > 0 && h("li", {}, alarmKey(), "alarm"),
  );
  figure.replaceChildren(h("figcaption", {}, caption, lines.length + marks.length > 1 ? legend : ""), picture);
}

export function areShares(values) {
  return values.every((value) => !Number.isFinite(value) || (value >= 0 && value <= 1));
}

// A number to three digits; "–" means "none".
export function plain(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(3))) : "–";
}

function lineOf({ points }, number, updates, x, y) {
  const known = updates.map((update, at) => ({ update, point: points[at] })).filter(({ point }) => point[0] !== null);
  const path = known.map(({ update, point }, at) => `${at ? "L" : "M"}${x(update)} ${y(point[0])}`).join("");
  const banded = known.filter(({ point }) => point[1] !== null && point[2] !== null && point[1] !== point[2]);
  const up = banded.map(({ update, point }, at) => `${at ? "L" : "M"}${x(update)} ${y(point[2])}`).join("");
  const down = banded.toReversed().map(({ update, point }) => `L${x(update)} ${y(point[1])}`).join("");
  return svg(
    "g",
    { class: `line line-${number}` },
    banded.length > 1 && svg("path", { class: "interval", d: `${up}${down}Z` }),
    svg("path", { class: "stroke", d: path }),
    known.map(({ update, point }) => marker(number, x(update), y(point[0]))),
  );
}

function marker(number, x, y) {
  if (number === 1) return svg("rect", { class: "point", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
  const triangle = `M${x} ${y - 5}L${x + 4.5} ${y + 3.5}L${x - 4.5} ${y + 3.5}Z`;
  if (number === 2) return svg("path", { class: "point", d: triangle });
  return svg("circle", { class: "point", cx: x, cy: y, r: 3.8 });
}

function key(number) {
  const box = { width: 30, height: 12, "aria-hidden": "true", class: `line line-${number}` };
  return svg("svg", box, svg("path", { class: "stroke", d: "M0 6L30 6" }), marker(number, 15, 6));
}

function alarmKey() {
  const box = { width: 12, height: 12, "aria-hidden": "true" };
  return svg("svg", box, svg("line", { class: "alarm-line", x1: 6, x2: 6, y1: 0, y2: 12 }));
}

function describe({ title, points }, updates, shown) {
  const [first, last] = [points[0][0], points.at(-1)[0]].map(shown);
  return `${title}: ${first} at update ${updates[0]}, ${last} at update ${updates.at(-1)}.`;
}

function nearest(updates, wanted) {
  const off = updates.map((update) => Math.abs(update - wanted));
  return off.indexOf(Math.min(...off));
}

// Four to six round values that span the data; shares stay within 0 and 1.
function niceTicks(least, most, isShare) {
  const room = most - least || Math.abs(most) || 1;
  const raw = room / 4;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * ten).find((one) => one >= raw);
  let from = Math.floor(least / step) * step;
  let to = Math.ceil(most / step) * step;
  if (isShare) [from, to] = [Math.max(0, from), Math.min(1, to)];
  if (to <= from) to = from + step;
  const ticks = [];
  for (let at = from; at < to + step / 2; at += step) ticks.push(Math.min(at, isShare ? 1 : at));
  return ticks;
}
