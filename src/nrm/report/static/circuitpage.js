// The page of a circuit: a slider for its size, nodes that can be asked and named, and what can be taken away.
import { circuitName, circuitSentence, circuitShares, drawCircuit, drawCircuitChoice, drawCircuitCurve, saveCircuit } from "./circuit.js";
import { el, percent } from "./numbers.js";

const part = (id) => document.getElementById(id);
const shown = { step: 0, node: null, names: {} };
let circuit = null;

const home = () => `nrm-names-${circuit.model}`;

// Names belong to the model: another page of the same network has them too. Those that the page came with are kept by an
// empty name from coming back.
function readNames() {
  let own = {};
  try { own = Object.fromEntries(Object.entries(JSON.parse(localStorage.getItem(home()) ?? "{}")).filter(([, name]) => typeof name === "string")); }
  catch { /* a page without storage */ }
  return Object.fromEntries(Object.entries({ ...circuit.names, ...own }).filter(([, name]) => name));
}

function keepNames() {
  try { localStorage.setItem(home(), JSON.stringify({ ...Object.fromEntries(Object.keys(circuit.names).map((node) => [node, ""])), ...shown.names })); } catch { /* a page without storage */ }
}

const acts = {
  choose(node) {
    shown.node = node;
    redraw();
    if (node !== null) document.querySelector(`[data-circuit="${node}"]`)?.focus();
  },
  size(step) {
    shown.step = step;
    part("size").value = step;
    redraw();
  },
  name(node, name) {
    if (name) shown.names[node] = name; else delete shown.names[node];
    keepNames();
    redraw();
  },
};

function redraw() {
  const step = circuit.steps[shown.step];
  if (shown.node !== null && !step.edges.some((e) => circuit.ribbons[e].slice(0, 2).includes(shown.node))) shown.node = null;
  part("sentence").textContent = circuitSentence(circuit, step);
  part("sized").textContent = `${step.edges.length.toLocaleString("en")} edges`;
  const saturated = step.mass > circuit.saturated;
  part("warning").textContent = saturated ? `A predicted mass above ${circuit.saturated}: networks saturate, and less comes back than is predicted.` : "";
  drawCircuit(part("network"), circuit, shown, acts);
  drawCircuitChoice(part("selection"), circuit, shown, acts);
  drawCircuitCurve(part("curve"), circuit, shown, acts);
  drawNames();
  const words = new URLSearchParams();
  if (shown.step !== circuit.steps.length - 1) words.set("size", shown.step);
  if (shown.node !== null) words.set("node", shown.node);
  try { history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search); } catch { /* a page inside a notebook has no address */ }
}

// Nodes that have a name; those of one name are a group.
function drawNames() {
  const shares = circuitShares(circuit, circuit.steps[shown.step]), groups = new Map();
  circuit.nodes.forEach((node, n) => { const name = shown.names[node.name]; if (name) groups.set(name, [...(groups.get(name) ?? []), n]); });
  part("names").replaceChildren(...(groups.size ? [...groups].map(([name, members]) => el("li", {}, `${name}: `,
    ...members.map((n) => el("button", { type: "button", onclick: () => acts.choose(n) }, `${circuit.nodes[n].text} ${percent(shares[n].share)}`)))) : [el("li", { class: "muted" }, "No node has a name yet.")]));
}

function drawFacts() {
  part("facts").replaceChildren(...circuit.facts.map((text) => el("p", {}, text)));
  part("chains").replaceChildren(...circuit.chains.map((chain) => el("li", {}, el("b", {}, percent(chain.share)), ` ${chain.nodes.join(" → ")}`)));
  part("ways").hidden = !circuit.chains.length;
  part("legend").replaceChildren(el("span", { class: "for" }, "for"), el("span", { class: "against" }, "against"), el("span", {}, "a head is entered by queries at its left, keys in the middle, values at its right; rings are keys and values that heads share or read elsewhere"));
}

function beginCircuit() {
  let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  try { theme = localStorage.getItem("nrm-theme") ?? theme; } catch { /* a page without storage */ }
  document.documentElement.dataset.theme = theme;
  part("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = other;
    try { localStorage.setItem("nrm-theme", other); } catch { /* a page without storage */ }
  });
  circuit = JSON.parse(part("view").textContent);
  shown.names = readNames();
  const words = new URLSearchParams(location.hash.slice(1)), last = circuit.steps.length - 1;
  const given = (name, most, other) => (/^\d+$/.test(words.get(name) ?? "") ? Math.min(Number(words.get(name)), most) : other);
  [shown.step, shown.node] = [given("size", last, last), given("node", circuit.nodes.length - 1, null)];
  document.title = `${circuit.title || "circuit"} · nrm`;
  part("title").textContent = circuit.title || "A circuit";
  part("size").setAttribute("max", last);
  part("size").value = shown.step;
  part("size").disabled = last === 0;
  part("size").addEventListener("input", (event) => acts.size(Number(event.target.value)));
  part("clear").addEventListener("click", () => acts.choose(null));
  part("exports").replaceChildren(...["PNG", "SVG", "JSON"].map((kind) => el("button", { type: "button", onclick: () => saveCircuit(kind, part("network"), { ...circuit, names: shown.names, shown: shown.step }) }, kind)));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") acts.choose(null);
    if (event.key === "d" && !event.ctrlKey && !event.metaKey && !event.altKey && !/INPUT/.test(event.target.tagName)) part("theme").click();
  });
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 120); });
  drawFacts();
  redraw();
}

beginCircuit();
