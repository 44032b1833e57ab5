// What is in the address after `#`, so that it can be passed on; every large step of it can be gone back to, or undone.

// `words()` gives what is there now, large and small: large ones make a step of the history. `follow(found)` goes elsewhere.
export function keepAddress(words, follow) {
  const edits = []; // what is undone elsewhere than in the address
  let step = history.state?.step ?? 0, large = null;

  function write() {
    const [main, small] = words(), text = new URLSearchParams({ ...main, ...small }).toString(), mark = JSON.stringify(main);
    const moves = large !== null && mark !== large;
    large = mark;
    if (text === location.hash.slice(1)) return;
    if (moves) step += 1;
    const address = text ? `#${text}` : location.pathname + location.search;
    try { history[moves ? "pushState" : "replaceState"]({ step }, "", address); } catch { /* a page inside a notebook has no address */ }
  }

  const read = () => new URLSearchParams(location.hash.slice(1));
  // Back, forward, or an address that was pasted.
  addEventListener("popstate", (event) => {
    step = event.state?.step ?? step + 1;
    large = null;
    follow(read());
    write();
  });
  return {
    read, write,
    // Something was changed that `undo` can take back.
    edited(undo) { edits.push({ step, undo }); },
    forgetEdit() { edits.pop(); },
    // To another address, as a step of the history.
    go(found) {
      step += 1;
      try { history.pushState({ step }, "", `#${new URLSearchParams(found)}`); } catch { /* a page inside a notebook has no address */ }
      large = null;
      follow(new URLSearchParams(found));
      write();
    },
    undoable: () => step > 0 || edits.length > 0,
    undo() {
      if (edits.length && edits.at(-1).step >= step) edits.pop().undo();
      else if (step > 0) history.back();
    },
  };
}
