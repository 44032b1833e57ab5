// The network as columns of nodes that add up to 100 %, with ribbons for joint relevances.
import { nodeText, percent, svg } from "./numbers.js";

const NODE = 11, LINE = 15, LETTER = 6.6, PITCH = 138, LEAST_PITCH = 118, FACE = 34, ROOM = 190;

// The room that the texts of the last column need.
const rightOf = (covered) => Math.max(70, LETTER * (covered.columns.at(-1).what.length + 1), ...covered.columns.at(-1).nodes.map((node) =>
  NODE + 12 + LETTER * (Math.min(nodeText(covered.columns.at(-1), node).length, 13) + percent(node.share).length + 1)));

// A long name in lines of so many letters, broken where its parts meet.
export function linesOf(text, letters) {
  const lines = [""];
  for (const part of text.split(/(?<=[./_#\s])/)) {
    for (let rest = part; rest; rest = rest.slice(letters)) {
      if (lines.at(-1) && lines.at(-1).length + rest.length > letters) lines.push("");
      lines[lines.length - 1] += rest.slice(0, letters);
    }
  }
  return lines;
}

// Places by d3-sankey: nodes have the heights of the view, ribbons take their share of both ends.
export function layOut(covered, width, height, top, gap) {
  const nodes = [], links = [];
  covered.columns.forEach((column, c) => column.nodes.forEach((node, n) =>
    nodes.push({ id: `${c}:${n}`, column: c, place: n, node, fixedValue: Math.max(node.height, 1e-6) })));
  covered.tables.forEach((table, c) => table?.forEach((row, a) => row.forEach((share, b) => {
    if (share !== 0) links.push({ source: `${c}:${a}`, target: `${c + 1}:${b}`, share, value: Math.abs(share) });
  })));
  // Where a table is not there yet, or has nothing in it, links without any size keep the columns apart.
  covered.tables.forEach((table, c) => {
    if (table?.some((row) => row.some(Boolean))) return;
    const join = (a, b) => links.push({ source: `${c}:${a}`, target: `${c + 1}:${b}`, share: 0, value: 1e-9 });
    covered.columns[c].nodes.forEach((_, a) => join(a, 0));
    covered.columns[c + 1].nodes.forEach((_, b) => b && join(0, b));
  });
  const last = covered.columns.length - 1;
  const graph = d3.sankey().nodeId((d) => d.id).nodeAlign((d) => d.column).nodeSort(null).linkSort(null)
    .nodeWidth(NODE).nodePadding(gap).iterations(8)
    .extent([[4, top], [width - rightOf(covered), height - 8]])({ nodes, links });
  graph.links = graph.links.filter((link) => link.share !== 0);
  const room = (width - rightOf(covered) - 4 - NODE) / Math.max(1, last);
  for (const node of graph.nodes) [node.x0, node.x1] = [4 + node.column * room, 4 + node.column * room + NODE];
  for (const side of ["source", "target"]) {
    const other = side === "source" ? "target" : "source";
    for (const node of graph.nodes) {
      const own = graph.links.filter((l) => l[side] === node).sort((l, m) => l[other].y0 - m[other].y0);
      const total = own.reduce((sum, l) => sum + l.value, 0);
      let y = node.y0;
      for (const link of own) {
        const size = total ? ((node.y1 - node.y0) * link.value) / total : 0;
        link[side === "source" ? "left" : "right"] = [y, y + size];
        y += size;
      }
    }
  }
  return graph;
}

function ribbonPath(link) {
  const [x0, x1] = [link.source.x1, link.target.x0];
  const middle = (x0 + x1) / 2;
  const [[a, b], [c, d]] = [link.left, link.right];
  return `M${x0},${a}C${middle},${a} ${middle},${c} ${x1},${c}L${x1},${d}C${middle},${d} ${middle},${b} ${x0},${b}Z`;
}

function kindOf(link) {
  const plain = [link.source, link.target].every((end) => end.node.kind === "block");
  return `ribbon ${link.share < 0 ? "against" : "for"}${plain ? "" : " vague"}`;
}

function clip(text, letters) {
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}

// Draws into `box`; `chosen` holds "column:node" of the view, `act` is told what was clicked, `face` shows nodes.
export function drawNetwork(box, covered, chosen, act, face = () => null) {
  const count = covered.columns.length;
  const seen = box.clientWidth || 860, pitch = Math.min(PITCH, Math.max(LEAST_PITCH, (seen - rightOf(covered)) / Math.max(1, count - 1)));
  const width = Math.max((count - 1) * pitch + rightOf(covered), seen);
  const right = rightOf(covered), room = (width - right) / Math.max(1, count - 1);
  const faces = new Map(covered.columns.flatMap((column, c) => column.nodes.map((node) => [node, face(c, node.members)])));
  const gap = [...faces.values()].some(Boolean) ? FACE + 1 : LINE;
  const titles = covered.columns.map((column, c) => linesOf(column.name, Math.floor((c === count - 1 ? right : room - 14) / 7)));
  const top = LINE * (2 + Math.max(...titles.map((lines) => lines.length))) + (gap > LINE ? FACE / 2 : 4);
  const most = Math.max(...covered.columns.map((c) => c.nodes.length));
  const height = Math.max(320, top + (most - 1) * gap + ROOM);
  const graph = layOut(covered, width, height - (gap > LINE ? FACE / 2 : 0), top, gap);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "flow of relevance" });
  const isChosen = (end) => end.node.members.every((n) => chosen.has(`${end.column}:${n}`));
  const any = chosen.size > 0;
  const columns = new Set([...chosen].map((id) => Number(id.split(":")[0])));
  // Between two chosen nodes, from a chosen node to a column without one, or none of both.
  const markOf = (ends) => ends.every(isChosen) ? " on"
    : ends.some((end, k) => isChosen(end) && !columns.has(ends[1 - k].column)) ? " near" : " dim";

  const ribbons = svg("g", { class: "ribbons" });
  for (const link of [...graph.links].sort((a, b) => b.value - a.value)) {
    if (Math.max(link.left[1] - link.left[0], link.right[1] - link.right[0]) < 0.35) continue;
    const ends = [link.source, link.target];
    const path = svg("path", { d: ribbonPath(link), class: kindOf(link) + (any ? markOf(ends) : "") });
    path.append(svg("title", {}, `${ends.map((e) => nodeText(covered.columns[e.column], e.node)).join(" & ")}: ${percent(link.share)}`));
    path.dataset.ribbon = ends.map((e) => `${e.column}:${e.node.members.join("+")}`).join(" ");
    path.addEventListener("click", () => act.choose(ends.flatMap((e) => e.node.members.map((n) => [e.column, n]))));
    ribbons.append(path);
  }
  picture.append(ribbons);

  covered.columns.forEach((column, c) => {
    const x = graph.nodes.find((n) => n.column === c)?.x0 ?? 0, lines = titles[c];
    const head = svg("text", { x, y: LINE, class: "head" });
    head.append(...lines.map((line, i) => svg("tspan", { x, dy: i ? LINE : 0 }, line)), svg("title", {}, column.name));
    picture.append(head, svg("text", { x, y: LINE * (lines.length + 1), class: "subhead" }, clip(column.what, Math.floor((c === count - 1 ? right : room) / LETTER))));
  });

  for (const place of graph.nodes) picture.append(drawNode(place, covered, isChosen(place), any, faces.get(place.node), act));
  const first = picture.querySelector(".node.on") ?? picture.querySelector(".node");
  first?.setAttribute("tabindex", 0); // one stop of the keyboard; arrows go on from there
  picture.addEventListener("pointerdown", (event) => event.button === 0 && drawBand(picture, event, act.choose));
  box.replaceChildren(picture);
  return graph;
}

// A node with its face and its name; "column:node" finds it again.
function drawNode(place, covered, on, any, face, act) {
  const column = covered.columns[place.column], { node } = place;
  const text = nodeText(column, node), share = percent(node.share), words = face?.words;
  const group = svg("g", {
    class: `node ${node.kind} ${node.share < 0 ? "against" : "for"}${on ? " on" : any ? " dim" : ""}`,
    tabindex: -1, role: "button", "aria-pressed": on,
  });
  group.dataset.node = `${place.column}:${node.members.length === 1 ? node.members[0] : "rest"}`;
  group.dataset.members = node.members.map((n) => `${place.column}:${n}`).join(" ");
  const tall = Math.max(1.5, place.y1 - place.y0), middle = (place.y0 + place.y1) / 2;
  const drawnFace = face?.href || face?.svg, x = place.x1 + 5 + (drawnFace ? FACE + 4 : 0);
  const letters = Math.min(text.length, 13) + (drawnFace || words ? 0 : share.length + 1);
  const wide = x - place.x0 + LETTER * Math.max(letters, Math.min(words?.length ?? 0, 14), share.length), high = drawnFace ? FACE : words ? 26 : 16;
  group.append(svg("rect", { class: "hit", x: place.x0, y: middle - high / 2, width: wide, height: high }),
    svg("rect", { class: "body", x: place.x0, y: place.y0, width: NODE, height: tall, rx: 2 }));
  if (drawnFace) group.append(faceAt(face, place.x1 + 4, middle - FACE / 2));
  const line = svg("text", { x, y: middle });
  const name = svg("tspan", { class: "name" }, clip(text, 13)), number = svg("tspan", { class: "share", dx: drawnFace ? 0 : 5 }, share);
  // What is read out begins with what is seen.
  const shown = drawnFace ? `${share} ${clip(text, 13)}` : `${clip(text, 13)} ${share}${words ? ` ${clip(words, 16)}` : ""}`;
  group.setAttribute("aria-label", `${shown}, ${column.name}${clip(text, 13) === text ? "" : `, ${text}`}`);
  if (drawnFace) { number.setAttribute("x", x); number.setAttribute("y", middle - 7); name.setAttribute("x", x); name.setAttribute("y", middle + 7); line.append(number, " ", name); }
  else line.append(name, " ", number);
  if (words) { line.setAttribute("y", middle - 6); line.append(" ", svg("tspan", { class: "words", x, dy: 13 }, clip(words, 16))); }
  const title = svg("title", {}, `${column.name} · ${text}: ${share}${words ? `\n${words}` : ""}`);
  title.setAttribute("aria-hidden", "true");
  group.append(line, title);
  const pick = (event) => act.nodes(place.column, node.members, event.shiftKey || event.ctrlKey || event.metaKey);
  group.addEventListener("click", pick);
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(event); }
    if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") { event.preventDefault(); act.move(group.dataset.node, event.key, covered); }
  });
  return group;
}

