// Names that are kept: of nodes and groups of the model, of parts of an input; notes; and views that are saved with them.
import { bytes, el } from "./numbers.js";
import { save } from "./export.js";

const KIND = "annotated view";

// What chosen nodes stand for, whatever view they are seen in; null where they belong to this view alone.
export function lastingSet(view, chosen) {
  const [[c]] = chosen, column = view.columns[c];
  const own = chosen.map(([, n]) => column.nodes[n]);
  if (chosen.some(([other]) => other !== c) || own.some((node) => node.kind !== "block")) return null;
  const blocks = own.flatMap((node) => node.members ?? [node.block]).sort((a, b) => a - b);
  if (column.by === "clusters" && column.cells) {
    const nodes = new Set(chosen.map(([, n]) => n)), on = [];
    bytes(column.cells.data).forEach((n, i) => nodes.has(n) && on.push(i));
    return { layer: column.layer, cells: { shape: column.cells.shape, on } };
  }
  const flat = column.by !== "positions" || view.picture.kind !== "image";
  return ["channels", "heads", "positions"].includes(column.by) && flat ? { layer: column.layer, [column.by]: blocks } : null;
}

// The notes about an input, and views that are saved and opened again.
export function notesPanel(box, server, book, goTo) {
  const text = el("textarea", { id: "note", rows: 3, maxlength: 4000, "aria-label": "notes on this input", placeholder: "what you noticed here" });
  const home = el("small", { id: "home" });
  let view = null, kept = "";
  const keep = async (value) => {
    const mine = view;
    try {
      const { before } = await server().note(value);
      if (mine !== view) return;
      [kept, text.value] = [value, value];
      return before;
    } catch (error) { server().complain(`The note was not kept: ${error.message}`); }
  };
  text.addEventListener("change", async () => {
    const before = await keep(text.value);
    if (before !== undefined) book.edited(() => keep(before));
  });
  box.replaceChildren(el("summary", {}, "notes"), text, home);
  const file = el("input", { type: "file", id: "saved", accept: ".json,application/json", onchange: async (event) => {
    const [chosen] = event.target.files;
    event.target.value = "";
    if (!chosen) return;
    try { goTo(await server().restore(await chosen.text())); } catch (error) { server().complain(`${chosen.name}: ${error.message}`); }
  } });
  return {
    opener: el("label", { class: "opener" }, "open an annotated view …", file),
    save: (words) => save("nrm-view.json", new Blob([JSON.stringify({ kind: KIND, schema: 1, title: view.title, model: view.model, input: view.input, address: words, named: view.named, note: kept }, null, 1)], { type: "application/json" })),
    arrived(part) {
      view = part;
      [kept, text.value] = [part.note ?? "", part.note ?? ""];
      box.open = box.open || Boolean(kept);
      box.hidden = false;
      home.textContent = `Names and notes are kept in ${part.home}`;
    },
  };
}
