// One front end: a report has its view inside the page, the explorer asks a server for it.
import { drawPicture, makeColour } from "./heat.js";
import { drawNetwork } from "./flow.js";
import { cover, el, percent, readMap } from "./numbers.js";
import { drawAlternatives, drawComparison, drawDecision, drawExamples, drawFlows, drawHealth, drawLayers, drawSelection, nearShares } from "./panels.js";
import { drawStory, drawTrust } from "./story.js";
import { drawSwitch } from "./switch.js";
import { faceOf, photoOf } from "./faces.js";
import { saveAll } from "./export.js";
import { formulaBar } from "./formula.js";
import { attentionPanel } from "./attention.js";
import { overviewPanel } from "./overview.js";
import { notesPanel } from "./names.js";
import { circuitPanel } from "./circuitpanel.js";
import { textPanel } from "./textpanel.js";
import { connect } from "./server.js";
import { keepAddress } from "./address.js";

const at = (id) => document.getElementById(id);
// What is chosen are nodes, "column:node": any of those of one column, and all columns that have one.
const state = { view: null, chosen: new Set(), coverage: 1, strength: 0.8, selection: null, known: new Map(), colour: null, server: null, bar: null, panel: null, notes: null, asked: 0 };

// ---- what is in the address

function readPlace(found) {
  state.coverage = Math.min(1, Math.max(0.05, Number(found.get("coverage") ?? 1) || 1));
  at("coverage").value = state.coverage;
  state.chosen = new Set((found.get("chosen") ?? "").split("-").filter((id) => /^\d+:\d+$/.test(id)));
  return found;
}

// What makes a step of the history, and what does not.
const wordsNow = () => [
  { ...state.server?.address(), ...state.bar?.address(), ...(state.chosen.size ? { chosen: key(nodes()) } : {}) },
  state.coverage < 1 ? { coverage: state.coverage } : {},
];

// Another address: what it leads to is loaded, asked or chosen.
function goThere(found) {
  readPlace(found);
  state.bar?.follow(found);
  if (state.server?.follow(found) || !state.view) return;
  if (state.chosen.size || !state.bar?.repeat()) refresh();
  else draw();
}

const book = keepAddress(wordsNow, goThere);

// ---- choosing

const nodes = () => [...state.chosen].map((id) => id.split(":").map(Number)).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
const key = (chain) => chain.map((p) => p.join(":")).join("-");

function choose(chain) {
  state.chosen = new Set(chain.map((p) => p.join(":")));
  state.bar?.forget();
  refresh();
}

const act = {
  choose,
  // A node takes the place of what was chosen in its column; `more` adds it, or takes it away.
  nodes(column, members, more) {
    const own = members.map((n) => `${column}:${n}`), there = own.every((id) => state.chosen.has(id));
    const others = [...state.chosen].filter((id) => id.startsWith(`${column}:`) && !own.includes(id));
    if (!more) others.forEach((id) => state.chosen.delete(id));
    own.forEach((id) => (there && (more || !others.length) ? state.chosen.delete(id) : state.chosen.add(id)));
    state.bar?.forget();
    refresh();
  },
  move(from, arrow, covered) {
    const top = (node) => node.querySelector(".body").getBoundingClientRect().top;
    const groups = covered.columns.map((_, c) => [...document.querySelectorAll(`[data-node^="${c}:"]`)].sort((a, b) => top(a) - top(b)));
    const c = Number(from.split(":")[0]);
    const n = groups[c].findIndex((g) => g.dataset.node === from);
    const step = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0], Home: [0, -Infinity], End: [0, Infinity] }[arrow];
    const column = groups[Math.min(groups.length - 1, Math.max(0, c + step[0]))];
    focusNode(column[Math.min(column.length - 1, Math.max(0, n + step[1]))]);
  },
};

// One node is a stop of the Tab key; the one that has the focus.
function focusNode(node) {
  document.querySelectorAll('#network .node[tabindex="0"]').forEach((one) => one.setAttribute("tabindex", -1));
  node?.setAttribute("tabindex", 0);
  node?.focus();
}

// What is known of a chain without asking: shares of one column, or of two that are neighbours.
function shareOf(view, chain) {
  const columns = [...new Set(chain.map((p) => p[0]))];
  const own = (c) => chain.filter((p) => p[0] === c).map((p) => p[1]);
  if (columns.length === 1) return own(columns[0]).reduce((sum, n) => sum + view.columns[columns[0]].nodes[n].share, 0);
  const [low, high] = columns;
  if (columns.length > 2 || high !== low + 1 || !view.tables[low]) return null;
  return own(low).reduce((sum, a) => sum + own(high).reduce((inner, b) => inner + view.tables[low][a][b], 0), 0);
}

