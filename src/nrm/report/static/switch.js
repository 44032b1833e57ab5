// Switching off: what the network computes without what is chosen, beside what relevance says of it.
import { el, percent } from "./numbers.js";

// What can take the place of removed neurons; `others` are the inputs whose values can.
function valuesOf(view, others) {
  const ways = [["zero", "set to zero"], ["average", "set to its average"], ...others.map((one) => [`other:${one.id}`, `as in ${one.name}`])];
  return view.decision.runs ? [["reference", "as in the reference"], ...ways] : ways;
}

// `off` asks the server: `others()` are its other inputs, `ask(value, other)` begins, `value` is what was asked last.
export function drawSwitch(view, selection, off) {
  if (!off || (!selection.nodes.length && !selection.removed) || selection.nodes.some(([c, n]) => view.columns[c].nodes[n].kind === "elsewhere" || view.columns[c].name === "output")) return [];
  const ways = valuesOf(view, off.others()), chosen = off.value ?? ways[0][0];
  const select = el("select", { id: "off-value", "aria-label": "what takes its place", onchange: (event) => { off.value = event.target.value; } },
    ...ways.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  const begin = () => { const [value, other] = (off.value ?? chosen).split(":"); off.ask(value, other); };
  const button = el("button", { type: "button", id: "off", disabled: Boolean(selection.removing), onclick: begin }, selection.removing ? "running …" : "switch it off");
  return [el("div", { class: "switch" }, el("div", { class: "row" }, button, select), ...drawRemoved(selection))];
}

function drawRemoved({ removed, share }) {
  if (!removed) return [];
  if (removed.error) return [el("p", { class: "note" }, removed.error)];
  const rows = removed.classes.map((one) => {
    const bar = (size, kind) => { const made = el("span", { class: `level ${kind}` }); made.style.width = `${Math.max(0.5, 100 * size)}%`; return made; };
    return el("div", { class: `fate${one.predicted ? " on" : ""}` }, el("span", { class: "name" }, one.name),
      el("span", { class: "levels", "aria-hidden": "true" }, bar(one.before, "was"), bar(one.after, "is")), el("span", { class: "number" }, `${percent(one.before, 1)} → `, el("b", {}, percent(one.after, 1))));
  });
  const now = removed.classes.find((one) => one.predicted), most = Math.max(...removed.classes.map((one) => one.before));
  const turned = now !== undefined && now.before < most;
  const told = now ? `Without it the network ${turned ? "says" : "still says"} ${now.name}.` : "";
  const gone = removed.lost === null ? "" : removed.lost < 0 ? `: it grows by ${percent(-removed.lost)}` : `: ${percent(removed.lost)} of it is gone`;
  const lost = el("p", {}, "The value goes from ", el("b", {}, removed.before.toPrecision(4)), " to ", el("b", { id: "after" }, removed.after.toPrecision(4)), `${gone}${share === null || removed.together !== undefined ? "" : `; relevance said ${percent(share)}`}.`);
  const together = removed.together === undefined ? null : el("p", {}, "What goes through all of these layers at once: ", el("b", {}, percent(removed.together)), " by inclusion and exclusion", share === null ? "." : `; relevance said ${percent(share)}.`);
  return [el("p", { id: "fate", class: turned ? "turned" : null }, el("b", {}, told)), rows.length ? el("div", { class: "fates" }, ...rows) : null, lost, together].filter(Boolean);
}