function faceAt(face, x, y) {
  const box = face.href ? svg("image", { href: face.href, x, y, width: FACE, height: FACE }) : face.svg.cloneNode(true);
  if (face.svg) for (const [name, value] of Object.entries({ x, y, width: FACE, height: FACE, "aria-hidden": true })) box.setAttribute(name, value);
  box.classList.add("nodeface");
  return box;
}

// A band around several nodes, drawn with the mouse, chooses all of them.
function drawBand(picture, start, choose) {
  const from = picture.getBoundingClientRect();
  const place = (event) => [event.clientX - from.left, event.clientY - from.top];
  const [x0, y0] = place(start);
  const band = svg("rect", { class: "band" });
  const size = (event) => { const [x, y] = place(event); return [Math.min(x, x0), Math.min(y, y0), Math.abs(x - x0), Math.abs(y - y0)]; };
  const move = (event) => {
    const [x, y, width, height] = size(event);
    if (!band.isConnected && Math.max(width, height) < 8) return;
    if (!band.isConnected) picture.append(band);
    for (const [name, value] of Object.entries({ x, y, width, height })) band.setAttribute(name, value);
  };
  const stop = (event) => {
    removeEventListener("pointermove", move);
    removeEventListener("pointerup", stop);
    if (!band.isConnected) return;
    const [x, y, width, height] = size(event);
    band.remove();
    const inside = [...picture.querySelectorAll(".node")].filter((node) => {
      const body = node.querySelector(".body").getBoundingClientRect();
      const [left, middle] = [body.left - from.left, (body.top + body.bottom) / 2 - from.top];
      return left < x + width && left + body.width > x && middle >= y && middle <= y + height;
    });
    choose(inside.flatMap((node) => node.dataset.members.split(" ").map((id) => id.split(":").map(Number))));
  };
  addEventListener("pointermove", move);
  addEventListener("pointerup", stop);
}