// The joint relevance of the chosen nodes: known already, or asked for.
async function look() {
  const view = state.view, turn = ++state.asked;
  const chain = nodes().filter(([c, n]) => view.columns?.[c]?.nodes[n]);
  state.server?.forget();
  if (!chain.length) { state.selection = null; return; }
  const near = chain.length === 1 ? nearShares(view, ...chain[0]) : null;
  const found = state.known.get(key(chain));
  if (found) { state.selection = { ...found, near }; if (found.examples !== undefined || !state.server) return; }
  else state.selection = { pending: Boolean(state.server), nodes: chain, share: shareOf(view, chain), near, map: null, note: state.server ? "computing the map …" : "This report has no map of this chain; the explorer computes it." };
  if (!state.server) return;
  // The last picture stays for a moment, so that quick answers do not flicker.
  setTimeout(() => { if (turn === state.asked && state.selection?.pending) { state.selection.pending = false; draw(); } }, 250);
  const show = (part) => {
    const whole = { ...(state.known.get(key(chain)) ?? {}), ...part };
    if (view === state.view) state.known.set(key(chain), whole);
    if (turn === state.asked) { state.selection = { ...whole, near }; draw(); }
  };
  try {
    await state.server.select(chain, show);
    show({ examples: state.known.get(key(chain))?.examples ?? null });
  } catch (error) {
    if (turn === state.asked) { state.selection = { ...state.selection, note: error.message }; draw(); }
  }
}

function refresh() {
  look();
  draw();
}

// The relevance of a formula takes the place of a selection.
async function ask(text, sets) {
  const turn = ++state.asked;
  state.selection = { nodes: [], formula: text, share: null, map: null, note: "computing …" };
  draw();
  let answer;
  try { answer = await state.server.ask(text, sets); }
  catch (error) { answer = { ...state.selection, note: error.message }; }
  if (turn === state.asked) { state.selection = answer; draw(); }
}

// What the network computes without what is chosen, or without a part of the input.
async function switchOff(asked, known) {
  const turn = state.asked;
  const put = (more) => {
    if (known && !more.removing) state.known.set(known, { ...state.known.get(known), ...more });
    if (turn === state.asked) { state.selection = { ...state.selection, removing: false, ...more }; draw(); }
  };
  put({ removing: true });
  try { await state.server.remove(asked, put); }
  catch (error) { put({ removed: { error: error.message } }); }
}

const off = {
  value: null,
  others: () => state.server.others(),
  ask: (value, other) => switchOff(state.selection.part ? { part: state.selection.part, value, other } : { nodes: nodes(), value, other }, state.selection.part ? null : key(nodes())),
  // A part of the input takes the place of what is chosen.
  part(part) {
    state.chosen = new Set();
    state.bar.forget();
    state.asked += 1;
    state.selection = { nodes: [], part, formula: "the marked part", share: null, map: state.view.heat };
    off.ask(...(off.value ?? (state.view.decision.runs ? "reference" : "zero")).split(":"));
  },
};

// A name of a set is kept; undone, the one before comes back.
async function giveName(name, made) {
  try {
    state.chosen = new Set();
    write();
    const { before, loaded } = await state.server.rename(name, made);
    book.edited(() => giveName(name, before).then(book.forgetEdit));
    write();
    await loaded;
  } catch (error) { state.server.complain(`${name}: ${error.message}`); }
}

// ---- drawing

// What is drawn slowly is drawn again only if something that it shows is another.
const drawn = new Map();
function changed(name, ...what) {
  const before = drawn.get(name);
  drawn.set(name, what);
  return !before || before.length !== what.length || what.some((one, i) => one !== before[i]);
}

