// What can be taken away: the picture, the diagram, the numbers.
import { tokensOnCanvas } from "./heat.js";

export function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function cell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function asCsv(view) {
  const lines = [["kind", "layer", "node", "to layer", "to node", "relevance"]];
  view.columns.forEach((c) => c.nodes.forEach((n) => lines.push(["node", c.name, n.text, "", "", n.share])));
  view.tables.forEach((table, i) => table?.forEach((row, a) => row.forEach((share, b) =>
    lines.push(["ribbon", view.columns[i].name, view.columns[i].nodes[a].text, view.columns[i + 1].name, view.columns[i + 1].nodes[b].text, share]))));
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

// The diagram with the colours that it has on the page.
export function asSvg(source, width, height) {
  const copy = source.cloneNode(true);
  const from = source.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "opacity", "font-size", "font-weight", "font-family", "text-anchor", "dominant-baseline"])
      to[i].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  if (width) { copy.setAttribute("width", width); copy.setAttribute("height", height); }
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}

// The picture with its heat map as it is shown.
async function asCanvas(view, map, colour, strength) {
  const shown = document.querySelector("#picture canvas");
  if (shown) return shown;
  if (view.picture.kind === "tokens") return tokensOnCanvas(view.picture, map, colour, strength, getComputedStyle(document.body));
  const source = document.querySelector("#picture svg"), box = source.viewBox.baseVal;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asSvg(source, box.width, box.height))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * box.width, 2 * box.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

// `chosen` is what is selected now, `draw` has the map, the colours and their strength.
export async function saveAll(kind, view, stem, chosen, draw) {
  const text = (name, content, type) => save(`${stem}.${name}`, new Blob([content], { type }));
  if (kind === "JSON") text("json", JSON.stringify({ ...view, selection: chosen }), "application/json");
  if (kind === "CSV") text("csv", asCsv(view), "text/csv");
  if (kind === "SVG") text("svg", asSvg(document.querySelector("#network svg")), "image/svg+xml");
  if (kind === "PNG") (await asCanvas(view, draw.map, draw.colour, draw.strength)).toBlob((blob) => save(`${stem}.png`, blob));
}
