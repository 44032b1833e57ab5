// From token to token: what every head of a layer carries from each key to each query, asked of the server.
import { el, percent, readMap, svg } from "./numbers.js";

const LABEL_ROOM = 92, MOST_LABELS = 64, CELL = 14;

// A map as a picture on a scale that all heads share; one pixel for every pair.
function drawPairs(map, limit, colour) {
  const [rows, columns] = map.shape, canvas = el("canvas", { width: columns, height: rows, "aria-hidden": "true" }), context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  map.values.forEach((value, i) => {
    const level = Math.max(-1, Math.min(1, value / limit));
    colour(level).forEach((v, k) => { pixels.data[4 * i + k] = v; });
    pixels.data[4 * i + 3] = 255 * Math.min(1, 1.4 * Math.abs(level) ** 0.6);
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

export function attentionPanel(box, server, colour) {
  const here = { view: null, found: null, head: 0 };
  const layer = el("select", { id: "attention-layer", "aria-label": "layer", onchange: () => look() });
  const note = el("p", { class: "note", role: "status" }), stage = el("div", { class: "headgrid" });
  const more = el("details", { id: "attention-open", ontoggle: () => more.open && !here.found && look() },
    el("summary", {}, el("b", {}, "From token to token"), el("span", { class: "muted" }, " what each head carries, from keys (columns) to queries (rows)")), el("div", { class: "bar" }, layer), note, stage);
  box.replaceChildren(more);

  async function look() {
    const mine = here.view;
    note.textContent = "computing …";
    try {
      await server().attention(layer.value, (part) => { if (mine === here.view) { here.found = part.heads; here.head = part.heads.heads.reduce((best, one, i, all) => (Math.abs(one.share) > Math.abs(all[best].share) ? i : best), 0); draw(); } });
      note.textContent = "";
    } catch (error) { note.textContent = error.message; }
  }

  function draw() {
    if (!here.found) { stage.replaceChildren(); return; }
    const { heads } = here.found, limit = Math.max(1e-30, ...heads.map((one) => one.map.limit));
    const cards = heads.map((one, i) => el("button", { type: "button", "data-head": i, "aria-pressed": String(i === here.head), onclick: () => { here.head = i; draw(); } },
      drawPairs(readMap(one.map), limit, colour()), el("span", {}, `head ${i} `, el("b", {}, percent(one.share)))));
    stage.replaceChildren(el("div", { class: "heads" }, ...cards), large(heads[here.head], limit));
  }

  function large(one, limit) {
    const map = readMap(one.map), [rows, columns] = map.shape, tokens = here.view.picture.tokens?.map((token) => token.text.trim() || "␣") ?? [];
    const text = (i, count) => (tokens.length === count ? tokens[i] : String(i));
    const labels = Math.max(rows, columns) <= MOST_LABELS, room = labels ? LABEL_ROOM : 8;
    const picture = svg("svg", { viewBox: `0 0 ${room + columns * CELL} ${room + rows * CELL}`, class: "onehead", role: "img", "aria-label": `head ${here.head} of ${here.found.layer}` });
    picture.append(svg("rect", { x: room, y: room, width: columns * CELL, height: rows * CELL, class: "ground" }),
      svg("image", { href: drawPairs(map, limit, colour()).toDataURL(), x: room, y: room, width: columns * CELL, height: rows * CELL, preserveAspectRatio: "none" }));
    if (labels) {
      for (let i = 0; i < rows; i++) picture.append(svg("text", { x: room - 4, y: room + (i + 0.75) * CELL, "text-anchor": "end" }, text(i, rows).slice(0, 13)));
      for (let i = 0; i < columns; i++) picture.append(svg("text", { transform: `translate(${room + (i + 0.75) * CELL},${room - 4}) rotate(-90)` }, text(i, columns).slice(0, 13)));
    }
    const pairs = one.pairs.map((pair) => el("li", {}, el("b", {}, percent(pair.share)), ` “${text(pair.query, rows)}” reads “${text(pair.key, columns)}”`));
    return el("div", {}, el("p", {}, el("b", {}, `Head ${here.head}: ${percent(one.share)}`), " of the decision flows through its edges"), picture, el("ul", { id: "attention-pairs" }, ...pairs));
  }

  return {
    arrived(view) {
      [here.view, here.found] = [view, null];
      box.hidden = !view.attention.length;
      const before = layer.value;
      layer.replaceChildren(...view.attention.map((name) => el("option", { value: name }, name)));
      layer.value = view.attention.includes(before) ? before : view.attention[view.attention.length >> 1] ?? "";
      draw();
      if (more.open && !box.hidden) look();
    },
  };
}
