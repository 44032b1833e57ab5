// The circuit of a contrast in the explorer: found by the server, measured and patched when it is asked for.
import { circuitSentence, drawCircuit, drawCircuitChoice, drawCircuitCurve, saveCircuit } from "./circuit.js";
import { el } from "./numbers.js";

// `server()` asks; `box` is shown for views of contrasts whose network has a residual stream.
export function circuitPanel(box, server) {
  const here = { view: null, id: null, step: 0, node: null, names: {} };
  const mass = el("input", { id: "circuit-mass", type: "number", min: 0.05, max: 3, step: 0.05, value: 0.9 });
  const along = el("input", { id: "circuit-along", type: "checkbox" });
  const find = el("button", { type: "submit", id: "circuit-find" }, "find the circuit");
  const note = el("p", { class: "note", id: "circuit-note", role: "status" });
  const sentence = el("strong", { id: "circuit-sentence", "aria-live": "polite" });
  const size = el("input", { id: "circuit-size", type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": "edges", oninput: (event) => act.size(Number(event.target.value)) });
  const measure = el("button", { type: "button", id: "circuit-measure", onclick: () => ask("patch", { step: here.step }) }, "measure by patching");
  const picture = el("div", { class: "network", id: "circuit-picture" }), curve = el("div"), choice = el("div", { class: "selection", "aria-live": "polite" });
  const taking = ["PNG", "SVG", "JSON"].map((kind) => el("button", { type: "button", onclick: () => saveCircuit(kind, picture, { ...here.view, names: here.names, shown: here.step }) }, kind));
  const home = el("small", { id: "circuit-home" });
  const found = el("div", { class: "circuitgrid", hidden: true },
    el("div", {}, el("div", { class: "row" }, size, measure), curve, choice, home),
    el("div", {}, el("div", { class: "bar" }, sentence, el("div", { class: "spacer" }), ...taking), picture));
  box.replaceChildren(
    el("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); ask("circuit", { mass: Number(mass.value), positions: along.checked }); } },
      el("h2", {}, "Circuit"), el("label", {}, "mass ", mass), el("label", {}, along, " at single tokens"), find),
    note, found);

  const act = {
    choose(node) {
      here.node = node;
      draw();
      if (node === null) return;
      picture.querySelector(`[data-circuit="${node}"]`)?.focus();
      const one = here.view.nodes[node];
      if (one.kind === "head" && !here.view.attention?.[one.name]) ask("attention", { node: one.name });
    },
    size(step) { here.step = step; size.value = step; draw(); },
    patch: (name) => ask("patch", { node: name }),
    async name(node, name) {
      try {
        const { names } = await server().name({ circuit: here.id, node, name });
        here.names = names;
        draw();
      } catch (error) { say(error.message); }
    },
  };

  function say(text) { note.textContent = text; }

  // What the server finds out comes in parts, which join the view.
  async function ask(what, question) {
    const circuit = here.id;
    say("computing …");
    try {
      let notes = "";
      const job = await server().circuit(what, what === "circuit" ? question : { ...question, circuit }, (part) => {
        if (part.notes) notes = part.notes.join(" ");
        if (part.circuit) arrive(part.circuit);
        if (part.f && circuit === here.id) here.view.steps[part.f.step].f = part.f.value;
        for (const kind of ["patched", "attention"]) if (part[kind] && circuit === here.id) here.view[kind] = { ...here.view[kind], ...part[kind] };
      });
      if (what === "circuit") here.id = job;
      say(notes);
      draw();
    } catch (error) { say(error.message); }
  }

  function arrive(view) {
    [here.view, here.step, here.node, here.names] = [view, view.steps.length - 1, null, view.names];
    size.setAttribute("max", here.step);
    size.value = here.step;
    home.textContent = `names are kept in ${view.home}`;
    found.hidden = false;
  }

  function draw() {
    if (!here.view) return;
    const step = here.view.steps[here.step];
    if (here.node !== null && !step.edges.some((e) => here.view.ribbons[e].slice(0, 2).includes(here.node))) here.node = null;
    sentence.textContent = circuitSentence(here.view, step);
    measure.disabled = step.f !== null;
    drawCircuit(picture, here.view, here, act);
    drawCircuitChoice(choice, here.view, here, act);
    drawCircuitCurve(curve, here.view, here, act);
  }

  return {
    draw,
    clear() { if (here.node !== null) act.choose(null); },
    // Another view: its circuit is not known yet.
    arrived(view) {
      box.hidden = !view.circuits;
      found.hidden = true;
      [here.view, here.id, here.node] = [null, null, null];
      picture.replaceChildren();
      say("");
    },
  };
}
