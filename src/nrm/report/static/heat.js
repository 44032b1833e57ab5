// Heat maps over pictures and texts.
import { bytes, el, fullColour } from "./numbers.js";

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

export function drawTokens(picture, map, colour, strength, format) {
  const box = el("div", { class: "tokens" });
  const full = map === null ? 1 : fullColour(map.values);
  picture.tokens.forEach((token, i) => {
    const value = map === null ? 0 : map.values[i];
    const word = el("span", { title: map === null ? null : `${token.text}: ${format(value)}` }, token.text);
    const level = Math.max(-1, Math.min(1, value / full));
    word.style.background = `rgba(${colour(level).join(",")},${strength * Math.min(1, 1.2 * Math.abs(level) ** 0.8)})`;
    if (strength * Math.abs(level) > 0.55) word.style.color = "#fff";
    if (token.space) box.append(" ");
    box.append(word);
    if (token.ends) box.append(el("br"));
  });
  return box;
}

export function drawPicture(picture, map, colour, strength, format) {
  return picture.kind === "image" ? drawImage(picture, map, colour, strength) : drawTokens(picture, map, colour, strength, format);
}
