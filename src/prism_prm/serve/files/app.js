// The page: tabs for the views, the chosen document of each, the API key, and polling while a run is active.
//
// A view is {kind, tab, render(root, found, page)}. `found` is a document, built by Python; `page` has load(id) for more
// documents, models, score() and guarded(). render may return a callback for a changed document; otherwise the view is
// rendered again. The view "try" has no document: it is shown if the server has models.

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
const [PROBLEM, STALE] = ["problem", "stale"]; // errors of user actions, and of polling

const source = openSource();
const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
let entries = [];
let models = [];
let shown = null; // {id, view, body, update, hasFailed}
let isAsking = false; // for a key
let turn = 0; // counts calls of show(): results of earlier calls are discarded
let loading = 0;

async function start() {
  [entries, models] = [await source.list(), await source.models()];
  await show();
}

// The address is #KIND or #KIND/ID. If a document cannot be loaded, its error is shown instead.
async function show() {
  const own = ++turn;
  const [kind, id] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const available = views();
  const view = available.find((one) => one.kind === kind) ?? available[0];
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

// [result, error]; a missing key is thrown.
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

// Load the shown document again, the list, to which a run may have added, and the models until they are loaded.
async function poll() {
  const before = JSON.stringify([entries, models]);
  [entries, models] = [await source.list(), models.length ? models : await source.models()];
  const isFixed = shown?.view === brokenView && !entries.some((entry) => entry.id === shown.id);
  if (!shown || isFixed) return show();
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
    source.forget(now.id); // or the next poll would find nothing new
    throw error;
  }
}

// Show an error until the same kind of work succeeds; ask for a key if one is needed.
async function guarded(work, kind = PROBLEM) {
  try {
    await work();
    document.getElementById(kind)?.remove();
  } catch (error) {
    if (error instanceof KeyNeeded) askForKey(error.message);
    else showProblem(kind, kind === STALE ? `Not up to date: ${error.message}` : error.message);
  }
}

function showProblem(kind, text) {
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
    field("API key", input, "Kept until you close this tab, and sent only to this server."),
    h("button", { class: "primary" }, "Open"),
  );
  isAsking = true;
  turn += 1; // discards what is still loading
  shown = null;
  replace(root, form);
  input.focus();
}

// No polling while something is loading.
async function alone(work) {
  loading += 1;
  try {
    await work();
  } finally {
    loading -= 1;
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the address of a view
  root.focus();
});
addEventListener("hashchange", () => guarded(() => alone(show)));
if (source.isLive) {
  setInterval(() => {
    if (!document.hidden && !isAsking && !loading) guarded(() => alone(poll), STALE);
  }, 1000 * SECONDS);
}
guarded(() => alone(start));
