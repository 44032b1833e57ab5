// Talking to the explorer's server: items, views in parts, selections. Long work is polled and never blocks the page.
import { el } from "./numbers.js";

const POLL = 120;

export function connect(words, receive, forget) {
  const token = new URLSearchParams(location.search).get("token") ?? "";
  const at = (id) => document.getElementById(id);
  const now = { item: null, target: null, against: null, layers: null, nodes: 8, view: null, job: null, classes: [], items: [], ways: [] };

  async function call(path, options = {}) {
    const answer = await fetch(path, { ...options, headers: { "X-Token": token, ...(options.headers ?? {}) } });
    const data = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(data.error ?? `the server answered ${answer.status}`);
    return data;
  }
  const post = (path, body) => call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  // The parts of a job as they come; returns when it is over.
  async function follow(job, take) {
    for (let seen = 0; ;) {
      const news = await call(`api/jobs/${job}?since=${seen}`);
      for (const part of news.parts) take(part);
      seen += news.parts.length;
      if (news.state === "failed") throw new Error(news.error);
      if (news.state === "cancelled") throw new Error("cancelled");
      if (news.state === "done") return;
      if (now.job === job) show(news.step);
      await wait(POLL);
    }
  }

  function show(step, ...more) {
    at("job").hidden = step === null;
    if (step !== null) at("job").replaceChildren(el("span", { class: "spin" }), el("span", {}, step), ...more,
      ...(now.job ? [el("button", { type: "button", id: "cancel", onclick: () => post(`api/jobs/${now.job}/cancel`, {}) }, "cancel")] : []));
  }

  function priced(what, price, go) {
    show(`${what} takes about ${price.seconds} s (${price.passes} forward passes).`, el("button", { type: "button", id: "agree", onclick: go }, "compute"));
    at("job").querySelector(".spin").remove();
  }

  function say(text) {
    at("job").hidden = false;
    at("job").replaceChildren(el("span", { class: "error" }, text), el("button", { type: "button", onclick: () => { at("job").hidden = true; } }, "close"));
  }

  async function load(agreed = false) {
    if (now.job) post(`api/jobs/${now.job}/cancel`, {}).catch(() => {});
    const question = { item: now.item, target: now.target, against: now.against, layers: now.layers, nodes: now.nodes, agreed };
    let mine = null;
    try {
      const { job } = await post("api/views", question);
      mine = now.job = now.view = job;
      show("asking the network");
      let first = true, price = null;
      await follow(job, (part) => {
        if (now.view !== job) return;
        if (part.price) { price = part.price; return; }
        receive(part, first);
        if (first) fill(part);
        if (part.columns) fillLayers(part);
        first = false;
      });
      if (now.job !== job) return;
      now.job = null;
      show(null);
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
    const classes = now.classes.length ? now.classes.map((name, i) => [i, name])
      : Array.from({ length: view.decision.classes ?? 0 }, (_, i) => [i, `output ${i}`]);
    at("target").replaceChildren(...options([["", "the prediction"], ...classes], now.target ?? ""));
    at("against").replaceChildren(...options([["", "nothing"], ...classes], now.against ?? ""));
  }

  function fillLayers(view) {
    const picks = view.columns.map((c) => [c.name, c.by]);
    const line = (pick, i) => {
      const layer = now.ways.find((w) => w.name === pick[0] || (pick[0] === "output" && w === now.ways.at(-1)));
      const names = now.ways.map((w) => [w.name, w.name]);
      if (!names.some(([n]) => n === pick[0])) names.push([pick[0], pick[0]]);
      const change = (k) => (event) => { picks[i][k] = event.target.value; if (k === 0) picks[i][1] = "channels"; };
      return el("span", { class: "pick" },
        el("select", { "aria-label": `layer ${i + 1}`, onchange: change(0) }, ...options(names, pick[0])),
        el("select", { "aria-label": `division of layer ${i + 1}`, onchange: change(1) }, ...options((layer?.ways ?? ["channels"]).map((w) => [w, w]), pick[1])),
        el("button", { type: "button", "aria-label": `remove layer ${i + 1}`, onclick: () => { picks.splice(i, 1); draw(); } }, "×"));
    };
    const draw = () => at("choice").replaceChildren(...picks.map(line),
      el("button", { type: "button", onclick: () => { picks.push([now.ways.at(-1).name, "channels"]); draw(); } }, "+ layer"),
      el("button", { type: "button", id: "apply", onclick: () => { now.layers = picks.map((p) => [...p]); forget(); load(); } }, "show these layers"));
    draw();
    at("choice").hidden = false;
  }

  function fillItems() {
    at("item").replaceChildren(...options(now.items.map((i) => [i.id, i.name]), now.item));
  }

  async function upload(file) {
    try {
      const made = await call(`api/items?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
      now.items.push(made);
      now.item = made.id;
      fillItems();
      forget();
      load();
    } catch (error) { say(error.message); }
  }

  function controls(facts) {
    const number = (event) => (event.target.value === "" ? null : Number(event.target.value));
    at("controls").replaceChildren(
      el("label", {}, "input", el("select", { id: "item", onchange: (e) => { now.item = e.target.value; now.target = null; forget(); load(); } })),
      el("label", {}, "explain", el("select", { id: "target", onchange: (e) => { now.target = number(e); forget(); load(); } })),
      el("label", {}, "compare with", el("select", { id: "against", onchange: (e) => { now.against = number(e); load(); } })),
      ...(facts.upload ? [el("label", { class: "drop" }, "drop an image here, or choose one",
        el("input", { id: "file", type: "file", accept: "image/*", onchange: (e) => e.target.files[0] && upload(e.target.files[0]) }))] : []));
    at("controls").hidden = false;
    if (facts.upload) {
      addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
      addEventListener("dragleave", () => document.body.classList.remove("dropping"));
      addEventListener("drop", (event) => {
        event.preventDefault();
        document.body.classList.remove("dropping");
        if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]);
      });
    }
    fillItems();
  }

  function read(found) {
    const number = (name) => (/^\d+$/.test(found.get(name) ?? "") ? Number(found.get(name)) : null);
    const item = found.get("item");
    now.item = now.items.some((i) => i.id === item) ? item : now.item ?? now.items[0]?.id ?? null;
    [now.target, now.against] = [number("target"), number("against")];
    try { now.layers = found.has("layers") ? JSON.parse(found.get("layers")) : null; } catch { now.layers = null; }
  }

  (async () => {
    try {
      const facts = await call("api/items");
      [now.items, now.classes] = [facts.items, facts.classes];
      read(words);
      controls(facts);
      if (now.item !== null) load();
      else say("There is no input yet: drop an image on the page.");
    } catch (error) { say(error.message); }
  })();

  return {
    address: () => Object.fromEntries(Object.entries({ item: now.item, target: now.target, against: now.against,
      layers: now.layers && JSON.stringify(now.layers) }).filter(([, value]) => value !== null)),
    explain(index) { now.target = index; forget(); load(); },
    follow(found) {
      const before = JSON.stringify([now.item, now.target, now.against, now.layers]);
      read(found);
      if (before !== JSON.stringify([now.item, now.target, now.against, now.layers])) { fillItems(); load(); }
    },
    async select(nodes) {
      const { job } = await post("api/selections", { view: now.view, nodes });
      let answer = null;
      await follow(job, (part) => { answer = part; });
      return answer;
    },
    // The answer of a formula; what takes long is asked for first.
    async ask(text, sets, agreed = false) {
      const { job } = await post("api/formulas", { view: now.view, text, sets, agreed });
      let answer = null;
      await follow(job, (part) => { answer = part; });
      if (!answer.price) return answer;
      return new Promise((done, fail) => priced("This formula", answer.price, () => { show(null); this.ask(text, sets, true).then(done, fail); }));
    },
  };
}