function draw() {
  const view = state.view;
  if (!view) return;
  document.title = `${view.decision.alternatives.find((a) => a.index === view.decision.index)?.name ?? view.decision.name} · nrm`;
  at("title").textContent = view.title || "nrm";
  drawDecision(at("decision"), view);
  if (changed("story", view, view.story, view.columns, state.colour)) drawStory(at("story"), view, state.colour, choose);
  if (changed("trust", view, view.health)) drawTrust(at("trust"), view, showNumbers);
  drawPhoto(view);
  drawAlternatives(at("alternatives"), view, state.server && ((index) => state.server.explain(index)));
  const map = state.selection ? state.selection.map : view.heat;
  const picked = new Set(state.bar?.picked() ?? []);
  if (!state.selection?.pending && changed("picture", view.picture, map, state.strength, [...picked].join()))
    at("picture").replaceChildren(drawPicture(view.picture, map ? readMap(map) : null, state.colour, state.strength, percent, picked));
  at("along").textContent = view.picture.along ? `lines: walks along an edge in ${view.picture.along}` : "";
  drawSelection(at("selection"), view, state.selection, state.selection ? drawSwitch(view, state.selection, state.server && off) : []);
  drawExamples(at("examples"), state.selection?.examples);
  if (changed("layers", view.layers, view.columns, at("wanted").value)) drawLayers(at("layers"), view, at("wanted").value);
  if (changed("health", view, view.health)) drawHealth(at("health"), view);
  if (changed("comparison", view.comparison, view.columns, state.strength)) drawComparison(at("comparison"), view, state.colour, state.strength);
  if (view.columns) {
    const focused = document.activeElement?.dataset?.node;
    drawNetwork(at("network"), cover(view, state.coverage, state.chosen), state.chosen, act, (c, members) => faceOf(view, state.known, state.colour, c, members));
    if (focused) focusNode(document.querySelector(`[data-node="${focused}"]`));
  } else at("network").replaceChildren(el("p", { class: "muted wait" }, "the flow through the layers is being computed …"));
  at("covered").textContent = percent(state.coverage, 0);
  const flows = view.flows ?? [], mapOf = (flow) => state.known.get(key(flow.nodes))?.map;
  if (changed("flows", view, view.flows, ...flows.map(mapOf)))
    drawFlows(at("flows"), { ...view, flows }, state.colour, mapOf, (flow) => choose(flow.nodes));
  at("certified").textContent = view.flows ? (view.certified ? "the strongest of all chains of shown nodes" : "found by a bounded search; others may be as strong") : "";
  at("script").textContent = state.selection?.script ?? view.script ?? "";
  at("versions").textContent = `nrm ${view.versions.nrm} · torch ${view.versions.torch} · ${view.options}`;
  at("clear").disabled = state.chosen.size === 0;
  drawLeft(view);
  write();
}

function write() {
  book.write();
  at("undo").hidden = !book.undoable();
}

// What was not computed, because a person said so.
function drawLeft(view) {
  at("left").hidden = !view.left;
  if (view.left && changed("left", view.left))
    at("left").replaceChildren("Ribbons and chains were left out. ", el("button", { type: "button", id: "compute", onclick: view.left }, "compute them"));
}

// The photo in its own colours, beside the map over it.
function drawPhoto(view) {
  const boxes = [at("photo"), at("small-photo")];
  for (const box of boxes) box.hidden = view.picture.kind !== "image";
  if (boxes[0].hidden || !changed("photo", view.picture)) return;
  const photo = photoOf(view.picture), small = el("canvas", { width: photo.width, height: photo.height, "aria-hidden": "true" });
  small.getContext("2d").drawImage(photo, 0, 0);
  photo.setAttribute("role", "img");
  photo.setAttribute("aria-label", `the input: ${view.title || "a picture"}`);
  for (const one of [photo, small]) one.classList.toggle("pixels", photo.width < 64);
  boxes[0].replaceChildren(photo);
  boxes[1].replaceChildren(small);
}

function showNumbers() {
  at("numbers").open = true;
  at("numbers").scrollIntoView({ block: "center" });
  at("numbers").querySelector("summary").focus({ preventScroll: true });
}

function drawLegend() {
  const bar = el("span", { class: "gradient" });
  const shades = Array.from({ length: 21 }, (_, k) => k / 10 - 1).map((level) => `rgba(${state.colour(level).join(",")},${Math.min(1, 1.4 * Math.abs(level) ** 0.7)})`);
  bar.style.background = `linear-gradient(to right, ${shades.join(",")})`;
  at("legend").replaceChildren("against", bar, "for");
}

// A part of a view has come; the first one begins a new view.
function receive(part, begins) {
  if (begins) {
    state.view = part;
    settle();
    state.known.clear();
    state.bar?.arrived(part);
    state.panel?.arrived(part);
    if (part.colours) { state.colour = makeColour(part.colours); drawLegend(); }
  } else if (part.table) {
    state.view.tables[part.table.at] = part.table.rows;
    state.view.order = part.order;
  } else if (!part.maps || part.columns) Object.assign(state.view, part);
  if (part.attention && state.attention) state.attention.arrived(state.view);
  if (part.named && state.server) { state.bar.named(part.named); state.notes.arrived(state.view); }
  for (const one of part.maps ?? []) state.known.set(key(one.nodes), one);
  if (begins && !part.columns) state.selection = null;
  if (part.columns && !state.selection && !(state.server && !state.chosen.size && state.bar.repeat())) look();
  else if (part.table && state.selection?.nodes.length) state.selection.near = nodes().length === 1 ? nearShares(state.view, ...nodes()[0]) : null;
  draw();
}

