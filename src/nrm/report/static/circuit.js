// A circuit: layers from the bottom up, tokens or heads from left to right, edges as wide as what flows in them.
import { asSvg, save } from "./export.js";
import { el, percent, svg } from "./numbers.js";

const COLUMN = [46, 116], MARGIN = { left: 66, right: 24, top: 26, bottom: 34 };
const TALL = 660, ROWS = [16, 42], WIDEST = 13, CLEAR = 24;
const PINS = { q: -1, k: 0, v: 1, "": 0 };
const READS = { q: "queries", k: "keys", v: "values", "": "what it reads" };
const LISTED = 8, LETTERS = 11;

export const circuitName = (view, n, names) => names[view.nodes[n].name] ?? view.nodes[n].text;

// What flows through every node of a step: in all, and by what it is read as.
export function circuitShares(view, step) {
  const found = view.nodes.map(() => ({ out: 0, into: 0, reads: {} }));
  step.edges.forEach((e, i) => {
    const [low, high, read] = view.ribbons[e], flow = step.flows[i];
    found[low].out += flow;
    found[high].into += flow;
    found[high].reads[read] = (found[high].reads[read] ?? 0) + flow;
  });
  return found.map((one, n) => ({ ...one, share: ["port", "logits"].includes(view.nodes[n].kind) ? one.into : one.out }));
}

// The nodes that a step has: ends of its edges, and the heads that its ports are for.
function liveNodes(view, step) {
  const live = new Set(step.edges.flatMap((e) => view.ribbons[e].slice(0, 2)));
  const links = view.links.filter(([port, head]) => live.has(port) && live.has(head));
  return { live, links };
}

// Columns are as wide as there is room.
function circuitFrame(view, room) {
  const column = Math.min(COLUMN[1], Math.max(COLUMN[0], (room - MARGIN.left - MARGIN.right) / view.width));
  const row = Math.min(ROWS[1], Math.max(ROWS[0], TALL / view.height));
  const width = MARGIN.left + column * view.width + MARGIN.right, height = MARGIN.top + row * view.height + MARGIN.bottom;
  return { row, width, height, x: (x) => MARGIN.left + column * x, y: (y) => MARGIN.top + row * (view.height - 0.6 - y) };
}

// An edge leaves upwards and enters from below; it bends out around what lies between its ends in one column.
function edgePath(view, frame, [low, high, read]) {
  const a = view.nodes[low], b = view.nodes[high];
  const end = b.x + (b.kind === "port" ? 0 : 0.14 * PINS[read]), rise = b.y - a.y;
  const bow = rise > 1.2 && Math.abs(end - a.x) < 0.7 ? 0.42 * Math.min(rise / 4, 1.6) * (end >= view.width / 2 || read === "v" ? 1 : -1) : 0;
  const reach = Math.max(0.42 * rise, 0.3);
  const points = [[a.x, a.y], [a.x + bow, a.y + reach], [end + bow, b.y - reach], [end, b.y]].map(([x, y]) => `${frame.x(x).toFixed(1)},${frame.y(y).toFixed(1)}`);
  return `M${points[0]}C${points.slice(1).join(" ")}`;
}

function edgeText(view, e, flow, names) {
  const [low, high, read] = view.ribbons[e];
  return `${circuitName(view, low, names)} → ${circuitName(view, high, names)}${read ? ` (${READS[read]})` : ""}: ${percent(flow)}`;
}

