// Named sets and formulas about walks: `bird AND NOT sky`. A set is some nodes, channels by number, or a part of the
// input that was drawn: a box, an outline, tokens or nodes of a graph.
import { el, nodeText, svg } from "./numbers.js";
import { lastingSet } from "./names.js";

const FINE = 1000, WAIT = 400;

// Numbers and ranges, as people write them: "3, 7, 10-12".
export function readList(text) {
  return text.split(/[\s,;]+/).filter(Boolean).flatMap((word) => {
    const [, low, high] = /^(\d+)(?:-(\d+))?$/.exec(word) ?? [];
    if (low === undefined) return [];
    const [a, b] = [Number(low), Math.min(Number(high ?? low), Number(low) + 5000)];
    return Array.from({ length: Math.max(0, b - a + 1) }, (_, k) => a + k);
  });
}

function isSet(made) {
  return ["nodes", "channels", "heads", "region", "lasso", "positions"].some((kind) => Array.isArray(made?.[kind]));
}

// `now` says what is chosen: `nodes()` and `view()`, draws, and knows the `price(text, sets)`; `ask(text, sets)` computes.
export function formulaBar(box, picture, words, now, ask) {
  const sets = new Map(), kept = new Map(), fresh = new Map(); // those of the address, those that the server keeps, and is about to
  let region = null, tool = "box", waiting = 0, asked = "";
  const text = el("input", { id: "ask", type: "text", "aria-label": "formula", maxlength: 2000, oninput: () => estimate() });
  const name = el("input", { id: "name", type: "text", placeholder: "a name", "aria-label": "name of a set", maxlength: 40 });
  const price = el("small", { id: "price" });
  const chips = el("span", { class: "chips" });
  const layer = el("select", { id: "set-layer", "aria-label": "layer of the channels" });
  const channels = el("input", { id: "set-channels", type: "text", placeholder: "3, 7, 10-12", "aria-label": "channels", maxlength: 400 });
  const outline = svg("svg", { class: "region", viewBox: `0 0 ${FINE} ${FINE}`, preserveAspectRatio: "none", "aria-hidden": true });

  // Sets and a formula of an address.
  function read(found) {
    sets.clear();
    try { for (const [key, made] of Object.entries(JSON.parse(found.get("sets") ?? "{}"))) if (isSet(made)) sets.set(key, made); } catch { /* an address that was cut */ }
    asked = found.get("ask") ?? "";
    if (asked) text.value = asked;
  }

  function say(made) {
    if (made.layer) return `${made.layer}, ${made.cells ? `${made.cells.on.length} cells` : ["channels", "heads", "positions"].map((kind) => made[kind] && `${kind} ${made[kind].join(", ")}`).filter(Boolean).join()}`;
    if (!made.nodes) return made.positions ? `${made.positions.length} of the input's positions` : "a region of the input";
    const columns = now.view()?.columns ?? [];
    return made.nodes.filter(Array.isArray).map(([c, n]) => (columns[c]?.nodes[n] ? `${columns[c].name} ${nodeText(columns[c], columns[c].nodes[n])}` : "")).join(", ");
  }

  function draw() {
    const drop = (key) => { if (kept.has(key)) now.name(key, null); else { sets.delete(key); draw(); now.draw(); } };
    chips.replaceChildren(...all().map(([key, made]) => el("span", { class: `chip${kept.has(key) ? " kept" : ""}`, title: say(made) },
      el("button", { type: "button", class: "word", title: `put ${key} into the formula`, onclick: () => insert(key) }, key),
      el("button", { type: "button", "aria-label": `forget ${key}`, onclick: () => drop(key) }, "×"))));
  }

  const all = () => [...new Map([...kept, ...sets])];

  // Nodes are known by what is written beside them; where several columns have the same, later ones by their layer too.
  function nodeSets() {
    const found = new Map();
    (now.view()?.columns ?? []).forEach((column, c) => column.nodes.forEach((node, n) => {
      if (node.kind !== "block" || column.name === "output") return;
      const plain = nodeText(column, node), key = found.has(plain) ? `${column.name} ${plain}` : plain;
      found.set(key, { nodes: [[c, n]] });
    }));
    return found;
  }

  // The sets that a formula speaks of: the named ones, and nodes.
  function setsOf(formula) {
    const named = new Map(all());
    for (const [key, made] of nodeSets()) if (!named.has(key) && formula.includes(quoted(key))) named.set(key, made);
    return Object.fromEntries(named);
  }

  // An example with names of this input.
  function example() {
    const names = all().map(([key]) => key), columns = now.view()?.columns ?? [];
    const strongest = (c, not) => [...nodeSets()].map(([key, made]) => [key, made.nodes[0]]).filter(([, [column, n]]) => column === c && nodeText(columns[c], columns[c].nodes[n]) !== not)
      .sort(([, [, a]], [, [, b]]) => columns[c].nodes[b].share - columns[c].nodes[a].share)[0]?.[0];
    const first = names[0] ?? strongest(0), others = [names[1], columns.length > 2 ? strongest(1, first) : undefined];
    const [one, other] = [first, others.find(Boolean)];
    text.placeholder = other ? `ask a formula: ${quoted(one)} AND NOT ${quoted(other)}` : one ? `ask a formula: NOT ${quoted(one)}` : "";
  }

  const quoted = (key) => (/^(?!(and|or|xor|not|implies)$)[a-z_]\w*$/i.test(key) ? key : `"${key.replaceAll('"', '""')}"`);

  function insert(key) {
    const before = text.value.trimEnd();
    text.value = before && !/(AND|OR|NOT|XOR|IMPLIES|\()$/i.test(before) ? `${before} AND ${quoted(key)}` : `${before} ${quoted(key)}`.trim();
    text.focus();
    estimate();
  }

  function keep(made) {
    if (!made) { name.focus(); return; }
    const lasting = made.nodes ? lastingSet(now.view(), made.nodes) : made;
    const key = name.value.trim() || `set${sets.size + kept.size + 1}`;
    name.value = "";
    if (!text.value) { text.value = quoted(key); estimate(); }
    if (lasting) {
      fresh.set(key, lasting);
      kept.set(key, lasting);
      draw();
      now.name(key, lasting).then(() => fresh.delete(key));
      return;
    }
    sets.set(key, made);
    draw();
    now.draw();
  }

  // What the formula would cost, told before it is asked.
  function estimate() {
    clearTimeout(waiting);
    price.textContent = "";
    waiting = setTimeout(async () => {
      const typed = text.value;
      if (!typed.trim() || !now.view()?.columns) return;
      const found = await now.price(typed, setsOf(typed)).catch(() => null);
      if (found && typed === text.value) price.textContent = `≈ ${found.seconds < 0.1 ? "under 0.1" : found.seconds} s, ${found.passes} forward pass${found.passes === 1 ? "" : "es"}`;
    }, WAIT);
  }

  function run() {
    if (!text.value.trim()) return;
    asked = text.value;
    ask(asked, setsOf(asked));
  }
  const pick = (kind, title) => el("button", { type: "button", "data-tool": kind, "aria-pressed": String(kind === tool), title, onclick: () => {
    tool = kind;
    tools.querySelectorAll("[data-tool]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.tool === kind));
  } }, kind);
  const tools = el("div", { class: "tools" }, "mark by", pick("box", "drag a box on the picture"), pick("lasso", "draw around a part of the picture"));
  const marking = el("div", { class: "tools" });
  picture.parentElement.after(tools, marking);
  box.replaceChildren(
    el("form", { onsubmit: (event) => { event.preventDefault(); run(); } }, text, el("button", { type: "submit", id: "run" }, "ask"), price),
    el("div", { class: "sets" }, name,
      el("button", { type: "button", id: "name-nodes", title: "any of the chosen nodes", onclick: () => keep(now.nodes().length ? { nodes: now.nodes() } : null) }, "name the chosen nodes"),
      el("button", { type: "button", id: "name-region", title: "mark a part of the input first", onclick: () => keep(region) }, "name the marked region"),
      el("details", {}, el("summary", {}, "channels"), layer, channels,
        el("button", { type: "button", id: "name-channels", onclick: () => { const list = readList(channels.value); keep(list.length ? { layer: layer.value, channels: list } : null); } }, "name them")),
      chips));
  box.hidden = false;
  read(words);
  draw();

  // ---- marking a part of the input

  const corners = ([a, b], [c, d]) => [[a, b], [c, b], [c, d], [a, d]];
  const show = (points) => outline.replaceChildren(svg("polygon", { points: points.map((p) => p.join(",")).join(" ") }));
  picture.parentElement.append(outline);
  const place = (event) => {
    const area = picture.getBoundingClientRect();
    return [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height].map((v) => Math.round(FINE * Math.min(1, Math.max(0, v))));
  };

  function mark(found, points) {
    region = found;
    if (points) show(points); else outline.replaceChildren();
    document.getElementById("name-region").disabled = !region;
    marking.replaceChildren(...(region ? [el("span", {}, region.positions ? `${region.positions.length} marked` : "a region is marked"), el("button", { type: "button", id: "off-region", onclick: () => now.off(region) }, "switch it off"), el("button", { type: "button", onclick: () => clear() }, "clear")] : []));
  }

  function clear() { mark(null); now.draw(); }

  function boxed(a, b) {
    const [rows, columns] = now.view().heat.shape;
    const low = [0, 1].map((k) => Math.min(a[k], b[k]) / FINE), high = [0, 1].map((k) => Math.max(a[k], b[k]) / FINE);
    const wide = (high[0] - low[0]) * columns > 0.3 && (high[1] - low[1]) * rows > 0.3;
    return wide ? { region: [Math.floor(low[0] * columns), Math.floor(low[1] * rows), Math.ceil(high[0] * columns), Math.ceil(high[1] * rows)] } : null;
  }

  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (now.view()?.picture.kind !== "image") { mine(event); return; }
    event.preventDefault();
    const path = [place(event)];
    const move = (next) => {
      const at = place(next), last = path.at(-1);
      if (tool === "lasso" && Math.hypot(at[0] - last[0], at[1] - last[1]) < 6) return;
      if (tool === "box") path.splice(1, 1, at); else path.push(at);
      show(tool === "box" ? corners(path[0], at) : path);
    };
    const stop = (last) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
      if (tool === "box") { const found = boxed(path[0], place(last)); mark(found, found && corners(path[0], place(last))); }
      else mark(path.length > 2 ? { lasso: path.slice(0, 2000) } : null, path.length > 2 ? path : null);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
  });

  // Tokens and nodes are marked one by one, or dragged over.
  function mine(start) {
    const found = start.target.closest("[data-position]");
    if (!found) return;
    start.preventDefault();
    const marked = new Set(region?.positions ?? []);
    const on = !marked.has(Number(found.dataset.position));
    const touch = (event) => {
      const under = document.elementFromPoint(event.clientX, event.clientY)?.closest("#picture [data-position]");
      if (!under) return;
      const i = Number(under.dataset.position);
      if (on) marked.add(i); else marked.delete(i);
      mark(marked.size ? { positions: [...marked].sort((a, b) => a - b) } : null);
      under.classList.toggle("picked", on);
    };
    const stop = () => { removeEventListener("pointermove", touch); removeEventListener("pointerup", stop); now.draw(); };
    touch(start);
    addEventListener("pointermove", touch);
    addEventListener("pointerup", stop);
  }

  mark(null);
  return {
    clear() { asked = ""; mark(null); },
    // Asks again what the address asks; returns whether there is such a thing.
    repeat() { if (asked) run(); return Boolean(asked); },
    forget() { asked = ""; },
    follow(found) { read(found); draw(); },
    picked: () => region?.positions ?? [],
    // The names that are kept of this view's nodes and input.
    named(list) {
      kept.clear();
      for (const one of [...list, ...[...fresh].map(([name, made]) => ({ name, made }))]) kept.set(one.name, one.made);
      draw();
      example();
      if (text.value) estimate();
    },
    // A view has come: its layers can be named.
    arrived(view) {
      const known = view.layers.filter((l) => l.ways.includes("channels"));
      layer.replaceChildren(...known.map((l) => el("option", { value: l.name, selected: l.name === layer.value }, l.name)));
      tools.hidden = view.picture.kind !== "image";
    },
    address: () => ({ ...(asked ? { ask: asked } : {}), ...(sets.size ? { sets: JSON.stringify(Object.fromEntries(sets)) } : {}) }),
  };
}
