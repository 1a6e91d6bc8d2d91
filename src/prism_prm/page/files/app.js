// The page: tabs for the views, the chosen document of each, the API key, and looking again while a run goes on.
//
// A view is {kind, tab, render(root, found, page)}. `found` is a document, made by Python; `page` has load(id) for further
// documents, isLive, models and score(). render may return a function that takes a changed document: without one the
// view is drawn anew. The view "try" has no document: it is there where a server has models.

import { choose, field, h, replace } from "./dom.js";
import { errorsView } from "./errors.js";
import { grpoView } from "./grpo.js";
import { programsView } from "./programs.js";
import { scoresView } from "./scores.js";
import { searchView } from "./search.js";
import { KeyNeeded, openSource } from "./source.js";
import { tryView } from "./try.js";

const VIEWS = [tryView, scoresView, errorsView, searchView, grpoView, programsView];
const SECONDS = 2;

const source = openSource();
const root = document.getElementById("view");
const tabs = document.getElementById("tabs");
let entries = [];
let models = [];
let shown = null; // {id, view, body, update}
let isAsking = false; // for a key

async function start() {
  [entries, models] = [await source.list(), await source.models()];
  addEventListener("hashchange", () => guarded(show));
  await show();
  if (source.isLive) setInterval(() => guarded(lookAgain, true), 1000 * SECONDS);
}

// The address is #KIND or #KIND/ID.
async function show() {
  const [kind, id] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const there = views();
  const view = there.find((one) => one.kind === kind) ?? there[0];
  drawTabs(view);
  if (!view) {
    shown = null;
    replace(root, nothing());
    return;
  }
  const own = documents(view);
  const entry = own.find((one) => one.id === id) ?? own[0];
  const found = entry ? await source.load(entry.id) : null;
  const body = h("div", { class: `of-${view.kind}` });
  replace(root, picker(view, own, entry), body);
  document.title = `${entry ? entry.title : view.tab} · prism`;
  shown = { id: entry?.id, view, body, update: view.render(body, found, page) };
}

function views() {
  return VIEWS.filter((view) => documents(view).length || (view === tryView && models.length));
}

function documents(view) {
  return entries.filter((entry) => entry.kind === view.kind && entry.listed);
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
  guarded,
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
  if (document.hidden || isAsking) return;
  const before = JSON.stringify([entries, models]);
  [entries, models] = [await source.list(), models.length ? models : await source.models()];
  if (JSON.stringify([entries, models]) !== before) {
    if (!shown) return show();
    drawTabs(shown.view);
  }
  const now = shown;
  const found = now?.id ? await source.load(now.id, true) : null;
  if (found === null || now !== shown) return;
  if (now.update) now.update(found);
  else now.update = now.view.render(now.body, found, page);
}

// What fails is said, and where a key is needed it is asked for.
async function guarded(work, quietly = false) {
  try {
    await work();
    document.getElementById("problem")?.remove();
  } catch (error) {
    if (error instanceof KeyNeeded) askForKey(error.message, work);
    else if (quietly) complain(`Not up to date: ${error.message}`);
    else complain(error.message);
  }
}

function complain(text) {
  document.getElementById("problem")?.remove();
  root.prepend(h("p", { id: "problem", class: "problem", role: "alert" }, text));
}

function askForKey(message, work) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const form = h(
    "form",
    {
      class: "key",
      onsubmit: (event) => {
        event.preventDefault();
        source.setKey(input.value.trim());
        isAsking = false;
        guarded(work === start ? start : show);
      },
    },
    h("h1", {}, "This server needs a key"),
    message && h("p", { class: "problem", role: "alert" }, message),
    field("API key", input, "Kept until this tab is closed, and sent to this server alone."),
    h("button", { class: "primary" }, "Open"),
  );
  isAsking = true;
  shown = null;
  replace(root, form);
  input.focus();
}

guarded(start);
