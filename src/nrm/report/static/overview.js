// Many inputs: what the network says of each, filtered, sorted and searched, or laid out by how their decisions flow.
import { drawThumb } from "./heat.js";
import { el, percent, readMap, svg } from "./numbers.js";

const MOST_INPUTS = 1000, FIRST_INPUTS = 60, PLANE = 620, PLANE_HIGH = 380, DOT = 30;
const SORTS = { "as they come": (a, b) => a.n - b.n, "surest first": (a, b) => b.probability - a.probability, "least sure first": (a, b) => a.probability - b.probability,
  "by prediction": (a, b) => String(a.says).localeCompare(String(b.says)) || a.n - b.n, "by name": (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }) };

// `server()` asks, `open(id)` goes to an input, `look()` gives the colours.
export function overviewPanel(box, server, open, colour) {
  const here = { rows: [], plane: null, shown: "grid", chosen: new Set(), turn: 0, thumbs: new Map() };
  const field = (tag, id, label, attributes, ...inside) => el(tag, { id, "aria-label": label, ...attributes }, ...inside);
  const option = (text, value = text) => el("option", { value }, text);
  const count = field("input", "overview-count", "how many inputs", { type: "number", min: 1, max: MOST_INPUTS, value: FIRST_INPUTS });
  const word = field("input", "overview-search", "search", { type: "search", placeholder: "search names", maxlength: 80, oninput: () => draw() });
  const filter = field("select", "overview-filter", "which inputs", { onchange: () => draw() });
  const sort = field("select", "overview-sort", "in which order", { onchange: () => draw() }, ...Object.keys(SORTS).map((text) => option(text)));
  const heat = el("input", { id: "overview-heat", type: "checkbox", onchange: () => { here.thumbs.clear(); draw(); } });
  const says = el("p", { class: "muted", id: "overview-says", role: "status" }), stage = el("div", { id: "overview-stage" }), beside = el("div", { id: "overview-compared" });
  const tabs = ["grid", "plane"].map((kind) => el("button", { type: "button", "data-shown": kind, onclick: () => { here.shown = kind; draw(); } }, kind === "grid" ? "as a list" : "by how they flow"));
  const compare = el("button", { type: "button", id: "overview-compare", onclick: () => sides() }, "compare the marked");
  const one = field("select", "overview-one", "compare", {}), other = field("select", "overview-other", "with", {});
  box.replaceChildren(
    el("div", { class: "bar" }, el("h2", {}, "All inputs"), el("label", {}, "the first ", count), el("button", { type: "button", id: "overview-look", onclick: look }, "look at them"), ...tabs, word, filter, sort,
      el("label", {}, heat, " heat maps"), el("div", { class: "spacer" }), el("button", { type: "button", id: "overview-close", onclick: () => { box.hidden = true; } }, "close")),
    says, stage, el("div", { class: "bar" }, "compare ", one, " with ", other, el("button", { type: "button", id: "overview-sides", onclick: () => groups() }, "compare"), compare), beside);

  async function look() {
    const turn = ++here.turn;
    here.rows = [];
    here.plane = null;
    says.textContent = "looking …";
    try {
      await server().overview(Math.min(MOST_INPUTS, Math.max(1, Number(count.value) || FIRST_INPUTS)), (part) => {
        if (turn !== here.turn) return;
        if (part.row) here.rows.push({ ...part.row, n: here.rows.length });
        if (part.plane) here.plane = part.plane;
        if (part.plane || here.rows.length < 24 || here.rows.length % 12 === 0) draw();
      });
    } catch (error) { says.textContent = error.message; return; }
    if (turn === here.turn) draw();
  }

  const known = (row) => row.truth !== null && row.predicted !== undefined && row.predicted !== null;
  const right = (row) => known(row) && row.truth === row.predicted;
  const name = (index) => server().className(index);

  function ways() {
    const found = new Map([["all", () => true]]);
    if (here.rows.some(known)) { found.set("right", right); found.set("wrong", (row) => known(row) && !right(row)); }
    for (const text of [...new Set(here.rows.map((row) => row.says))].filter(Boolean).sort()) found.set(`says ${text}`, (row) => row.says === text);
    (here.plane?.about ?? []).forEach((_, k) => found.set(`cluster ${k + 1}`, (row) => here.plane.clusters[row.id] === k));
    return found;
  }

  function fill(select, texts) {
    const value = select.value;
    if ([...select.options].map((o) => o.value).join("\n") === texts.join("\n")) return;
    select.replaceChildren(...texts.map((text) => option(text)));
    select.value = texts.includes(value) ? value : texts[0];
  }

  function thumb(row) {
    if (!here.thumbs.has(row.id)) here.thumbs.set(row.id, row.picture ? drawThumb(row.picture, heat.checked || row.picture.kind !== "image" ? readMap(row.heat) : null, colour()) : el("span", { class: "blank" }, "!"));
    return here.thumbs.get(row.id);
  }

  function card(row) {
    const mark = known(row) ? el("span", { class: `truth ${right(row) ? "good" : "bad"}`, title: right(row) ? "right" : `it is ${name(row.truth)}` }, right(row) ? "✓" : "✕") : null;
    const tick = el("input", { type: "checkbox", "aria-label": `mark ${row.name}`, checked: here.chosen.has(row.id), onchange: (event) => { if (event.target.checked) here.chosen.add(row.id); else here.chosen.delete(row.id); compare.disabled = here.chosen.size !== 2; } });
    return el("div", { class: `card${row.error ? " failed" : ""}` },
      el("button", { type: "button", class: "open", "data-item": row.id, title: row.error ?? `open ${row.name}`, onclick: () => open(row.id) }, el("span", { class: "thumb" }, thumb(row)), el("span", { class: "cardname" }, row.name),
        el("span", {}, row.error ? "not explained" : `${row.says}${row.probability === null ? "" : ` ${percent(row.probability, 0)}`} `, mark, known(row) && !right(row) ? el("small", {}, ` is ${name(row.truth)}`) : null)), tick);
  }

  function plane(rows) {
    if (!here.plane?.places) return el("p", { class: "muted" }, here.plane?.note ?? "The plane is drawn when all of them were looked at.");
    const picture = svg("svg", { viewBox: `0 0 ${PLANE} ${PLANE_HIGH}`, class: "plane", role: "group", "aria-label": "inputs by how their decisions flow" });
    for (const row of rows.filter((r) => here.plane.places[r.id])) {
      const [x, y] = here.plane.places[row.id], at = [18 + x * (PLANE - 36), 18 + y * (PLANE_HIGH - 36)], k = here.plane.clusters[row.id];
      const group = svg("g", { class: `dot cluster${k}`, tabindex: 0, role: "button", "aria-label": `open ${row.name}: ${row.says}` });
      group.dataset.dot = row.id;
      const canvas = thumb(row);
      if (canvas.toDataURL) group.append(svg("image", { href: canvas.toDataURL(), x: at[0] - DOT / 2, y: at[1] - DOT / 2, width: DOT, height: DOT, preserveAspectRatio: "xMidYMid slice" }), svg("rect", { x: at[0] - DOT / 2, y: at[1] - DOT / 2, width: DOT, height: DOT, rx: 3 }));
      else group.append(svg("circle", { cx: at[0], cy: at[1], r: 8 }), svg("text", { x: at[0] + 11, y: at[1] + 4 }, row.name.slice(0, 18)));
      group.append(svg("title", {}, `${row.name}: ${row.says}${known(row) ? (right(row) ? ", right" : `, but it is ${name(row.truth)}`) : ""}`));
      group.addEventListener("click", () => open(row.id));
      group.addEventListener("keydown", (event) => { if (event.key === "Enter") open(row.id); });
      picture.append(group);
    }
    const about = here.plane.about.map((one, k) => {
      const inside = here.rows.filter((row) => here.plane.clusters[row.id] === k), counts = new Map();
      inside.forEach((row) => counts.set(row.says, (counts.get(row.says) ?? 0) + 1));
      const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 2).map(([text, n]) => `${n} × ${text}`).join(", ");
      return el("div", { class: `about cluster${k}` }, el("b", {}, `cluster ${k + 1}`), ` ${most}`, el("span", { class: "faces" }, ...inside.slice(0, 5).map((row) => { const made = thumb(row).cloneNode(true); made.getContext?.("2d").drawImage(thumb(row), 0, 0); return made; })),
        el("ul", {}, ...one.chains.map((chain) => el("li", {}, el("b", {}, percent(chain.share)), ` ${chain.channels.map((c, i) => `${here.plane.layers[i]} ch ${c}`).join(" → ")}`))));
    });
    return el("div", { class: "planes" }, picture, el("div", { class: "abouts" }, el("h3", {}, "What they have in common"), ...about));
  }

  function draw() {
    const all = ways(), keys = [...all.keys()];
    fill(filter, keys);
    fill(one, keys);
    fill(other, keys);
    if (one.value === other.value && keys.length > 1) other.value = keys.at(-1) === one.value ? keys[0] : keys.at(-1);
    const words = word.value.toLowerCase().split(/\s+/), rows = here.rows.filter((row) => all.get(filter.value)?.(row) && words.every((w) => `${row.name} ${row.says}`.toLowerCase().includes(w))).sort(SORTS[sort.value]);
    const judged = here.rows.filter(known), good = judged.filter(right).length;
    says.textContent = here.rows.length ? `${rows.length} of ${here.rows.length} inputs${judged.length ? `, ${good} of ${judged.length} right` : ""}` : "";
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.dataset.shown === here.shown));
    stage.replaceChildren(here.shown === "grid" ? el("div", { class: "cards" }, ...rows.map(card)) : plane(rows));
    compare.disabled = here.chosen.size !== 2;
  }

  const sides = () => { const [a, b] = [...here.chosen]; show([a], [b]); };
  function groups() {
    const all = ways(), pick = (select) => here.rows.filter((row) => !row.error && all.get(select.value)(row)).map((row) => row.id);
    show(pick(one), pick(other), one.value, other.value);
  }

  async function show(left, right, ...titles) {
    const rowOf = (id) => here.rows.find((row) => row.id === id);
    let found;
    try { found = await server().flows(left, right); } catch (error) { beside.replaceChildren(el("p", { class: "note" }, error.message)); return; }
    const sideOf = (ids, title) => el("figure", {}, el("figcaption", {}, el("b", {}, title ?? rowOf(ids[0]).name), ids.length > 1 ? ` ${ids.length} inputs` : ` ${rowOf(ids[0]).says}`),
      el("div", { class: "faces large" }, ...ids.slice(0, ids.length > 1 ? 8 : 1).map((id) => drawThumb(rowOf(id).picture, readMap(rowOf(id).heat), colour()))));
    beside.replaceChildren(el("div", { class: "sidebyside" }, sideOf(left, titles[0]), sideOf(right, titles[1]),
      el("div", {}, el("p", {}, "Their flows are ", el("b", { id: "alike" }, percent(found.alike, 0)), " alike (cosine). Where they differ most:"),
        el("table", {}, el("thead", {}, el("tr", {}, ...["channel", titles[0] ?? rowOf(left[0]).name, titles[1] ?? rowOf(right[0]).name].map((text) => el("th", { scope: "col" }, text)))),
          el("tbody", {}, ...found.rows.map((row) => el("tr", {}, el("td", {}, `${row.layer} ch ${row.channel}`), el("td", {}, percent(row.one)), el("td", {}, percent(row.other)))))))));
  }

  return { toggle() { box.hidden = !box.hidden; if (!box.hidden && !here.rows.length) look(); if (!box.hidden) box.scrollIntoView({ block: "start" }); }, draw };
}
