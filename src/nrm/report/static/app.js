// One front end: a report has its view inside the page, the explorer asks a server for it.
import { drawPicture, makeColour } from "./heat.js";
import { drawNetwork } from "./flow.js";
import { cover, el, percent, readMap } from "./numbers.js";
import { drawAlternatives, drawComparison, drawDecision, drawFlows, drawHealth, drawLayers, drawSelection, nearShares } from "./panels.js";
import { saveAll } from "./export.js";
import { formulaBar } from "./formula.js";
import { connect } from "./server.js";

const at = (id) => document.getElementById(id);
const state = { view: null, chosen: new Map(), coverage: 1, strength: 0.8, selection: null, known: new Map(), colour: null, server: null, bar: null, asked: 0 };

// ---- what is in the address, so that it can be passed on

function readAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  state.coverage = Math.min(1, Math.max(0.05, Number(found.get("coverage") ?? 1) || 1));
  at("coverage").value = state.coverage;
  const pairs = (found.get("chosen") ?? "").split("-").map((p) => p.split(":").map(Number));
  state.chosen = new Map(pairs.filter((p) => p.length === 2 && p.every(Number.isInteger)));
  return found;
}

function writeAddress() {
  const words = new URLSearchParams(state.server ? { ...state.server.address(), ...state.bar.address() } : {});
  if (state.coverage < 1) words.set("coverage", state.coverage);
  if (state.chosen.size) words.set("chosen", [...state.chosen].sort((a, b) => a[0] - b[0]).map((p) => p.join(":")).join("-"));
  const text = words.toString();
  if (text !== location.hash.slice(1)) try { history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search); } catch { /* a page inside a notebook has no address */ }
}

// ---- choosing

const nodes = () => [...state.chosen].sort((a, b) => a[0] - b[0]);
const key = (chain) => chain.map((p) => p.join(":")).join("-");

function choose(chain) {
  state.chosen = new Map(chain);
  refresh();
}

const act = {
  node(column, node) {
    if (state.chosen.get(column) === node) state.chosen.delete(column);
    else state.chosen.set(column, node);
    refresh();
    document.querySelector(`[data-node="${column}:${node}"]`)?.focus();
  },
  ribbon: choose,
  move(from, arrow, covered) {
    const groups = covered.columns.map((_, c) => [...document.querySelectorAll(`[data-node^="${c}:"]`)]);
    const c = Number(from.split(":")[0]);
    const n = groups[c].findIndex((g) => g.dataset.node === from);
    const step = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[arrow];
    const column = groups[Math.min(groups.length - 1, Math.max(0, c + step[0]))];
    column[Math.min(column.length - 1, Math.max(0, n + step[1]))]?.focus();
  },
};

