// Generated text in the explorer: the model writes behind a prompt, and every token shows what it owes to those before it.
import { el, percent } from "./numbers.js";
import { save } from "./export.js";

const WRITTEN_WIDE = 160, WRITTEN_NAMED = 5, WRITTEN_INK = 60;

// The shares of a row; without the first token they are shares of what that one has not.
function writtenShares(row, apart) {
  const left = 1 - row[0];
  return apart && row.length > 1 ? row.map((share, s) => (s && left ? share / left : 0)) : row;
}

// Puts a share as a colour behind an element.
function writtenColour(node, share, full) {
  node.classList.toggle("against", share < 0);
  node.style.setProperty("--share", (WRITTEN_INK * Math.min(1, Math.abs(share) / full)).toFixed(1));
}

const writtenCell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

// `server()` asks; `facts` say whether the model writes at all, and whether it holds conversations.
export function textPanel(box, server, facts) {
  box.hidden = !facts;
  if (!facts) return;
  // `rows` are the shares of every kind that was asked for: of the logits themselves, or of differences.
  const here = { id: null, pieces: [], count: 0, rows: {}, scripts: {}, kind: "logit", chosen: null, mine: false };
  const prompt = el("textarea", { id: "written-prompt", rows: 2, maxlength: 4000, placeholder: "a prompt (empty: the chosen input)", "aria-label": "prompt" });
  const tokens = el("input", { id: "written-tokens", type: "number", min: 1, max: facts.most, value: 16 });
  const chat = el("input", { id: "written-chat", type: "checkbox" });
  const go = el("button", { type: "submit", id: "written-go" }, "write, and explain every token");
  const note = el("p", { class: "note", id: "written-note", role: "status" });
  const kind = el("select", { id: "written-kind", onchange: change },
    el("option", { value: "logit" }, "what is written"),
    el("option", { value: "mean" }, "the difference from the mean of all words"),
    el("option", { value: "other" }, "the difference from another prompt"));
  const other = el("input", { id: "written-other", type: "text", maxlength: 4000, placeholder: "another prompt of as many tokens", "aria-label": "another prompt", hidden: true });
  const compare = el("button", { type: "button", id: "written-compare", hidden: true, onclick: () => ask("other") }, "compare");
  const apart = el("input", { id: "written-apart", type: "checkbox", onchange: draw });
  const text = el("div", { class: "writtentext", id: "written-text", role: "group", "aria-label": "the text, token by token", onclick: pick, onkeydown: move });
  const sentence = el("p", { id: "written-sentence", "aria-live": "polite" });
  const table = el("div", { class: "writtentable", tabindex: 0, role: "region", "aria-label": "what every token comes from" });
  const script = el("pre", { id: "written-script", tabindex: 0, role: "region", "aria-label": "Python of this text" });
  const found = el("div", { hidden: true },
    el("div", { class: "bar" }, el("label", {}, "shares of ", kind), other, compare, el("label", {}, apart, " first token apart"),
      el("div", { class: "spacer" }), el("button", { type: "button", id: "written-csv", onclick: take }, "CSV")),
    text, sentence, el("details", {}, el("summary", {}, "the table"), table), el("details", {}, el("summary", {}, "in Python"), script));
  box.replaceChildren(
    el("form", { onsubmit: (event) => { event.preventDefault(); begin(); } },
      el("div", { class: "bar" }, el("h2", {}, "What the model writes"), el("label", {}, "tokens ", tokens), facts.chat ? el("label", {}, chat, " as a conversation") : null, go), prompt),
    note, found);

  // ---- asking

  async function follow(which, asked, take) {
    note.textContent = "writing …";
    let said = "";
    try {
      await server().write(asked, (part) => {
        if (part.row) take(part);
        if (part.end) { said = part.end.notes.join(" "); here.scripts[which] = part.end.script; }
        draw();
      });
    } catch (error) { said = error.message === "cancelled" ? "stopped: this is what there was so far" : error.message; }
    note.textContent = said;
    draw();
  }

  function begin() {
    Object.assign(here, { id: null, pieces: [], count: 0, rows: { logit: [] }, scripts: {}, kind: "logit", chosen: null, mine: false });
    kind.value = "logit";
    change();
    follow("logit", { prompt: prompt.value, tokens: Number(tokens.value), chat: chat.checked }, (part) => {
      here.pieces.push(...part.text);
      [here.id, here.count] = [part.of, part.prompt];
      here.rows.logit.push(part.row.shares);
      if (!here.mine) here.chosen = here.pieces.length - 1;
      found.hidden = false;
    });
  }

  // A difference is explained of the same words, once; another prompt is waited for.
  function change() {
    here.kind = kind.value;
    other.hidden = compare.hidden = here.kind !== "other";
    if (here.kind === "mean" && !here.rows.mean) ask("mean");
    else draw();
  }

  function ask(which) {
    here.rows[which] = [];
    follow(which, { of: here.id, against: which === "mean" ? { mean: true } : other.value }, (part) => here.rows[which].push(part.row.shares));
  }

  // ---- choosing

  const last = () => here.pieces.length - 1;

  function choose(at) {
    here.chosen = Math.max(0, Math.min(last(), at));
    here.mine = true;
    draw();
    text.querySelector(`[data-token="${here.chosen}"]`)?.focus();
  }

  function pick(event) {
    const token = event.target.closest("[data-token]");
    if (token) choose(Number(token.dataset.token));
  }

  function move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? { Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(last(), here.chosen + step)));
  }

  // ---- drawing

  const rows = () => (here.rows[here.kind] ?? []).map((row) => writtenShares(row, apart.checked));
  const name = (at) => `“${here.pieces[at].text}”`;

  // Of a written token where it comes from, of one of the prompt what it went into: shares by token.
  function around(at) {
    const shares = new Map(), known = rows();
    if (at >= here.count) (known[at - here.count] ?? []).forEach((share, s) => shares.set(s, share));
    else known.forEach((row, g) => shares.set(here.count + g, row[at]));
    return shares;
  }

  function tell(shares) {
    const at = here.chosen, comes = at >= here.count;
    const best = [...shares].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).filter(([, share]) => Math.abs(share) >= 0.005).slice(0, WRITTEN_NAMED);
    const list = best.map(([s, share]) => `${name(s)} ${percent(share)}`).join(", ") || "nothing";
    const row = comes ? here.rows[here.kind]?.[at - here.count] : null;
    const parts = [el("b", {}, name(at)), comes ? ` comes from ${list}` : ` went into ${list}`];
    if (row) {
      const rest = 1 - row.reduce((sum, share) => sum + share, 0);
      if (Math.abs(rest) >= 0.005) parts.push(`; ${percent(rest)} of it is in constants`);
      if (apart.checked) parts.push(`; ${percent(row[0])} is in the first token, ${name(0)}, and left out`);
    }
    sentence.replaceChildren(...parts, ".");
    const sink = here.rows.logit.reduce((sum, each) => sum + each[0], 0) / Math.max(1, here.rows.logit.length);
    if (here.kind === "logit" && sink > 0.3) sentence.append(` The first token has ${percent(sink)} on average, as models rest attention there: set it apart, or ask for a difference, in which it has nothing.`);
  }

  function drawTable() {
    if (last() > WRITTEN_WIDE) { table.textContent = `${last()} columns are too many to show; CSV has them.`; return; }
    const known = rows(), sizes = known.flat().map(Math.abs).sort((a, b) => a - b), full = sizes[Math.floor(sizes.length * 0.98)] || 1;
    const first = apart.checked ? 1 : 0, columns = here.pieces.slice(first, last());
    const head = el("tr", {}, el("td"), ...columns.map((piece, s) => el("th", { scope: "col", class: s + first >= here.count ? "new" : null }, el("span", {}, piece.text))));
    const body = known.map((row, g) => el("tr", {}, el("th", { scope: "row" }, here.pieces[here.count + g].text), ...columns.map((_, s) => {
      const share = row[s + first], cell = el("td", share === undefined ? {} : { title: `${here.pieces[here.count + g].text} from ${here.pieces[s + first].text}: ${percent(share)}` });
      if (share !== undefined) writtenColour(cell, share, full);
      return cell;
    })));
    table.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
  }

  function draw() {
    if (!here.pieces.length) { found.hidden = true; return; }
    const shares = around(here.chosen), full = Math.max(1e-9, ...[...shares.values()].map(Math.abs));
    text.replaceChildren();
    here.pieces.forEach((piece, at) => {
      const share = shares.get(at), on = at === here.chosen;
      const token = el("span", { class: `tok${at >= here.count ? " new" : ""}${on ? " on" : ""}`, "data-token": at, role: "button", tabindex: on ? 0 : -1, "aria-pressed": String(on), "aria-label": share === undefined ? piece.text : `${piece.text}, ${percent(share)}`, title: share === undefined ? null : percent(share) }, piece.text);
      if (share !== undefined) writtenColour(token, share, full);
      if (piece.space) text.append(" ");
      text.append(token);
      if (piece.ends) text.append(el("br"));
    });
    tell(shares);
    drawTable();
    script.textContent = here.scripts[here.kind] ?? "";
  }

  function take() {
    const lines = [["generated", ...here.pieces.slice(0, last()).map((piece) => piece.text)]];
    rows().forEach((row, g) => lines.push([here.pieces[here.count + g].text, ...row.map(String)]));
    save("generated.csv", new Blob([lines.map((line) => line.map(writtenCell).join(",")).join("\n")], { type: "text/csv" }));
  }
}
