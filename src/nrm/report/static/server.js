// What the explorer looks at: inputs, classes, layers, and everything that is asked about the view of them.
import { el } from "./numbers.js";
import { talkTo } from "./talk.js";

const MANY = 2000;

// `page` takes what comes: `receive(part, begins)`, `clear()`, `failed(name, text, again)`, `waiting(item)`, `left(compute)`.
export function connect(words, page) {
  const talk = talkTo();
  const { call, post } = talk;
  const at = (id) => document.getElementById(id);
  const now = { item: null, target: null, compare: null, layers: null, nodes: 8, view: null, known: null, ready: Promise.resolve(), classes: [], items: [], ways: [] };

  const question = () => ({ item: now.item, target: now.target, compare: now.compare, layers: now.layers, nodes: now.nodes });
  const nameOf = (id) => now.items.find((i) => i.id === id)?.name ?? "this input";

  async function load(agreed = false) {
    if (now.old) {
      now.old = false;
      talk.say("Another class is compare= in the address, not against=.");
      return;
    }
    if (talk.now.main) await talk.cancel(talk.now.main);
    talk.unasked();
    let mine = null, first = true;
    const item = now.item, again = () => load(agreed);
    page.waiting(item);
    let begun = () => {};
    now.ready = new Promise((done) => { begun = done; });
    try {
      const { job } = await post("api/views", { ...question(), agreed });
      mine = talk.now.main = now.view = job;
      talk.show({ step: "running the network", seconds: 0 }, job);
      await talk.follow(job, (part) => {
        if (now.view !== job) return;
        if (part.price) { talk.priced("The flow through these layers", part.price, () => load(true), () => page.left(() => load(true))); return; }
        if (part.ahead) { talk.follow(part.ahead, (more) => now.view === job && page.receive(more, false)).catch(() => {}); return; }
        if (first) { fill(part); now.known = job; begun(); }
        page.receive(part, first);
        if (part.columns) fillLayers(part);
        first = false;
      });
      if (talk.now.main !== job) return;
      talk.now.main = null;
      at("job").hidden = true;
    } catch (error) {
      if (mine !== null && talk.now.main !== mine) return;
      talk.now.main = null;
      if (!first) { talk.say(error.message); return; }
      at("job").hidden = true;
      page.failed(nameOf(item), error.message, again);
    } finally { begun(); }
  }

  // A question about the view, when it is there; one that the server has forgotten is made again first.
  async function about(path, body) {
    await now.ready;
    try { return await post(path, { ...body, view: now.known }); }
    catch (error) {
      if (!error.gone || !now.known) throw error;
      const { job } = await post("api/views", { ...question(), bare: true });
      await talk.follow(job, () => {});
      now.known = job;
      return post(path, { ...body, view: job });
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
      const more = id === "compare" && now.other ? [["model", "the other model"]] : [];
      const listed = chosen === null || chosen === "model" || numbers.includes(chosen) ? numbers : [...numbers, chosen];
      at(id).replaceChildren(...options([["", none], ...more, ...listed.map((i) => [i, names(i)])], chosen ?? ""));
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
    const apply = () => { now.layers = picks.map((p) => [...p]); page.clear(); load(); };
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

  function goTo(item, target = null) {
    [now.item, now.target] = [item, target];
    fillItems();
    page.clear();
    load();
  }

  async function add(request, name) {
    try {
      const made = await request;
      now.items.push(made);
      goTo(made.id);
    } catch (error) { talk.complain(`${name}: ${error.message}`); }
  }
  const upload = (file) => add(call(`api/items?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file }), file.name);

  function adding(kind) {
    if (kind === "text") {
      const text = el("input", { id: "text", type: "text", placeholder: "another text", "aria-label": "another text", maxlength: 4000 });
      return [el("form", { class: "write", onsubmit: (e) => { e.preventDefault(); add(post("api/texts", { text: text.value }), "this text"); } }, text, el("button", { type: "submit", id: "write" }, "explain"))];
    }
    if (kind !== "image") return [];
    addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
    addEventListener("dragleave", () => document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]);
    });
    return [el("label", { class: "drop" }, "drop or add an image",
      el("input", { id: "file", type: "file", accept: "image/*", onchange: (e) => { const [file] = e.target.files; e.target.value = ""; if (file) upload(file); } }))];
  }

  function controls(facts) {
    const number = (event) => (event.target.value === "" ? null : event.target.value === "model" ? "model" : Number(event.target.value));
    at("controls").replaceChildren(
      el("label", {}, "input", el("select", { id: "item", onchange: (e) => goTo(e.target.value) })),
      el("label", {}, "explain", el("select", { id: "target", onchange: (e) => { now.target = number(e); page.clear(); load(); } })),
      el("label", {}, "compare", el("select", { id: "compare", onchange: (e) => { now.compare = number(e); page.moved(); load(); } })),
      ...adding(facts.kind));
    at("controls").hidden = false;
    fillItems();
  }

  function read(found) {
    const number = (name) => (/^\d{1,9}$/.test(found.get(name) ?? "") ? Number(found.get(name)) : null);
    const item = found.get("item"), there = now.items.some((i) => i.id === item);
    if (item !== null && !there && now.items.length) talk.complain(`There is no input ${item.slice(0, 40)} here (any more): the first one is shown.`);
    now.item = there ? item : now.items[0]?.id ?? null;
    [now.target, now.compare, now.old] = [number("target"), found.get("compare") === "model" ? "model" : number("compare"), found.has("against")];
    now.nodes = Math.min(32, Math.max(1, number("nodes") ?? 8));
    try { now.layers = JSON.parse(found.get("layers")); } catch { now.layers = null; }
    if (!Array.isArray(now.layers) || now.layers.length < 2) now.layers = null;
  }

  (async () => {
    try {
      const facts = await call("api/items");
      [now.items, now.classes, now.other] = [facts.items, facts.classes, facts.other];
      read(words);
      controls(facts);
      page.ready();
      page.writes(facts.writing);
      if (now.item !== null) load();
      else talk.say("There is no input yet: add one on the left.");
    } catch (error) { talk.say(error.message); }
  })();

  const state = () => JSON.stringify(question());
  return {
    address: () => Object.fromEntries(Object.entries({ item: now.item, target: now.target, compare: now.compare,
      layers: now.layers && JSON.stringify(now.layers), nodes: now.nodes === 8 ? null : now.nodes }).filter(([, value]) => value !== null)),
    explain(index) { now.target = index; page.clear(); load(); },
    // Another address: returns whether what it leads to has to be loaded first.
    follow(found) {
      const before = state();
      read(found);
      const other = now.old || before !== state();
      if (other) { fillItems(); load(); }
      return other;
    },
    forget: talk.forget,
    complain: talk.complain,
    select: (nodes, take) => talk.beside(() => about("api/selections", { nodes }), take),
    // The circuit of the view, and what is asked about it; returns the number of the job.
    circuit: (what, asked, take) => talk.beside(() => about(`api/circuits/${what}`, asked), take),
    many: () => now.items.length > 1,
    className: (index) => now.classes[index] ?? `output ${index}`,
    open: (id) => goTo(id),
    // What the network says of the first inputs, one after the other.
    async overview(count, take) {
      const { job } = await post("api/overview", { count });
      await talk.follow(job, take);
    },
    attention: (layer, take) => talk.beside(() => about("api/attention", { layer }), take),
    flows: (one, other) => post("api/flows", { one, other }),
    others: () => now.items.filter((one) => one.id !== now.item).slice(0, 40),
    // What really happens without something.
    async remove(asked, take) {
      const { job } = await about("api/removals", asked);
      await talk.follow(job, take);
    },
    name: (asked) => post("api/names", asked),
    // The model writes; returns the number of the job.
    write: (asked, take) => talk.beside(() => post("api/generated", { ...asked, item: now.item }), take),
    // Gives a set of the view a name, or takes it away; the view is made again with it.
    async rename(name, made) {
      const answer = await about("api/names", { name, made });
      const loaded = load();
      return { before: answer.before, loaded };
    },
    note: (note) => about("api/notes", { note }),
    // An annotated view that was saved: returns the address that it leads to.
    async restore(text) {
      const { address } = await call("api/saved", { method: "POST", body: text });
      return address;
    },
    // What a formula would cost.
    async price(text, sets) {
      const { job } = await about("api/formulas", { text, sets, price: true });
      let answer = null;
      await talk.follow(job, (part) => { answer = part.price; });
      return answer;
    },
    // The answer of a formula; what takes long is asked for first.
    async ask(text, sets, agreed = false) {
      let answer = null;
      await talk.beside(() => about("api/formulas", { text, sets, agreed }), (part) => { answer = part; });
      if (!answer.price) return answer;
      return new Promise((done, fail) => talk.priced("This formula", answer.price, () => this.ask(text, sets, true).then(done, fail), () => fail(new Error("This was not computed."))));
    },
  };
}