// The joint relevance of the chosen nodes: known already, or asked for.
async function look() {
  const chain = nodes().filter(([c, n]) => state.view.columns?.[c]?.nodes[n]);
  const turn = ++state.asked;
  if (!chain.length) { state.selection = null; return; }
  const near = chain.length === 1 ? nearShares(state.view, ...chain[0]) : null;
  const found = state.known.get(key(chain));
  if (found) { state.selection = { ...found, near }; return; }
  const [[c, n], second] = chain;
  const pair = chain.length === 2 && second[0] === c + 1 ? state.view.tables[c][n][second[1]] : null;
  const share = chain.length === 1 ? state.view.columns[c].nodes[n].share : pair;
  state.selection = { nodes: chain, share, near, map: null, note: state.server ? "computing …" : "This report has no map of this chain; the explorer computes it." };
  if (!state.server) return;
  try {
    const answer = await state.server.select(chain);
    state.known.set(key(chain), answer);
    if (turn === state.asked) { state.selection = { ...answer, near }; draw(); }
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

// ---- drawing

function draw() {
  const view = state.view;
  if (!view) return;
  document.title = `${view.decision.alternatives.find((a) => a.index === view.decision.index)?.name ?? view.decision.name} · nrm`;
  at("title").textContent = view.title || "nrm";
  drawDecision(at("decision"), view);
  drawAlternatives(at("alternatives"), view, state.server && ((index) => state.server.explain(index)));
  const map = state.selection ? state.selection.map : view.heat;
  at("picture").replaceChildren(drawPicture(view.picture, map ? readMap(map) : null, state.colour, state.strength, percent));
  drawSelection(at("selection"), view, state.selection);
  drawLayers(at("layers"), view);
  drawHealth(at("health"), view);
  drawComparison(at("comparison"), view, state.colour, state.strength);
  if (view.columns) {
    const kept = new Set(nodes().map((p) => p.join(":")));
    drawNetwork(at("network"), cover(view, state.coverage, kept), kept, act);
  } else at("network").replaceChildren(el("p", { class: "muted wait" }, "the flow through the layers is being computed …"));
  at("covered").textContent = percent(state.coverage, 0);
  drawFlows(at("flows"), { ...view, flows: view.flows ?? [] }, state.colour, (flow) => choose(flow.nodes));
  at("certified").textContent = view.flows ? (view.certified ? "the strongest of all chains of shown nodes" : "found by a bounded search; others may be as strong") : "";
  at("script").textContent = view.script ?? "";
  at("versions").textContent = `nrm ${view.versions.nrm} · torch ${view.versions.torch} · ${view.options}`;
  at("clear").disabled = state.chosen.size === 0;
  writeAddress();
}

function drawLegend(colours) {
  const bar = el("span", { class: "gradient" });
  bar.style.background = `linear-gradient(to right, ${[...colours.below].reverse().join(",")}, transparent, ${colours.above.join(",")})`;
  at("legend").replaceChildren("against", bar, "for");
}

// A part of a view has come; the first one begins a new view.
function receive(part, begins) {
  if (begins) {
    state.view = part;
    state.known.clear();
    if (part.colours) { state.colour = makeColour(part.colours); drawLegend(part.colours); }
  } else Object.assign(state.view, part);
  if (part.columns && state.server && state.bar && new URLSearchParams(location.hash.slice(1)).get("ask")) setTimeout(state.bar.run);
  for (const one of [...(part.flows ?? []), ...(part.maps ?? [])]) state.known.set(key(one.nodes), one);
  if (state.selection?.formula && !begins) draw();
  else if (state.view.columns) refresh();
  else { state.selection = null; draw(); }
}

// ---- beginning

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("nrm-theme", theme); } catch { /* a page without storage */ }
}

function begin() {
  let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  try { theme = localStorage.getItem("nrm-theme") ?? theme; } catch { /* a page without storage */ }
  document.documentElement.dataset.theme = theme;
  at("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  at("strength").addEventListener("input", (event) => { state.strength = Number(event.target.value); draw(); });
  at("coverage").addEventListener("input", (event) => { state.coverage = Number(event.target.value); draw(); });
  at("clear").addEventListener("click", () => choose([]));
  at("copy").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(at("script").textContent); }
    catch { getSelection().selectAllChildren(at("script")); document.execCommand("copy"); }
    at("copy").textContent = "copied";
    setTimeout(() => { at("copy").textContent = "copy"; }, 1500);
  });
  at("exports").replaceChildren(...["PNG", "SVG", "CSV", "JSON"].map((kind) =>
    el("button", { type: "button", onclick: () => state.view?.columns && saveAll(kind, state.view, "nrm") }, kind)));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose([]);
    if (event.key === "d" && !event.ctrlKey && !event.metaKey && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) at("theme").click();
  });
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 120); });
  const words = readAddress();
  const inside = at("view");
  if (inside) receive(JSON.parse(inside.textContent), true);
  else {
    state.bar = formulaBar(at("formula"), at("picture"), words, { nodes, view: () => state.view }, ask);
    state.server = connect(words, receive, () => choose([]));
    addEventListener("hashchange", () => { state.server.follow(readAddress()); if (state.view) refresh(); });
  }
}

begin();
