// The network as columns of nodes that add up to 100 %, with ribbons for joint relevances.
import { nodeText, percent, svg } from "./numbers.js";

const NODE = 11, TOP = 46, GAP = 9, LETTER = 6.5;

// The room that the texts of the last column need.
const rightOf = (covered) => Math.max(70, ...covered.columns.at(-1).nodes.map((node) =>
  NODE + 12 + LETTER * (Math.min(nodeText(covered.columns.at(-1), node).length, 13) + percent(node.share).length + 1)));

// Places by d3-sankey: nodes have the heights of the view, ribbons take their share of both ends.
export function layOut(covered, width, height) {
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
    .nodeWidth(NODE).nodePadding(GAP + 6).iterations(8)
    .extent([[4, TOP], [width - rightOf(covered), height - 8]])({ nodes, links });
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

// Draws into `box`; `chosen` holds "column:node" of the view, `act` is told what was clicked.
export function drawNetwork(box, covered, chosen, act) {
  const width = Math.max(560, box.clientWidth || 860);
  const most = Math.max(...covered.columns.map((c) => c.nodes.length));
  const height = Math.max(360, TOP + most * 38);
  const graph = layOut(covered, width, height);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "flow of relevance" });
  const isChosen = (end) => end.node.members.every((n) => chosen.has(`${end.column}:${n}`));
  const any = chosen.size > 0;
  const columns = new Set([...chosen].map((id) => Number(id.split(":")[0])));
  // Between two chosen nodes, from a chosen node to a column without one, or none of both.
  const markOf = (ends) => ends.every(isChosen) ? " on"
    : ends.some((end, k) => isChosen(end) && !columns.has(ends[1 - k].column)) ? " near" : " dim";
  const right = rightOf(covered);
  const room = graph.nodes.length ? (width - right) / Math.max(1, covered.columns.length - 1) : width;

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
    const last = c === covered.columns.length - 1;
    const x = (graph.nodes.find((n) => n.column === c)?.x0 ?? 0);
    const letters = Math.floor((last ? right : room - 14) / 6.8);
    const head = svg("text", { x, y: 16, class: "head" }, clip(column.name, letters));
    head.append(svg("title", {}, column.name));
    picture.append(head, svg("text", { x, y: 32, class: "subhead" }, clip(column.what, letters)));
  });

  for (const place of graph.nodes) {
    const column = covered.columns[place.column], node = place.node;
    const on = isChosen(place);
    const text = nodeText(column, node);
    const group = svg("g", {
      class: `node ${node.kind} ${node.share < 0 ? "against" : "for"}${on ? " on" : any ? " dim" : ""}`,
      tabindex: 0, role: "button", "aria-pressed": on, "aria-label": `${column.name}, ${text}, ${percent(node.share)}`,
    });
    group.dataset.node = `${place.column}:${node.members.length === 1 ? node.members[0] : "rest"}`;
    group.dataset.members = node.members.map((n) => `${place.column}:${n}`).join(" ");
    const tall = Math.max(1.5, place.y1 - place.y0), middle = (place.y0 + place.y1) / 2;
    const letters = Math.min(text.length, 13) + percent(node.share).length + 1;
    group.append(svg("rect", { class: "hit", x: place.x0, y: middle - 8, width: NODE + 8 + 6.4 * letters, height: 16 }),
      svg("rect", { class: "body", x: place.x0, y: place.y0, width: NODE, height: tall, rx: 2 }));
    const line = svg("text", { x: place.x1 + 5, y: middle });
    line.append(svg("tspan", { class: "name" }, clip(text, 13)), svg("tspan", { class: "share", dx: 5 }, percent(node.share)));
    group.append(line, svg("title", {}, `${column.name} · ${text}: ${percent(node.share)}`));
    const pick = (event) => act.nodes(place.column, node.members, event.shiftKey || event.ctrlKey || event.metaKey);
    group.addEventListener("click", pick);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(event); }
      if (event.key.startsWith("Arrow")) { event.preventDefault(); act.move(group.dataset.node, event.key, covered); }
    });
    picture.append(group);
  }
  picture.addEventListener("pointerdown", (event) => event.button === 0 && drawBand(picture, event, act.choose));
  box.replaceChildren(picture);
  return graph;
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
