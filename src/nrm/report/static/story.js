// The first sentence, whether it can be trusted, and what is for and against: what a person reads first.
import { cellsOf, cellsOfBox, cellsOn, cropOf, faceOfMap } from "./faces.js";
import { el, percent } from "./numbers.js";

function faceOfPart(view, part, colour) {
  const { picture } = view;
  if (picture.kind === "image") {
    const cells = part.cells ? cellsOn(part.cells) : part.box ? cellsOfBox(part.box, view.heat.shape) : cellsOf(view.columns[part.nodes[0][0]], part.nodes.map((at) => at[1]));
    return cropOf(picture, cells);
  }
  if (picture.kind !== "graph") return null;
  const values = new Float32Array(view.heat.shape[0]);
  for (const i of part.positions) values[i] = part.share;
  return faceOfMap(picture, { values, shape: view.heat.shape, edges: null }, colour).svg;
}

// The sentence; a part of it that stands for nodes chooses them.
export function drawStory(box, view, colour, choose) {
  const d = view.decision, named = d.alternatives.find((a) => a.index === d.index);
  const begin = el("strong", { class: "subject" }, named ? `${named.name}, ${percent(named.probability, 0)}` : `${d.name}, ${d.value.toPrecision(3)}`);
  if (!view.story) { box.replaceChildren(begin, el("span", { class: "muted" }, " · looking where it comes from …")); return; }
  const { pieces, parts } = view.story;
  const draw = (piece) => {
    if (typeof piece === "string") return piece;
    const part = parts[piece], face = faceOfPart(view, part, colour);
    const inside = [face && el("span", { class: "face", "aria-hidden": "true" }, face), el("span", {}, part.text), el("b", {}, percent(part.share, 0))];
    const kind = `part${part.share < 0 ? " against" : ""}`;
    return part.nodes.length ? el("button", { type: "button", class: kind, "data-part": piece, title: "show where it flowed", onclick: () => choose(part.nodes) }, ...inside)
      : el("span", { class: kind, "data-part": piece }, ...inside);
  };
  const rest = pieces.map((piece, i) => (i === 0 && typeof piece === "string" ? `: ${piece[0].toLowerCase()}${piece.slice(1)}` : piece));
  box.replaceChildren(begin, ...rest.map(draw));
}

export const MARKS = { good: "✓", care: "!", bad: "✕" };

// One line for a person: yes, with care or no, and why.
export function drawTrust(box, view, open) {
  const h = view.health;
  box.replaceChildren(...(h ? [el("span", { class: `mark ${h.level}`, "aria-hidden": "true" }, MARKS[h.level]), el("span", {}, el("b", {}, "Can this be trusted? "), h.said),
    el("button", { type: "button", class: "link", onclick: open }, "the numbers behind it")] : [el("span", { class: "muted" }, "being checked …")]));
}

const SMALL = 0.005;

// What of the decision is for it and against it, in what is drawn and elsewhere.
export function drawSides(view) {
  const { sides, noun } = view, total = sides.for + sides.against;
  const rows = [[`for it, in ${noun}`, sides.for], [`against it, in ${noun}`, sides.against], ["from biases", sides.biases], ["elsewhere (other inputs, sinks)", sides.elsewhere]]
    .filter(([, share], i) => i === 0 || Math.abs(share) > SMALL);
  if (rows.length === 1) return [el("p", {}, el("b", {}, percent(total)), ` of the decision is in ${noun}.`)];
  const most = Math.max(...rows.map(([, share]) => Math.abs(share)));
  return [el("div", { class: "sides", role: "group", "aria-label": "for and against" }, ...rows.flatMap(([name, share]) => {
    const bar = el("span", { class: `bar-of ${share < 0 ? "against" : "for"}` });
    bar.style.width = `${Math.max(1, (100 * Math.abs(share)) / most)}%`;
    return [el("span", {}, name), el("span", { class: "bar-track" }, bar), el("b", {}, percent(share))];
  })), el("p", { class: "muted small" }, "Together 100 % of the decision.")];
}
