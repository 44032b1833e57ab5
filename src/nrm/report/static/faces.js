// Faces: what a node, a chain or a part of a sentence shows of the input. The crop of a picture, words, a small graph.
import { bytes, el, readMap, svg } from "./numbers.js";

const SIDE = 72, GRID = 14, BRIGHT = 0.25, LEAST = 0.3, VEIL = 0.8;

// The picture in its own colours, made once.
const photos = new WeakMap();
export function photoOf(picture) {
  if (!photos.has(picture)) {
    const [height, width, depth] = picture.shape, raw = bytes(picture.data), canvas = el("canvas", { width, height });
    const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let k = 0; k < 3; k++) pixels.data[4 * i + k] = raw[i * depth + (depth === 3 ? k : 0)];
      pixels.data[4 * i + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
    photos.set(picture, canvas);
  }
  return photos.get(picture);
}

// The cells of nodes of one column of positions.
export function cellsOf(column, nodes) {
  if (!column.cells) return null;
  const on = new Set(nodes);
  return { shape: column.cells.shape, on: Array.from(bytes(column.cells.data), (n) => on.has(n)) };
}

// The cells that are listed.
export function cellsOn({ shape, on }) {
  const inside = new Set(on);
  return { shape, on: Array.from({ length: shape[0] * shape[1] }, (_, i) => inside.has(i)) };
}

// The cells of a box of a map, as its shape is.
export function cellsOfBox([x0, y0, x1, y1], [rows, columns]) {
  return { shape: [rows, columns], on: Array.from({ length: rows * columns }, (_, i) => {
    const [y, x] = [Math.floor(i / columns), i % columns];
    return y >= y0 && y < y1 && x >= x0 && x < x1;
  }) };
}

// The cells where a map has most, of a coarse grid.
export function cellsOfMap(map) {
  const [height, width] = map.shape, rows = Math.min(GRID, height), columns = Math.min(GRID, width);
  const sums = new Float64Array(rows * columns);
  map.values.forEach((value, i) => {
    sums[Math.floor((Math.floor(i / width) * rows) / height) * columns + Math.floor(((i % width) * columns) / width)] += Math.abs(value);
  });
  const most = Math.max(...sums);
  return { shape: [rows, columns], on: Array.from(sums, (sum) => most > 0 && sum >= BRIGHT * most) };
}

// A square around the cells that are on, in shares of the sides; not too small to be recognized.
function squareAround(cells, width, height) {
  const [rows, columns] = cells.shape;
  let box = [1, 1, 0, 0];
  cells.on.forEach((on, i) => {
    if (!on) return;
    const [y, x] = [Math.floor(i / columns), i % columns];
    box = [Math.min(box[0], x / columns), Math.min(box[1], y / rows), Math.max(box[2], (x + 1) / columns), Math.max(box[3], (y + 1) / rows)];
  });
  if (box[2] <= box[0]) box = [0, 0, 1, 1];
  const short = Math.min(width, height);
  const side = Math.min(short, Math.max((box[2] - box[0]) * width, (box[3] - box[1]) * height, LEAST * short, Math.min(8, short)));
  const from = (low, high, whole) => Math.min(whole - side, Math.max(0, ((low + high) * whole - side) / 2));
  return [from(box[0], box[2], width), from(box[1], box[3], height), side];
}

// The crop of a photo around some cells; what is not in them is behind a veil.
export function cropOf(picture, cells) {
  const photo = photoOf(picture), [left, top, side] = squareAround(cells, photo.width, photo.height);
  const canvas = el("canvas", { width: SIDE, height: SIDE }), context = canvas.getContext("2d");
  context.imageSmoothingEnabled = side > SIDE / 3;
  context.drawImage(photo, left, top, side, side, 0, 0, SIDE, SIDE);
  const [rows, columns] = cells.shape, scale = SIDE / side;
  context.fillStyle = `rgba(134, 140, 152, ${VEIL})`;
  cells.on.forEach((on, i) => {
    if (on) return;
    const x0 = Math.floor(((i % columns) / columns * photo.width - left) * scale), y0 = Math.floor((Math.floor(i / columns) / rows * photo.height - top) * scale);
    const x1 = Math.floor((((i % columns) + 1) / columns * photo.width - left) * scale), y1 = Math.floor(((Math.floor(i / columns) + 1) / rows * photo.height - top) * scale);
    context.fillRect(x0, y0, x1 - x0, y1 - y0);
  });
  return canvas;
}

// The words that matter most of a text, the strongest first.
export function wordsOf(picture, map, many = 2) {
  const order = Array.from(map.values, (value, i) => [Math.abs(value), i]).sort((a, b) => b[0] - a[0]);
  const kept = order.slice(0, many).filter(([size]) => size > 0 && size >= 0.2 * order[0][0]);
  return kept.map(([, i]) => picture.tokens[i].text).join(" · ");
}

// A graph so small that only its lines and the nodes that matter are drawn.
function smallGraph(picture, map, colour) {
  const [xs, ys] = [0, 1].map((k) => picture.places.map((p) => p[k]));
  const [left, top] = [Math.min(...xs), Math.min(...ys)], side = Math.max(Math.max(...xs) - left, Math.max(...ys) - top, 1) + 1.6;
  const place = (i) => [xs[i] - (left + Math.max(...xs)) / 2 + side / 2, ys[i] - (top + Math.max(...ys)) / 2 + side / 2];
  const box = svg("svg", { viewBox: `0 0 ${side} ${side}`, class: "smallgraph" }), most = Math.max(1e-30, ...Array.from(map.values, Math.abs));
  for (const [a, b] of picture.lines) {
    const [[x1, y1], [x2, y2]] = [place(a), place(b)];
    box.append(svg("line", { x1, y1, x2, y2, "stroke-width": side / 40 }));
  }
  map.values.forEach((value, i) => {
    const level = value / most, [cx, cy] = place(i);
    if (Math.abs(level) > 0.08) box.append(svg("circle", { cx, cy, r: (side / 12) * (0.5 + Math.abs(level)), fill: `rgb(${colour(level).join(",")})` }));
  });
  return box;
}

// The faces of the nodes of a view: `{href}` of a picture, `{svg}` of a graph, or `{words}`; null if there is none yet.
export function faceOf(view, known, colour, c, members) {
  const column = view.columns[c], { picture } = view;
  if (members.some((n) => column.nodes[n].kind === "elsewhere") || column.name === "output") return null;
  const id = `${c}:${members.join("+")}`, one = members.length === 1 ? known.get(`${c}:${members[0]}`) : null;
  const map = one?.map ?? null, best = members.length === 1 ? view.best?.[id] : null;
  const kept = view.faces ??= new Map(), found = kept.get(id);
  if (found && found.map === map && found.best === best) return found.face;
  const cells = !map && picture.kind === "image" ? cellsOf(column, members) : null;
  const face = best ? { href: asHref(best, WHOLE) } : map ? faceOfMap(picture, readMap(map), colour, column) : cells && { href: asHref(picture, cells) };
  kept.set(id, { face, map, best });
  return face;
}

const WHOLE = { shape: [1, 1], on: [true] };
const asHref = (picture, cells) => cropOf(picture, cells).toDataURL("image/png");

export function faceOfMap(picture, map, colour, column = null) {
  if (picture.kind === "image") return { href: asHref(picture, cellsOfMap(map)) };
  if (picture.kind === "graph") return { svg: smallGraph(picture, map, colour) };
  return column?.by === "positions" ? null : { words: wordsOf(picture, map) };
}