// `state` has the number of the step, the chosen node (or null) and names; `act.choose(node)` chooses, null none.
export function drawCircuit(box, view, state, act) {
  const step = view.steps[state.step], frame = circuitFrame(view, box.clientWidth), { live, links } = liveNodes(view, step);
  const picture = svg("svg", { width: frame.width, height: frame.height, viewBox: `0 0 ${frame.width} ${frame.height}`, role: "group", "aria-label": "the circuit" });
  for (const [y, text] of view.rows) {
    picture.append(svg("line", { class: "crow", x1: MARGIN.left, x2: frame.width - 8, y1: frame.y(y), y2: frame.y(y) }));
    picture.append(svg("text", { class: "subhead", x: 6, y: frame.y(y) + 4 }, text));
  }
  for (const [x, text] of view.columns) picture.append(svg("text", { class: "subhead middle", x: frame.x(x), y: frame.height - 10 }, text.length > 10 ? `${text.slice(0, 9)}…` : text));
  for (const [port, head] of links) {
    const a = view.nodes[port], b = view.nodes[head];
    picture.append(svg("path", { class: `clink${[port, head].includes(state.node) ? " on" : ""}`, d: `M${frame.x(a.x)},${frame.y(a.y)}Q${frame.x(b.x)},${frame.y(a.y)} ${frame.x(b.x)},${frame.y(b.y)}` }));
  }
  const order = step.edges.map((_, i) => i).sort((i, j) => Math.abs(step.flows[i]) - Math.abs(step.flows[j]));
  const limit = Math.max(...step.flows.map(Math.abs), 1e-12), clear = new Set(order.slice(-CLEAR));
  const near = new Set(state.node === null ? [] : links.filter((l) => l.includes(state.node)).flat().concat(state.node));
  for (const i of order) {
    const ribbon = view.ribbons[step.edges[i]], flow = step.flows[i];
    const touched = ribbon.slice(0, 2).includes(state.node) || (near.has(ribbon[1]) && view.nodes[ribbon[1]].kind === "port");
    const kind = state.node === null ? (clear.has(i) ? "" : " faint") : touched ? " on" : " dim";
    const path = svg("path", { class: `cedge${flow < 0 ? " against" : ""}${kind}`, d: edgePath(view, frame, ribbon), "data-edge": step.edges[i] });
    path.style.strokeWidth = `${Math.max(1, (WIDEST * Math.abs(flow)) / limit).toFixed(2)}px`;
    path.append(svg("title", {}, edgeText(view, step.edges[i], flow, state.names)));
    picture.append(path);
  }
  const named = new Set([...clear].flatMap((i) => view.ribbons[step.edges[i]].slice(0, 2)));
  const shares = circuitShares(view, step), most = Math.max(...[...live].map((n) => Math.abs(shares[n].share)), 1e-12);
  const first = state.node !== null && live.has(state.node) ? state.node : Math.min(...live);
  for (const n of [...live].sort((a, b) => view.nodes[a].y - view.nodes[b].y || view.nodes[a].x - view.nodes[b].x))
    picture.append(drawCircuitNode(view, frame, n, { share: shares[n].share, level: Math.abs(shares[n].share) / most, spoken: named.has(n) || n === state.node || view.nodes[n].name in state.names, on: n === state.node, tab: n === first }, state, act));
  picture.addEventListener("keydown", (event) => moveInCircuit(view, live, event));
  box.replaceChildren(picture);
}

function drawCircuitNode(view, frame, n, look, state, act) {
  const node = view.nodes[n], [x, y] = [frame.x(node.x), frame.y(node.y)];
  const text = circuitName(view, n, state.names), end = ["embedding", "logits"].includes(node.kind);
  const group = svg("g", { class: `cnode${look.share < 0 ? " against" : ""}${look.on ? " on" : ""}${end ? " end" : ""}${node.kind === "port" ? " cport" : ""}`, tabindex: look.tab ? 0 : -1, role: "button", "data-circuit": n, "aria-pressed": look.on, "aria-label": `${text}, ${percent(look.share)}` });
  const spoken = look.spoken && node.kind !== "port";
  const letters = text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text; // neighbours need their room
  const wide = 6.6 * letters.length + 12, high = Math.min(18, Math.max(12, frame.row - 2));
  group.append(svg("circle", { class: "hit", cx: x, cy: y, r: 9 }));
  const body = spoken ? svg("rect", { class: "body", x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 5 }) : svg("circle", { class: "body", cx: x, cy: y, r: node.kind === "port" ? 3.5 : 3.5 + 3 * look.level });
  if (!end && node.kind !== "port") body.style.fillOpacity = (0.12 + 0.88 * look.level ** 0.7).toFixed(2);
  if (spoken) group.append(svg("rect", { class: "ground", x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 5 }));
  group.append(body);
  if (spoken) group.append(svg("text", { class: look.level > 0.5 && !end ? "light" : "", x, y: y + 1 }, letters));
  group.append(svg("title", {}, `${text} · ${node.name}${placeText(view, node)}: ${percent(look.share)}`));
  group.addEventListener("click", () => act.choose(look.on ? null : n));
  group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act.choose(look.on ? null : n); } });
  return group;
}

