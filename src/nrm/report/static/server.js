// Talking to the explorer's server: items, views in parts, selections. Long work is followed and never blocks the page.
import { el } from "./numbers.js";

const SOON = 250, MANY = 2000;

export function connect(words, receive, clear) {
  const token = new URLSearchParams(location.search).get("token") ?? "";
  const at = (id) => document.getElementById(id);
  const now = { item: null, target: null, compare: null, layers: null, nodes: 8, view: null, job: null, asked: null, classes: [], items: [], ways: [] };

  async function call(path, options = {}) {
    const answer = await fetch(path, { ...options, headers: { "X-Token": token, ...(options.headers ?? {}) } });
    const data = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(data.error ?? `the server answered ${answer.status}`);
    return data;
  }
  const post = (path, body) => call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const cancel = (job) => post(`api/jobs/${job}/cancel`, {}).catch(() => {});

  // The parts of a job as they come; returns when it is over. What takes a while is shown, and can be cancelled.
  async function follow(job, take) {
    const begun = Date.now();
    try {
      for (let seen = 0; ;) {
        const news = await call(`api/jobs/${job}?since=${seen}`);
        for (const part of news.parts) take(part);
        seen += news.parts.length;
        if (news.state === "failed") throw new Error(news.error);
        if (news.state === "cancelled") throw new Error("cancelled");
        if (news.state === "done") return;
        if ((now.asked ?? now.job) === job && Date.now() - begun > SOON) show(news, job);
      }
    } finally {
      if (now.asked === job) now.asked = null;
    }
  }

  function show(news, job) {
    const bar = news.seconds > 1 ? el("progress", { max: news.seconds, value: Math.min(news.elapsed, news.seconds) }) : el("span", { class: "spin" });
    const left = news.seconds > 1 ? ` (${Math.max(0, Math.round(news.seconds - news.elapsed))} s left)` : "";
    at("job").hidden = false;
    const same = at("job").dataset.job === job && at("cancel");
    const button = same || el("button", { type: "button", id: "cancel", onclick: () => cancel(job) }, "cancel");
    at("job").dataset.job = job;
    at("job").replaceChildren(bar, el("span", {}, `${news.step}${left}`), button);
  }

  function hide() {
    if (!at("job").querySelector(".error")) at("job").hidden = true;
  }

  function priced(what, price, go) {
    at("job").hidden = false;
    at("job").replaceChildren(el("span", {}, `${what} takes about ${Math.round(price.seconds)} s (${price.passes} forward passes).`),
      el("button", { type: "button", id: "agree", onclick: go }, "compute"), el("button", { type: "button", onclick: () => { at("job").hidden = true; } }, "leave it"));
  }

  function say(text) {
    at("job").hidden = false;
    at("job").replaceChildren(el("span", { class: "error" }, text), el("button", { type: "button", onclick: () => { at("job").hidden = true; } }, "close"));
  }

  async function load(agreed = false) {
    if (now.old) {
      now.old = false;
      say("Another class is compare= in the address, not against=.");
      return;
    }
    if (now.job) await cancel(now.job);
    const question = { item: now.item, target: now.target, compare: now.compare, layers: now.layers, nodes: now.nodes, agreed };
    let mine = null;
    try {
      const { job } = await post("api/views", question);
      mine = now.job = now.view = job;
      show({ step: "running the network", seconds: 0 }, job);
      let first = true, price = null;
      await follow(job, (part) => {
        if (now.view !== job) return;
        if (part.price) { price = part.price; return; }
        if (part.ahead) { follow(part.ahead, (more) => now.view === job && receive(more, false)).catch(() => {}); return; }
        if (first) fill(part);
        receive(part, first);
        if (part.columns) fillLayers(part);
        first = false;
      });
      if (now.job !== job) return;
      now.job = null;
      at("job").hidden = true;
      if (price) priced("The flow through these layers", price, () => load(true));
    } catch (error) {
      if (mine !== null && now.job !== mine) return;
      now.job = null;
      say(error.message);
    }
  }

  // ---- controls

  function options(list, chosen) {
    return list.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text));
  }

  function fill(view) {
    now.ways = view.layers;
    const count = view.decision.classes ?? 0, names = (i) => now.classes[i] ?? `output ${i}`;
    // Of very many outputs only the largest are listed.
    const numbers = count <= MANY ? Array.from({ length: count }, (_, i) => i) : view.decision.alternatives.map((a) => a.index);
    for (const [id, none, chosen] of [["target", "the prediction", now.target], ["compare", "nothing", now.compare]]) {
      const listed = chosen === null || numbers.includes(chosen) ? numbers : [...numbers, chosen];
      at(id).replaceChildren(...options([["", none], ...listed.map((i) => [i, names(i)])], chosen ?? ""));
    }
  }

  function fillLayers(view) {
    const picks = view.columns.map((c) => [c.name, c.by]);
    const waysOf = (name) => now.ways.find((w) => w.name === name)?.ways ?? view.columns.find((c) => c.name === name)?.ways ?? ["channels"];
    const line = (pick, i) => {
      const names = now.ways.map((w) => [w.name, w.name]);
      if (!names.some(([n]) => n === pick[0])) names.push([pick[0], pick[0]]);
      return el("span", { class: "pick" },
        el("select", { "aria-label": `layer ${i + 1}`, onchange: (e) => { picks[i] = [e.target.value, waysOf(e.target.value)[0]]; draw(); } }, ...options(names, pick[0])),
        el("select", { "aria-label": `division of layer ${i + 1}`, onchange: (e) => { pick[1] = e.target.value; } }, ...options(waysOf(pick[0]).map((w) => [w, w]), pick[1])),
        el("button", { type: "button", "aria-label": `remove layer ${i + 1}`, onclick: () => { picks.splice(i, 1); draw(); } }, "×"));
    };
    const apply = () => { now.layers = picks.map((p) => [...p]); clear(); load(); };
    const draw = () => at("choice").replaceChildren(el("summary", {}, "layers and nodes"), ...picks.map(line),
      el("button", { type: "button", onclick: () => { picks.push([now.ways.at(-1).name, "channels"]); draw(); } }, "+ layer"),
      el("label", {}, "nodes ", el("input", { id: "nodes", type: "number", min: 1, max: 32, value: now.nodes, onchange: (e) => { now.nodes = Math.min(32, Math.max(1, Number(e.target.value) || 8)); } })),
      el("button", { type: "button", id: "apply", onclick: apply }, "show these layers"));
    draw();
    at("choice").hidden = false;
  }

  function fillItems() {
    at("item").replaceChildren(...options(now.items.map((i) => [i.id, i.name]), now.item));
  }

  async function add(request) {
    try {
      const made = await request;
      now.items.push(made);
      [now.item, now.target] = [made.id, null];
      fillItems();
      clear();
      load();
    } catch (error) { say(error.message); }
  }
  const upload = (file) => add(call(`api/items?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file }));

  function adding(kind) {
    if (kind === "text") {
      const text = el("input", { id: "text", type: "text", placeholder: "another text", "aria-label": "another text", maxlength: 4000 });
      return [el("form", { class: "write", onsubmit: (e) => { e.preventDefault(); add(post("api/texts", { text: text.value })); } }, text, el("button", { type: "submit", id: "write" }, "explain"))];
    }
    if (kind !== "image") return [];
    addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    addEventListener("dragleave", () => document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]);
    });
    return [el("label", { class: "drop" }, "drop an image here, or choose one",
      el("input", { id: "file", type: "file", accept: "image/*", onchange: (e) => e.target.files[0] && upload(e.target.files[0]) }))];
  }

  function controls(facts) {
    const number = (event) => (event.target.value === "" ? null : Number(event.target.value));
    at("controls").replaceChildren(
      el("label", {}, "input", el("select", { id: "item", onchange: (e) => { now.item = e.target.value; now.target = null; clear(); load(); } })),
      el("label", {}, "explain", el("select", { id: "target", onchange: (e) => { now.target = number(e); clear(); load(); } })),
      el("label", {}, "compare with", el("select", { id: "compare", onchange: (e) => { now.compare = number(e); load(); } })),
      ...adding(facts.kind));
    at("controls").hidden = false;
    fillItems();
  }

  function read(found) {
    const number = (name) => (/^\d{1,9}$/.test(found.get(name) ?? "") ? Number(found.get(name)) : null);
    const item = found.get("item");
    now.item = now.items.some((i) => i.id === item) ? item : now.item ?? now.items[0]?.id ?? null;
    [now.target, now.compare, now.old] = [number("target"), number("compare"), found.has("against")];
    now.nodes = Math.min(32, Math.max(1, number("nodes") ?? 8));
    try { now.layers = JSON.parse(found.get("layers")); } catch { now.layers = null; }
    if (!Array.isArray(now.layers) || now.layers.length < 2) now.layers = null;
  }

  (async () => {
    try {
      const facts = await call("api/items");
      [now.items, now.classes] = [facts.items, facts.classes];
      read(words);
      controls(facts);
      if (now.item !== null) load();
      else say("There is no input yet: add one on the left.");
    } catch (error) { say(error.message); }
  })();

  const state = () => JSON.stringify([now.item, now.target, now.compare, now.layers, now.nodes]);
  return {
    address: () => Object.fromEntries(Object.entries({ item: now.item, target: now.target, compare: now.compare,
      layers: now.layers && JSON.stringify(now.layers), nodes: now.nodes === 8 ? null : now.nodes }).filter(([, value]) => value !== null)),
    explain(index) { now.target = index; clear(); load(); },
    follow(found) {
      const before = state();
      read(found);
      if (now.old || before !== state()) { fillItems(); load(); }
    },
    // What was asked before is not wanted any more.
    forget() {
      if (now.asked) cancel(now.asked);
      now.asked = null;
    },
    async select(nodes, take) {
      const { job } = await post("api/selections", { view: now.view, nodes });
      now.asked = job;
      try { await follow(job, take); } finally { if (!now.job) hide(); }
    },
    // The circuit of the view, and what is asked about it; returns the number of the job.
    async circuit(what, question, take) {
      this.forget();
      const { job } = await post(`api/circuits/${what}`, { ...question, view: now.view });
      now.asked = job;
      try { await follow(job, take); } finally { if (!now.job) hide(); }
      return job;
    },
    name: (question) => post("api/names", question),
    // What a formula would cost.
    async price(text, sets) {
      const { job } = await post("api/formulas", { view: now.view, text, sets, price: true });
      let answer = null;
      await follow(job, (part) => { answer = part.price; });
      return answer;
    },
    // The answer of a formula; what takes long is asked for first.
    async ask(text, sets, agreed = false) {
      this.forget();
      const { job } = await post("api/formulas", { view: now.view, text, sets, agreed });
      now.asked = job;
      let answer = null;
      try { await follow(job, (part) => { answer = part; }); } finally { if (!now.job) hide(); }
      if (!answer.price) return answer;
      return new Promise((done, fail) => priced("This formula", answer.price, () => { hide(); this.ask(text, sets, true).then(done, fail); }));
    },
  };
}
