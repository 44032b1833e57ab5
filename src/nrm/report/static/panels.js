// The panels beside the picture: decision, selection, chains, layers, trust.
import { drawPicture, drawThumb } from "./heat.js";
import { MARKS, drawSides } from "./story.js";
import { el, nodeText, percent, readMap } from "./numbers.js";

export function drawDecision(box, view) {
  const d = view.decision;
  const named = d.alternatives.find((a) => a.index === d.index);
  const predicted = d.alternatives[0];
  const parts = [el("strong", {}, named ? named.name : d.name)];
  const value = d.runs ? `value ${d.runs[0].toPrecision(4)}, in the reference ${d.runs[1].toPrecision(4)}` : `value ${d.value.toPrecision(4)}`;
  parts.push(el("span", { class: "muted" }, named ? `${percent(named.probability, 1)} · ${value}` : value));
  if (named && predicted.index !== d.index) parts.push(el("span", { class: "muted" }, `(predicted: ${predicted.name})`));
  box.replaceChildren(...parts);
}

export function drawAlternatives(box, view, choose) {
  const d = view.decision;
  const rows = d.alternatives.map((a) => {
    const bar = el("span", { class: "fill" });
    bar.style.width = `${Math.max(0.5, a.probability * 100)}%`;
    const row = el(choose ? "button" : "div", { class: `alternative${a.index === d.index ? " on" : ""}`, type: choose ? "button" : null,
      title: choose ? "explain this output" : null, "data-class": a.index, onclick: () => choose && choose(a.index) },
    bar, el("span", { class: "name" }, a.name), el("span", {}, percent(a.probability, 1)));
    return row;
  });
  const note = d.sign ? [el("p", { class: "note" }, d.sign)] : [];
  box.replaceChildren(...(rows.length ? [el("h2", {}, "What else it could be")] : []), ...rows, ...note);
}

// A name whose end says most.
function tail(text, letters) {
  return text.length > letters ? `…${text.slice(1 - letters)}` : text;
}

function chainText(view, nodes) {
  return nodes.map(([c, n]) => `${view.columns[c].name} ${nodeText(view.columns[c], view.columns[c].nodes[n])}`);
}

// The samples of a data set in which what is chosen counts most.
export function drawExamples(box, examples) {
  box.hidden = !examples;
  if (!examples) return;
  const cards = examples.hits.map((hit) => el("figure", { title: `sample ${hit.sample}, score ${hit.score.toPrecision(3)}` },
    hit.picture ? drawPicture(hit.picture, null, null, 0, percent) : el("div", { class: "blank" }, `${hit.sample}`),
    el("figcaption", {}, hit.label || `sample ${hit.sample}`)));
  box.replaceChildren(el("h2", {}, "Where else this counts most", el("small", {}, "best samples of the data set, by relevance")),
    el("div", { class: "gallery" }, ...cards), ...(examples.note ? [el("p", { class: "note" }, examples.note)] : []));
}

// `more` stands below what is chosen: what can be done with it.
export function drawSelection(box, view, selection, more = []) {
  if (!selection) { box.replaceChildren(...drawSides(view)); return; }
  const what = selection.formula ? ` of the decision: ${selection.formula}` : " of the decision flowed through";
  const parts = [el("p", {}, el("b", { id: "share" }, selection.share === null ? "…" : percent(selection.share)), what)];
  if (selection.nodes.length) parts.push(el("ul", {}, ...chainText(view, selection.nodes).map((text) => el("li", {}, text))));
  for (const given of selection.given ?? []) {
    const names = chainText(view, given.nodes);
    parts.push(el("p", { class: "given" }, el("b", {}, percent(given.share)), ` of what passes through ${names.length > 2 ? `these ${names.length} nodes of ${view.columns[given.nodes[0][0]].name}` : names.join(" or ")}`));
  }
  if (selection.near) parts.push(...selection.near.map((side) => el("div", { class: "near" }, el("span", { class: "muted" }, side.title),
    ...side.entries.map((e) => el("span", {}, `${e.text} `, el("b", {}, percent(e.share)))))));
  if (selection.note) parts.push(el("p", { class: "note" }, selection.note));
  box.replaceChildren(...parts, ...more);
}

