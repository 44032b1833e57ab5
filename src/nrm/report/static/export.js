// What can be taken away: the picture, the diagram, the numbers.

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
  view.tables.forEach((table, i) => table.forEach((row, a) => row.forEach((share, b) =>
    lines.push(["ribbon", view.columns[i].name, view.columns[i].nodes[a].text, view.columns[i + 1].name, view.columns[i + 1].nodes[b].text, share]))));
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

// The diagram with the colours that it has on the page.
export function asSvg(source) {
  const copy = source.cloneNode(true);
  const from = source.querySelectorAll("*"), to = copy.querySelectorAll("*");
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "opacity", "font-size", "font-weight", "font-family", "text-anchor", "dominant-baseline"])
      to[i].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}

export function saveAll(kind, view, stem) {
  if (kind === "JSON") save(`${stem}.json`, new Blob([JSON.stringify(view)], { type: "application/json" }));
  if (kind === "CSV") save(`${stem}.csv`, new Blob([asCsv(view)], { type: "text/csv" }));
  if (kind === "SVG") save(`${stem}.svg`, new Blob([asSvg(document.querySelector("#network svg"))], { type: "image/svg+xml" }));
  if (kind === "PNG") {
    const canvas = document.querySelector("#picture canvas");
    if (canvas) canvas.toBlob((blob) => save(`${stem}.png`, blob));
  }
}
