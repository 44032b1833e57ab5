// Reading a view: maps, numbers as text, and the nodes that a coverage leaves.

export function bytes(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

// A packed map as numbers between -1 and 1 times its limit.
export function readMap(map) {
  const small = new Int8Array(bytes(map.data).buffer);
  return { shape: map.shape, limit: map.limit, total: map.total, values: Float32Array.from(small, (v) => (v / 127) * map.limit), edges: map.edges ? readMap(map.edges) : null };
}

// The relevance that has the full colour: nearly all of the map is below it.
export function fullColour(values) {
  const sizes = Array.from(values, Math.abs).filter((v) => v > 0).sort((a, b) => a - b);
  return sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.995))] : 1;
}

export function percent(share, digits) {
  const size = Math.abs(share) * 100;
  const places = digits ?? (size === 0 || Math.abs(size - 100) < 0.05 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : 0);
  const text = size > 0 && size < 0.1 && digits === undefined ? size.toPrecision(2) : size.toFixed(places);
  return `${share < 0 ? "\u2212" : ""}${text} %`;
}

const SHORT = { channels: "ch", positions: "pos", heads: "head", clusters: "cluster", groups: "group", edges: "edge" };

export function nodeText(column, node) {
  if (node.name) return node.name;
  return node.kind === "block" && /^[\d, ]+$/.test(node.text) ? `${SHORT[column.by] ?? ""} ${node.text}`.trim() : node.text;
}

// The columns with their weakest blocks merged into the rest, until the strongest cover enough; `kept` are never merged.
// Nodes stand in the order of the view; tables that are not there yet are null.
export function cover(view, coverage, kept) {
  const columns = view.columns.map((column, c) => {
    const blocks = column.nodes.map((node, n) => ({ node, n })).filter(({ node }) => node.kind === "block");
    const total = blocks.reduce((sum, { node }) => sum + node.height, 0);
    const shown = new Set();
    let sum = 0;
    for (const { node, n } of [...blocks].sort((a, b) => b.node.height - a.node.height)) {
      if (sum < coverage * total - 1e-9 || kept.has(`${c}:${n}`)) shown.add(n);
      sum += node.height;
    }
    const nodes = [];
    const rest = { kind: "rest", text: "rest", share: 0, height: 0, members: [] };
    const order = view.order?.[c] ?? column.nodes.map((_, n) => n);
    order.forEach((n) => {
      const node = column.nodes[n];
      if (node.kind === "block" && shown.has(n)) nodes.push({ ...node, members: [n] });
      else if (node.kind !== "elsewhere") {
        rest.share += node.share;
        rest.height += node.height;
        rest.members.push(n);
      }
    });
    if (rest.members.length) nodes.push(rest);
    column.nodes.forEach((node, n) => node.kind === "elsewhere" && nodes.push({ ...node, members: [n] }));
    return { ...column, nodes };
  });
  const tables = view.tables.map((table, c) => table && columns[c].nodes.map((a) => columns[c + 1].nodes.map((b) =>
    a.members.reduce((sum, i) => sum + b.members.reduce((inner, j) => inner + table[i][j], 0), 0))));
  return { columns, tables };
}

// Everything is put into the page as text, never as markup.
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