// Given one node: the shares of the nodes of the columns beside it.
export function nearShares(view, column, node) {
  const whole = view.columns[column].nodes[node].share;
  const side = (other, entries, title) => ({ title, entries: entries
    .map((share, n) => ({ text: nodeText(view.columns[other], view.columns[other].nodes[n]), share: whole ? share / whole : 0 }))
    .sort((a, b) => Math.abs(b.share) - Math.abs(a.share)).slice(0, 3) });
  const sides = [];
  if (view.tables[column - 1]) sides.push(side(column - 1, view.tables[column - 1].map((row) => row[node]), `given this, from ${view.columns[column - 1].name}:`));
  if (view.tables[column]) sides.push(side(column + 1, view.tables[column][node], `given this, to ${view.columns[column + 1].name}:`));
  return sides;
}

// `mapOf` gives the map of a chain, or nothing as long as it is not there.
export function drawFlows(box, view, colour, mapOf, choose) {
  box.replaceChildren(...view.flows.map((flow, i) => {
    const map = mapOf(flow);
    const card = el("button", { class: "flow", type: "button", "data-flow": i, onclick: () => choose(flow) },
      el("div", { class: "thumb" }, drawThumb(view.picture, map ? readMap(map) : null, colour)),
      el("div", { class: "words" }, el("b", {}, percent(flow.share)), ...flow.nodes.map(([c, n]) =>
        el("span", { title: view.columns[c].name }, el("em", {}, nodeText(view.columns[c], view.columns[c].nodes[n])), ` ${tail(view.columns[c].name, Math.max(7, 22 - nodeText(view.columns[c], view.columns[c].nodes[n]).length))}`))));
    return card;
  }));
}

// The layers whose names have all the words that are looked for.
export function drawLayers(box, view, wanted) {
  const shown = new Set((view.columns ?? []).map((c) => c.name)), words = wanted.toLowerCase().split(/\s+/);
  const found = view.layers.filter((layer) => words.every((word) => layer.name.toLowerCase().includes(word) || layer.kind.includes(word)));
  const rows = found.map((layer) => {
    const fill = el("span", { class: layer.mass < 0 ? "fill against" : "fill" });
    fill.style.width = `${Math.min(100, Math.abs(layer.mass) * 100)}%`;
    return el("div", { class: `layer${shown.has(layer.name) ? " on" : ""}`, role: "listitem", title: `${layer.name} (${layer.kind}): ${percent(layer.mass)} of the relevance passes here` },
      el("span", { class: "name" }, layer.name), el("span", { class: "muted" }, layer.shape.join("×") || "1"),
      el("span", { class: "track" }, fill), el("span", { class: "number" }, percent(layer.mass, 1)));
  });
  box.replaceChildren(...(rows.length ? rows : [el("p", { class: "muted", role: "listitem" }, "no layer is called so")]));
}

export function drawHealth(box, view) {
  const h = view.health;
  if (!h) { box.replaceChildren(el("p", { class: "muted" }, "being measured …")); return; }
  box.replaceChildren(el("p", { class: `verdict ${h.level}` }, el("span", { class: "mark" }, MARKS[h.level]), h.said),
    el("p", { class: "muted" }, h.verdict),
    ...h.facts.map((f) => el("div", { class: `fact ${f.level}` }, el("span", { class: "mark" }, MARKS[f.level]),
      el("span", {}, el("b", {}, `${f.name}: ${f.number}`), el("span", { class: "muted" }, ` ${f.text}`)))),
    ...h.notes.map((n) => el("p", { class: "note" }, n)));
}

export function drawComparison(box, view, colour, strength) {
  const c = view.comparison;
  box.hidden = !c;
  if (!c) return;
  const figure = (map, text) => el("figure", {}, drawPicture(view.picture, readMap(map), colour, strength, percent), el("figcaption", {}, text));
  const rows = view.columns ? view.columns.slice(0, -1).flatMap((column, i) => column.nodes.map((node, n) => ({
    text: `${column.name} ${nodeText(column, node)}`, one: node.share, two: c.shares[i][n] }))) : [];
  rows.sort((a, b) => Math.abs(b.one - b.two) - Math.abs(a.one - a.two));
  box.replaceChildren(el("h2", {}, `${c.names[0]} or ${c.names[1]}?`, el("small", {}, c.values.some((v) => v < 0)
      ? "shares of a negative value: what is positive there argues for the negative value" : "")),
    el("div", { class: "figures" }, ...[view.heat, c.heat].map((map, k) => figure(map, `${c.names[k]}, value ${c.values[k].toPrecision(3)}`)), figure(c.difference, `${c.names[0]} − ${c.names[1]}`)),
    el("table", {}, el("thead", {}, el("tr", {}, ...["node", ...c.names].map((t) => el("th", {}, t)))),
      el("tbody", {}, ...rows.slice(0, 8).map((r) => el("tr", {}, el("td", {}, r.text), el("td", {}, percent(r.one)), el("td", {}, percent(r.two)))))));
}