function placeText(view, node) {
  return node.position === null ? "" : ` at ${view.tokens ? `“${view.tokens[node.position].trim()}”, ` : ""}position ${node.position}`;
}

// Arrow keys go to the nearest node in their direction.
function moveInCircuit(view, live, event) {
  const way = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
  const from = event.target.closest?.("[data-circuit]");
  if (!way || !from) return;
  event.preventDefault();
  const here = view.nodes[Number(from.dataset.circuit)];
  let best = null, least = Infinity;
  for (const n of live) {
    const [dx, dy] = [view.nodes[n].x - here.x, view.nodes[n].y - here.y];
    const along = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (along > 1e-6 && along + 2 * aside < least) [best, least] = [n, along + 2 * aside];
  }
  if (best === null) return;
  from.setAttribute("tabindex", -1);
  const next = from.parentNode.querySelector(`[data-circuit="${best}"]`);
  next.setAttribute("tabindex", 0);
  next.focus();
}

// ---- a node

function edgeList(view, step, picked, names, act, side) {
  const rows = step.edges.map((e, i) => ({ e, flow: step.flows[i] })).filter(({ e }) => picked(view.ribbons[e])).sort((a, b) => Math.abs(b.flow) - Math.abs(a.flow));
  if (!rows.length) return null;
  const list = el("ul", { class: "cedges" }, ...rows.slice(0, LISTED).map(({ e, flow }) => {
    const [low, high, read] = view.ribbons[e], other = side === "in" ? low : high;
    return el("li", {}, el("button", { type: "button", onclick: () => act.choose(other) }, circuitName(view, other, names)), el("span", { class: "muted" }, read ? READS[read] : ""), el("b", { class: flow < 0 ? "against" : "for" }, percent(flow)));
  }));
  const more = rows.length - LISTED;
  return el("div", {}, el("h2", {}, side === "in" ? "From" : "To"), list, more > 0 ? el("p", { class: "muted" }, `and ${more} more`) : null);
}

// Everything about the chosen node: its share, what it reads, its edges, what patching it changes, and its name.
export function drawCircuitChoice(box, view, state, act) {
  if (state.node === null) { box.replaceChildren(el("p", { class: "muted" }, "Click a node for its share, its edges, and to give it a name. Arrow keys move, Enter selects, Esc clears.")); return; }
  const node = view.nodes[state.node], step = view.steps[state.step], own = circuitShares(view, step)[state.node];
  const ports = view.links.filter(([, head]) => head === state.node).map(([port]) => port);
  const heads = view.links.filter(([port]) => port === state.node).map(([, head]) => head);
  const name = el("input", { id: "circuit-name", type: "text", maxlength: 60, value: state.names[node.name] ?? "", placeholder: "a name for it", "aria-label": "name of the node" });
  const naming = el("form", { class: "write", onsubmit: (event) => { event.preventDefault(); act.name(node.name, name.value.trim()); } }, name, el("button", { type: "submit" }, "name it"));
  const reads = Object.entries(own.reads).filter(([read]) => read).map(([read, flow]) => el("li", {}, `${READS[read]} ${percent(flow)}`));
  for (const port of ports) reads.push(el("li", {}, el("button", { type: "button", onclick: () => act.choose(port) }, "keys and values"), ` ${percent(circuitShares(view, step)[port].into)}${placeText(view, view.nodes[port])}${view.links.filter(([p]) => p === port).length > 1 ? ", shared by several heads" : ""}`));
  const patched = view.patched?.[node.name];
  box.replaceChildren(...[
    el("p", {}, el("b", {}, circuitName(view, state.node, state.names)), " ", el("span", { class: "muted" }, `${node.name}${placeText(view, node)}`)),
    node.kind === "port" || node.kind === "logits" || node.kind === "embedding" ? null : naming,
    el("p", {}, el("b", {}, percent(own.share)), node.kind === "port" ? ` of the ${view.what} is read here, for ${heads.map((n) => circuitName(view, n, state.names)).join(", ")}` : ` of the ${view.what} flows through it inside this circuit`),
    patched ? el("p", { class: "patched" }, el("b", {}, percent(patched.effect)), ` of it is lost when the node alone is taken from the reference (measured); ${percent(patched.relevance)} predicted`) : null,
    !patched && act.patch && !["port", "logits", "embedding"].includes(node.kind) ? el("button", { type: "button", id: "circuit-patch", onclick: () => act.patch(node.name) }, "what if it is patched?") : null,
    reads.length ? el("div", {}, el("h2", {}, "It reads"), el("ul", { class: "given" }, ...reads)) : null,
    edgeList(view, step, ([, high]) => high === state.node || ports.includes(high), state.names, act, "in"),
    edgeList(view, step, ([low]) => low === state.node, state.names, act, "out"),
    attentionList(view, view.attention?.[node.name]),
  ].filter(Boolean));
}

