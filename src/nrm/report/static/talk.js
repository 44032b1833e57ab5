// Talking to the explorer's server: calls, jobs that are followed part by part, and what is said about them meanwhile.
import { el } from "./numbers.js";

const SOON = 250, GONE = 410;

// The token leaves the address as soon as it is read: what is passed on, or seen on a screen, does not hold it.
function takeToken() {
  const words = new URLSearchParams(location.search), token = words.get("token");
  if (token === null) return {};
  words.delete("token");
  const rest = words.toString();
  try { history.replaceState(history.state, "", location.pathname + (rest ? `?${rest}` : "") + location.hash); } catch { /* a page without an address */ }
  return { "X-Token": token };
}

export function talkTo() {
  const headers = takeToken(), at = (id) => document.getElementById(id);
  const now = { main: null, asked: null };

  async function call(path, options = {}) {
    const answer = await fetch(path, { ...options, headers: { ...headers, ...(options.headers ?? {}) } });
    const data = await answer.json().catch(() => ({}));
    if (answer.ok) return data;
    throw Object.assign(new Error(data.error ?? `the server answered ${answer.status}`), { gone: answer.status === GONE });
  }
  const post = (path, body) => call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const cancel = (job) => post(`api/jobs/${job}/cancel`, {}).catch(() => {});

  // The parts of a job as they come; returns when it is over. What takes a while is shown, and can be cancelled.
  async function follow(job, take) {
    const begun = Date.now();
    try {
      for (let seen = 0; ;) {
        const news = await call(`api/jobs/${job}?since=${seen}`);
        for (const part of news.parts) take(part);
        seen += news.parts.length;
        if (news.state === "failed") throw new Error(news.error);
        if (news.state === "cancelled") throw new Error("cancelled");
        if (news.state === "done") return;
        if ((now.asked ?? now.main) === job && Date.now() - begun > SOON) show(news, job);
      }
    } finally {
      if (now.asked === job) now.asked = null;
    }
  }

  // A question beside the view, which takes the place of the one before.
  async function beside(begin, take) {
    forget();
    const { job } = await begin();
    now.asked = job;
    try { await follow(job, take); } finally { if (!now.main) hide(); }
    return job;
  }

  // What was asked before is not wanted any more.
  function forget() {
    if (now.asked) cancel(now.asked);
    now.asked = null;
  }

  function show(news, job) {
    const bar = news.seconds > 1 ? el("progress", { max: news.seconds, value: Math.min(news.elapsed, news.seconds), "aria-label": news.step }) : el("span", { class: "spin" });
    const left = news.seconds > 1 ? ` (${Math.max(0, Math.round(news.seconds - news.elapsed))} s left)` : "";
    const same = at("job").dataset.job === job && at("cancel");
    const button = same || el("button", { type: "button", id: "cancel", onclick: () => cancel(job) }, "cancel");
    at("job").hidden = false;
    at("job").dataset.job = job;
    at("job").replaceChildren(bar, el("span", {}, `${news.step}${left}`), button);
  }

  function hide() {
    if (!at("job").querySelector(".error")) at("job").hidden = true;
  }

  // What went wrong with the job; it goes when another one begins.
  function say(text) {
    at("job").hidden = false;
    at("job").replaceChildren(el("span", { class: "error" }, text), el("button", { type: "button", onclick: () => { at("job").hidden = true; } }, "close"));
  }

  // What went wrong with something that a person did: it stays until it is read.
  function complain(text) {
    const line = el("p", {}, el("span", { class: "error" }, text), el("button", { type: "button", onclick: () => line.remove() }, "close"));
    at("errors").append(line);
  }

  // Asks before what takes long; `leave` ends the question without it.
  function priced(what, price, go, leave) {
    const end = (then) => () => { at("question").hidden = true; then(); };
    at("question").hidden = false;
    at("question").replaceChildren(el("span", {}, `${what} takes about ${Math.round(price.seconds)} s (${price.passes} forward passes).`),
      el("button", { type: "button", id: "agree", onclick: end(go) }, "compute"), el("button", { type: "button", id: "leave", onclick: end(leave) }, "leave it"));
  }

  return { now, call, post, cancel, follow, beside, forget, show, hide, say, complain, priced, unasked: () => { at("question").hidden = true; } };
}