// ---- what comes and goes

// Another view is on its way: the last one fades, and keeps its own name until then.
function waiting() {
  at("failure").hidden = true;
  document.querySelector("main").classList.add("stale");
}

function settle() {
  document.querySelector("main").classList.remove("stale");
  document.body.classList.remove("failed");
  at("failure").hidden = true;
}

// An input that cannot be explained shows its own name and its own error, and nothing of the one before.
function failed(name, text, again) {
  settle();
  state.view = state.selection = null;
  document.body.classList.add("failed");
  document.title = `${name} · nrm`;
  at("title").textContent = name;
  at("decision").replaceChildren();
  at("failure").hidden = false;
  at("failure").replaceChildren(el("h2", {}, `${name} is not explained`), el("p", { class: "error" }, text), el("button", { type: "button", id: "again", onclick: again }, "try again"));
  write();
}

const page = {
  receive, waiting, failed,
  ready() { at("all").hidden = !state.server.many(); },
  moved: write,
  clear() { state.chosen = new Set(); state.selection = null; if (state.view) draw(); else write(); },
  left(compute) { state.view.left = compute; draw(); },
  writes: (facts) => textPanel(at("written"), () => state.server, facts),
};

// ---- beginning

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("nrm-theme", theme); } catch { /* a page without storage */ }
}

function takeAway(kind) {
  const map = state.selection ? state.selection.map : state.view?.heat;
  if (state.view?.columns) saveAll(kind, state.view, "nrm", state.selection, { map: map ? readMap(map) : null, colour: state.colour, strength: state.strength });
}

function begin() {
  let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  try { theme = localStorage.getItem("nrm-theme") ?? theme; } catch { /* a page without storage */ }
  document.documentElement.dataset.theme = theme;
  at("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  at("strength").addEventListener("input", (event) => { state.strength = Number(event.target.value); draw(); });
  at("coverage").addEventListener("input", (event) => { state.coverage = Number(event.target.value); draw(); });
  at("clear").addEventListener("click", () => choose([]));
  at("undo").addEventListener("click", book.undo);
  at("copy").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(at("script").textContent); }
    catch { getSelection().selectAllChildren(at("script")); document.execCommand("copy"); }
    at("copy").textContent = "copied";
    setTimeout(() => { at("copy").textContent = "copy"; }, 1500);
  });
  at("exports").replaceChildren(...Object.entries({ PNG: "the map", SVG: "the diagram", CSV: "the numbers", JSON: "everything" }).map(([kind, what]) =>
    el("button", { type: "button", onclick: () => { takeAway(kind); at("saving").open = false; } }, `${what} (${kind})`)));
  at("wanted").addEventListener("input", draw);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { state.bar?.clear(); state.panel?.clear(); choose([]); }
    if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && book.undoable()) { event.preventDefault(); book.undo(); }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "d") at("theme").click();
    if (event.key === "/" && state.server) { event.preventDefault(); at("ask").focus(); }
  });
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { draw(); state.panel?.draw(); }, 120); });
  const words = readPlace(book.read());
  const inside = at("view");
  if (inside) { receive(JSON.parse(inside.textContent), true); return; }
  const now = { nodes, view: () => state.view, draw, price: (text, sets) => state.server.price(text, sets), off: off.part, name: giveName };
  state.bar = formulaBar(at("formula"), at("picture"), words, now, ask);
  state.notes = notesPanel(at("notes"), () => state.server, book, book.go);
  at("exports").append(el("button", { type: "button", onclick: () => { state.notes.save({ ...wordsNow()[0], ...wordsNow()[1] }); at("saving").open = false; } }, "this view with its names and notes"), state.notes.opener);
  state.attention = attentionPanel(at("attention"), () => state.server, () => state.colour);
  state.panel = circuitPanel(at("circuit"), () => state.server);
  const overview = overviewPanel(at("overview"), () => state.server, (id) => { state.server.open(id); scrollTo({ top: 0 }); }, () => state.colour);
  at("all").addEventListener("click", overview.toggle);
  state.server = connect(words, page);
}

begin();
