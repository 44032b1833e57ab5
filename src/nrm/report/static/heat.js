// Heat maps over pictures, texts and graphs.
import { bytes, el, fullColour, svg } from "./numbers.js";

function stops(colours) {
  return colours.map((c) => [1, 3, 5].map((k) => parseInt(c.slice(k, k + 2), 16)));
}

export function makeColour(colours) {
  const sides = [stops(colours.above), stops(colours.below)];
  return (level) => {
    const side = sides[level < 0 ? 1 : 0];
    const place = Math.min(Math.abs(level), 1) * (side.length - 1);
    const low = Math.min(Math.floor(place), side.length - 2);
    return side[low].map((v, k) => Math.round(v + (side[low + 1][k] - v) * (place - low)));
  };
}

function paint(width, height, fill) {
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  fill(pixels.data);
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// The picture in grey (or its colours, without a map), and the map above it; zero is transparent.
export function drawImage(picture, map, colour, strength) {
  const [height, width, depth] = picture.shape;
  const raw = bytes(picture.data);
  const grey = map !== null && strength > 0;
  const base = paint(width, height, (data) => {
    for (let i = 0; i < width * height; i++) {
      const rgb = [0, 1, 2].map((k) => raw[i * depth + (depth === 3 ? k : 0)]);
      const light = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
      for (let k = 0; k < 3; k++) data[4 * i + k] = grey ? 60 + 0.72 * light : rgb[k];
      data[4 * i + 3] = 255;
    }
  });
  const side = Math.max(1, Math.round(448 / Math.max(width, height)));
  const canvas = el("canvas", { width: width * side, height: height * side, role: "img", "aria-label": "heat map over the input" });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(base, 0, 0, canvas.width, canvas.height);
  if (grey) {
    const full = fullColour(map.values);
    const [rows, columns] = map.shape;
    const layer = paint(columns, rows, (data) => {
      map.values.forEach((value, i) => {
        const level = value / full;
        const rgb = colour(level);
        for (let k = 0; k < 3; k++) data[4 * i + k] = rgb[k];
        data[4 * i + 3] = 255 * strength * Math.min(1, 1.4 * Math.abs(level) ** 0.7);
      });
    });
    context.imageSmoothingEnabled = columns < width;
    const step = Math.max(1, Math.ceil(Math.max(width, height) / Math.max(rows, columns)));
    context.drawImage(layer, 0, 0, columns * step * side, rows * step * side);
  }
  return canvas;
}

export function drawTokens(picture, map, colour, strength, format, picked) {
  const box = el("div", { class: "tokens" });
  const full = map === null ? 1 : fullColour(map.values);
  picture.tokens.forEach((token, i) => {
    const value = map === null ? 0 : map.values[i];
    const word = el("span", { title: map === null ? null : `${token.text}: ${format(value)}`, "data-position": i, class: picked.has(i) ? "picked" : null }, token.text);
    const level = Math.max(-1, Math.min(1, value / full));
    word.style.background = `rgba(${colour(level).join(",")},${strength * Math.min(1, 1.2 * Math.abs(level) ** 0.8)})`;
    if (strength * Math.abs(level) > 0.55) word.style.color = "#fff";
    if (token.space) box.append(" ");
    box.append(word);
    if (token.ends) box.append(el("br"));
  });
  return box;
}

// Nodes and edges in the colours and sizes of their relevance, on one scale.
export function drawGraph(picture, map, colour, strength, format, picked) {
  const xs = picture.places.map((p) => p[0]), ys = picture.places.map((p) => p[1]);
  const room = 0.75, left = Math.min(...xs) - room, top = Math.min(...ys) - room;
  const width = Math.max(...xs) + room - left, height = Math.max(...ys) + room - top;
  const unit = 44;
  const place = (i) => [(xs[i] - left) * unit, (ys[i] - top) * unit];
  const box = svg("svg", { viewBox: `0 0 ${width * unit} ${height * unit}`, class: "graph", role: "img", "aria-label": "relevance of nodes and edges" });
  const known = map ? [...map.values, ...(map.edges?.values ?? [])] : [];
  const full = Math.max(1e-30, ...known.map(Math.abs));
  const paintOf = (level) => `rgb(${colour(level).join(",")})`;
  const lines = svg("g", {});
  picture.lines.map((ends, k) => ({ ends, value: map?.edges?.values[k] ?? 0 })).sort((a, b) => Math.abs(a.value) - Math.abs(b.value)).forEach(({ ends, value }) => {
    if (ends[0] === ends[1]) return;
    const [[x1, y1], [x2, y2]] = ends.map(place);
    const level = strength ? value / full : 0;
    const line = svg("g", { class: "bond" });
    line.append(svg("line", { x1, y1, x2, y2, class: "plain" }));
    if (level) line.append(svg("line", { x1, y1, x2, y2, stroke: paintOf(level), "stroke-opacity": Math.min(1, 0.3 + Math.abs(level)), "stroke-width": 1.5 + 16 * Math.abs(level) }));
    if (picture.directed) {
      const length = Math.hypot(x2 - x1, y2 - y1) || 1, [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
      const [tx, ty] = [x2 - 19 * ux, y2 - 19 * uy];
      line.append(svg("path", { class: "tip", d: `M${tx},${ty}L${tx - 9 * ux - 5 * uy},${ty - 9 * uy + 5 * ux}L${tx - 9 * ux + 5 * uy},${ty - 9 * uy - 5 * ux}Z` }));
    }
    line.append(svg("title", {}, `${ends.map((i) => `${picture.texts[i]} (${i})`).join(picture.directed ? " → " : " – ")}: ${format(value)}`));
    lines.append(line);
  });
  box.append(lines);
  picture.texts.forEach((text, i) => {
    const [cx, cy] = place(i), value = map?.values[i] ?? 0, level = strength ? value / full : 0;
    const node = svg("g", { class: `atom${picked.has(i) ? " picked" : ""}`, "data-position": i });
    const circle = svg("circle", { cx, cy, r: 11 + 8 * Math.abs(level) });
    if (level) { circle.style.fill = paintOf(level); circle.style.fillOpacity = strength * Math.min(1, 0.15 + Math.abs(level)); }
    const name = svg("text", { x: cx, y: cy, class: Math.abs(level) * strength > 0.55 ? "light" : null }, text.length > 4 ? `${text.slice(0, 3)}…` : text);
    node.append(svg("circle", { cx, cy, r: 11 + 8 * Math.abs(level), class: "ground" }), circle, name, svg("title", {}, `${text} (${i}): ${format(value)}`));
    box.append(node);
  });
  return box;
}

const NONE = new Set();

// `picked` are the tokens or nodes that a person has marked.
export function drawPicture(picture, map, colour, strength, format, picked = NONE) {
  if (picture.kind === "image") return drawImage(picture, map, colour, strength);
  return (picture.kind === "graph" ? drawGraph : drawTokens)(picture, map, colour, strength, format, picked);
}

// A small picture; of a text only the words that matter most.
export function drawThumb(picture, map, colour) {
  if (picture.kind !== "tokens" || map === null) return drawPicture(picture, map, colour, map ? 0.85 : 0, String);
  const sizes = Array.from(map.values, Math.abs), least = [...sizes].sort((a, b) => b - a)[Math.min(5, sizes.length - 1)];
  const kept = sizes.map((size, i) => (size >= least && size > 0.02 * Math.max(...sizes) ? i : -1)).filter((i) => i >= 0);
  const tokens = kept.map((i, k) => ({ ...picture.tokens[i], space: true, ends: false, text: k && kept[k - 1] !== i - 1 ? `… ${picture.tokens[i].text}` : picture.tokens[i].text }));
  return drawTokens({ tokens }, { values: kept.map((i) => map.values[i]) }, colour, 0.85, String, NONE);
}

// A text on a canvas, for a picture to take away.
export function tokensOnCanvas(picture, map, colour, strength, style) {
  const size = 18, line = 30, width = 720, pad = 14;
  const font = `${size}px system-ui, sans-serif`;
  const pen = el("canvas").getContext("2d");
  pen.font = font;
  let x = pad, y = pad;
  const placed = picture.tokens.map((token) => {
    const wide = pen.measureText(token.text).width + 3;
    if (token.space) x += size / 3;
    if (x + wide > width - pad) { x = pad; y += line; }
    const here = { x, y, wide };
    x += wide;
    if (token.ends) { x = pad; y += line; }
    return here;
  });
  const canvas = el("canvas", { width, height: y + line + pad });
  const context = canvas.getContext("2d");
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  Object.assign(context, { font, textBaseline: "middle" });
  const full = map === null ? 1 : fullColour(map.values);
  placed.forEach((here, i) => {
    const level = map === null ? 0 : Math.max(-1, Math.min(1, map.values[i] / full));
    context.fillStyle = `rgba(${colour(level).join(",")},${strength * Math.min(1, 1.2 * Math.abs(level) ** 0.8)})`;
    context.fillRect(here.x, here.y + 2, here.wide, line - 6);
    context.fillStyle = strength * Math.abs(level) > 0.55 ? "#fff" : style.color;
    context.fillText(picture.tokens[i].text, here.x + 1.5, here.y + line / 2 - 1);
  });
  return canvas;
}
