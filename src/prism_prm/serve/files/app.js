// The page: tabs for the views, the chosen document of each, the API key, and looking again while a run goes on.
//
// A view is {kind, tab, render(root, found, page)}. `found` is a document, made by Python; `page` has load(id) for further
// documents, isLive, models and score(). render may return a function that takes a changed document: without one the
// view is drawn anew. The view "try" has no document: it is there where a server has models.

import { brokenView } from "./broken.js";
import { choose, field, h, replace } from "./dom.js";
import { errorsView } from "./errors.js";
import { grpoView } from "./grpo.js";
import { programsView } from "./programs.js";
import { scoresView } from "./scores.js";
import { searchView } from "./search.js";
import { KeyNeeded, openSource } from "./source.js";
import { tryView } from "./try.js";

const VIEWS = [tryView, scoresView, errorsView, searchView, grpoView, programsView, brokenView];
const SECONDS = 2;
const [PROBLEM, STALE] = ["problem", "stale"]; // what failed that somebody did, and what failed by itself

const source = openSource();
const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
let entries = [];
let models = [];
let shown = null; // {id, view, body, update, hasFailed}
let isAsking = false; // for a key
let turn = 0; // of showing something: whoever is not the last one comes too late
let loading = 0;

async function start() {
  [entries, models] = [await source.list(), await source.models()];
  await show();
}

// The address is #KIND or #KIND/ID. What cannot be loaded is said in its place.
async function show() {
  const own = ++turn;
  const [kind, id] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const there = views();
  const view = there.find((one) => one.kind === kind) ?? there[0];
  drawTabs(view);
  if (!view) {
    shown = null;
    replace(root, nothing());
    return;
  }
  const choices = documents(view);
  const entry = choices.find((one) => one.id === id) ?? choices[0];
  const [found, failure] = entry ? await attempt(() => source.load(entry.id)) : [null, null];
  if (own !== turn) return;
  const body = h("div", { class: `of-${view.kind}` });
  replace(root, picker(view, choices, entry), body);
  document.title = `${entry ? entry.title : view.tab} · prism`;
  shown = { id: entry?.id, view, body, hasFailed: Boolean(failure) };
  if (failure) replace(body, problem(failure.message));
  else shown.update = view.render(body, found, page);
}

// What came of it, and the error if it failed; a missing key is nobody's answer.
async function attempt(work) {
  try {
    return [await work(), null];
  } catch (error) {
    if (error instanceof KeyNeeded) throw error;
    return [null, error];
  }
}

function views() {
  return VIEWS.filter((view) => documents(view).length || (view === tryView && models.length));
}

function documents(view) {
  return entries.filter((entry) => entry.kind === view.kind);
}

const page = {
  get isLive() {
    return source.isLive;
  },
  get models() {
    return models;
  },
  load: (id) => source.load(id),
  score: (...asked) => source.score(...asked),
  guarded: (work) => guarded(work),
};

function drawTabs(view) {
  const current = (one) => (one === view ? "page" : null);
  replace(tabs, views().map((one) => h("a", { href: `#${one.kind}`, "aria-current": current(one) }, one.tab)));
}

function picker(view, own, entry) {
  if (!entry) return null;
  const note = entry.note && h("p", { class: "note", dir: "auto" }, entry.note);
  const title = h("div", {}, h("h1", { dir: "auto" }, entry.title), note);
  if (own.length === 1) return h("div", { class: "head" }, title);
  const options = own.map((one) => [one.id, one.title]);
  const select = choose(options, entry.id, (id) => {
    location.hash = `${view.kind}/${encodeURIComponent(id)}`;
  });
  return h("div", { class: "head" }, title, field("Show", select));
}

function nothing() {
  return h(
    "div",
    { class: "empty" },
    h("h1", {}, "Nothing to show yet"),
    h("p", {}, "Results appear here as soon as they are written."),
  );
}

// A watched document is asked for again; so is the list, where a run may have added to it, and models that are loading.
async function lookAgain() {
  const before = JSON.stringify([entries, models]);
  [entries, models] = [await source.list(), models.length ? models : await source.models()];
  const isMended = shown?.view === brokenView && !entries.some((entry) => entry.id === shown.id);
  if (!shown || isMended) return show();
  if (JSON.stringify([entries, models]) !== before) drawTabs(shown.view);
  if (shown.id) await update(shown);
}

async function update(now) {
  if (now.hasFailed) {
    const [, failure] = await attempt(() => source.load(now.id));
    return failure || now !== shown ? null : show();
  }
  const found = await source.load(now.id, true);
  if (found === null || now !== shown) return;
  try {
    if (now.update) await now.update(found);
    else now.update = now.view.render(now.body, found, page);
  } catch (error) {
    source.forget(now.id); // or the next look would find nothing new
    throw error;
  }
}

// What fails is said until the same works again, and where a key is needed it is asked for.
async function guarded(work, kind = PROBLEM) {
  try {
    await work();
    document.getElementById(kind)?.remove();
  } catch (error) {
    if (error instanceof KeyNeeded) askForKey(error.message);
    else complain(kind, kind === STALE ? `Not up to date: ${error.message}` : error.message);
  }
}

function complain(kind, text) {
  const before = document.getElementById(kind);
  if (before?.textContent === text) return;
  before?.remove();
  root.prepend(problem(text, kind));
}

function problem(text, kind = null) {
  return h("p", { id: kind, class: "problem", role: "alert", dir: "auto" }, text);
}

function askForKey(message) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const form = h(
    "form",
    {
      class: "key",
      onsubmit: (event) => {
        event.preventDefault();
        source.setKey(input.value.trim());
        isAsking = false;
        guarded(() => alone(start));
      },
    },
    h("h1", {}, "This server needs a key"),
    message && h("p", { class: "problem", role: "alert" }, message),
    field("API key", input, "Kept until this tab is closed, and sent to this server alone."),
    h("button", { class: "primary" }, "Open"),
  );
  isAsking = true;
  turn += 1; // whatever is still on its way comes too late
  shown = null;
  replace(root, form);
  input.focus();
}

// Nobody looks again while something is being loaded.
async function alone(work) {
  loading += 1;
  try {
    await work();
  } finally {
    loading -= 1;
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is that of a view
  root.focus();
});
addEventListener("hashchange", () => guarded(() => alone(show)));
if (source.isLive) {
  setInterval(() => {
    if (!document.hidden && !isAsking && !loading) guarded(() => alone(lookAgain), STALE);
  }, 1000 * SECONDS);
}
guarded(() => alone(start));
