// The source of documents: embedded in the file, or a server that is polled.
//
// Both have list() → [{id, kind, title, note}] and load(id, again) → the document; with `again`, null if it has not changed
// since it was last loaded. Only a server has models(), score(), and forget(id), which makes the next load() complete.

const KEY = "prism-api-key";

export class KeyNeeded extends Error {}

export function openSource() {
  const listed = document.getElementById("documents");
  return listed ? new Embedded(JSON.parse(listed.textContent)) : new Server();
}

class Embedded {
  constructor(entries) {
    this.entries = entries;
    this.isLive = false;
  }
  async list() {
    return this.entries;
  }
  async load(id) {
    return JSON.parse(document.getElementById(`document-${id}`).textContent);
  }
  async models() {
    return [];
  }
}

class Server {
  constructor() {
    this.isLive = true;
    this.tags = new Map();
  }
  setKey(key) {
    sessionStorage.setItem(KEY, key);
  }
  async list() {
    return (await (await this.ask("v1/documents")).json()).data;
  }
  async load(id, again = false) {
    const known = again ? { "If-None-Match": this.tags.get(id) ?? "" } : {};
    const answer = await this.ask(`v1/documents/${encodeURIComponent(id)}`, { headers: known });
    if (answer.status === 304) return null;
    const found = await answer.json();
    this.tags.set(id, answer.headers.get("ETag") ?? "");
    return found;
  }
  forget(id) {
    this.tags.delete(id);
  }
  async models() {
    const found = (await (await this.ask("v1/models")).json()).data;
    return found.filter((model) => model.owned_by !== "prism-search"); // those score nothing
  }
  async score(model, problem, solution) {
    const body = JSON.stringify({ model, items: [{ problem, solution }], on_too_long: "skip" });
    const headers = { "Content-Type": "application/json" };
    return (await this.ask("v1/steps", { method: "POST", body, headers })).json();
  }
  async ask(path, options = {}) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    if (answer.status === 401) throw new KeyNeeded(key ? "The server does not accept this key." : "");
    if (!answer.ok && answer.status !== 304) throw new Error(await reason(answer));
    return answer;
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered with ${answer.status}.`;
  }
}
