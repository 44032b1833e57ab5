// Named sets and formulas about walks: `bird AND NOT sky`. A set is some nodes, or a region drawn on the picture.
import { el, nodeText } from "./numbers.js";

// `now` says what is chosen: `nodes()` and `view()`; `ask(text, sets)` computes. Returns what belongs into the address.
export function formulaBar(box, picture, words, now, ask) {
  const sets = new Map();
  let region = null, corner = null;
  const text = el("input", { id: "ask", type: "text", placeholder: "bird AND NOT sky", "aria-label": "formula", value: words.get("ask") ?? "", maxlength: 2000 });
  const name = el("input", { id: "name", type: "text", placeholder: "a name", "aria-label": "name of a set", maxlength: 40 });
  const chips = el("span", { class: "chips" });
  const frame = el("div", { class: "region", hidden: true });
  try { for (const [key, made] of Object.entries(JSON.parse(words.get("sets") ?? "{}"))) sets.set(key, made); } catch { /* an address that was cut */ }

  function say(made) {
    if (!made.nodes) return "a region of the input";
    const columns = now.view()?.columns ?? [];
    return made.nodes.map(([c, n]) => (columns[c]?.nodes[n] ? `${columns[c].name} ${nodeText(columns[c], columns[c].nodes[n])}` : "")).join(", ");
  }

  function draw() {
    chips.replaceChildren(...[...sets].map(([key, made]) => el("span", { class: "chip", title: say(made) }, key,
      el("button", { type: "button", "aria-label": `forget ${key}`, onclick: () => { sets.delete(key); draw(); } }, "×"))));
  }

  function keep(made) {
    const key = name.value.trim() || `set${sets.size + 1}`;
    if (!made) return;
    sets.set(key, made);
    name.value = "";
    if (!text.value) text.value = /^(?!(and|or|xor|not|implies)$)[a-z_]\w*$/i.test(key) ? key : `"${key.replaceAll('"', '""')}"`;
    draw();
  }

  const run = () => text.value.trim() && ask(text.value, Object.fromEntries(sets));
  box.replaceChildren(
    el("form", { onsubmit: (event) => { event.preventDefault(); run(); } }, text, el("button", { type: "submit", id: "run" }, "ask")),
    name,
    el("button", { type: "button", id: "name-nodes", title: "any of the chosen nodes", onclick: () => keep(now.nodes().length ? { nodes: now.nodes() } : null) }, "name the chosen nodes"),
    el("button", { type: "button", id: "name-region", title: "drag on the picture first", onclick: () => keep(region ? { region } : null) }, "name the region"),
    chips);
  box.hidden = false;
  draw();

  // A region is dragged on the picture; it is kept in cells of the heat map.
  picture.parentElement.append(frame);
  const place = (event) => {
    const area = picture.getBoundingClientRect();
    return [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height].map((v) => Math.min(1, Math.max(0, v)));
  };
  const span = (event) => {
    const end = place(event);
    return [0, 1].map((k) => Math.min(corner[k], end[k])).concat([0, 1].map((k) => Math.max(corner[k], end[k])));
  };
  picture.addEventListener("pointerdown", (event) => { if (now.view()?.picture.kind === "image") { corner = place(event); event.preventDefault(); } });
  addEventListener("pointermove", (event) => {
    if (!corner) return;
    const [left, top, right, bottom] = span(event);
    Object.assign(frame.style, { left: `${left * 100}%`, top: `${top * 100}%`, width: `${(right - left) * 100}%`, height: `${(bottom - top) * 100}%` });
    frame.hidden = false;
  });
  addEventListener("pointerup", (event) => {
    if (!corner) return;
    const [left, top, right, bottom] = span(event);
    const [rows, columns] = now.view().heat.shape;
    corner = null;
    const cells = [Math.floor(left * columns), Math.floor(top * rows), Math.ceil(right * columns), Math.ceil(bottom * rows)];
    region = (right - left) * columns > 0.3 && (bottom - top) * rows > 0.3 ? cells : null;
    frame.hidden = region === null;
  });
  return { run, address: () => (sets.size || text.value ? { ask: text.value, sets: JSON.stringify(Object.fromEntries(sets)) } : {}) };
}