// From token to token: what a head moves, the largest shares first.
function attentionList(view, rows) {
  if (!rows) return null;
  const word = (i) => (view.tokens ? `“${view.tokens[i].trim()}”` : `position ${i}`);
  return el("div", {}, el("h2", {}, "Its attention"), el("ul", { class: "cedges" }, ...rows.map(({ query, key, share }) =>
    el("li", {}, el("span", {}, `${word(key)} → ${word(query)}`), el("span"), el("b", { class: share < 0 ? "against" : "for" }, percent(share))))));
}

// ---- sizes

// The predicted mass over the number of edges, and the measured one where it is known; a click takes a size.
export function drawCircuitCurve(box, view, state, act) {
  const [width, height, left, low] = [260, 120, 40, 18];
  const sizes = view.steps.map((s) => Math.log(s.edges.length)), from = Math.min(...sizes), span = Math.max(...sizes) - from || 1;
  const known = view.steps.flatMap((s) => [s.mass, s.f ?? 0]), top = Math.max(1, ...known), bottom = Math.min(0, ...known);
  const x = (i) => left + ((sizes[i] - from) / span) * (width - left - 14), y = (v) => height - low - ((v - bottom) / (top - bottom)) * (height - low - 10);
  const chart = svg("svg", { class: "ccurve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "mass over the number of edges" });
  for (const level of [0, 1]) chart.append(svg("line", { class: "crow", x1: left, x2: width, y1: y(level), y2: y(level) }), svg("text", { x: left - 4, y: y(level) + 4, class: "subhead right" }, percent(level, 0)));
  for (const kind of ["mass", "f"]) {
    const points = view.steps.map((s, i) => [i, s[kind]]).filter(([, v]) => v !== null);
    if (points.length) chart.append(svg("path", { class: `cline ${kind}`, d: points.map(([i, v], k) => `${k ? "L" : "M"}${x(i).toFixed(1)},${y(v).toFixed(1)}`).join("") }));
    for (const [i, v] of points) {
      const dot = svg("circle", { class: `cdot ${kind}${i === state.step ? " on" : ""}`, cx: x(i), cy: y(v), r: i === state.step ? 4.5 : 3 });
      dot.append(svg("title", {}, `${view.steps[i].edges.length} edges: ${percent(v)} ${kind === "f" ? "measured" : "predicted"}`));
      dot.addEventListener("click", () => act.size(i));
      chart.append(dot);
    }
  }
  chart.append(svg("text", { class: "subhead middle", x: (left + width) / 2, y: height - 3 }, "edges, few to many"));
  box.replaceChildren(chart);
}

// How large the circuit of a step is and what it carries, in words.
export function circuitSentence(view, step) {
  const count = step.edges.length, format = (n) => n.toLocaleString("en");
  return `${format(count)} of ${format(view.possible)} edges ${count === 1 ? "carries" : "carry"} ${percent(step.mass)} of the ${view.what}${step.f === null ? "" : `; patching measures ${percent(step.f)}`}`;
}

// What can be taken away: the picture that a box has, on the ground of the page, or the numbers behind it.
export async function saveCircuit(kind, box, data) {
  const picture = box.querySelector("svg");
  if (kind === "JSON") save("circuit.json", new Blob([JSON.stringify(data)], { type: "application/json" }));
  if (kind === "SVG") save("circuit.svg", new Blob([asSvg(picture)], { type: "image/svg+xml" }));
  if (kind !== "PNG") return;
  const { width, height } = picture.viewBox.baseVal, image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asSvg(picture, width, height))}`;
  await image.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height }), context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save("circuit.png", blob));
}
