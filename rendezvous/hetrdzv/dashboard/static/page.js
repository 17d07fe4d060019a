// Says whether the page follows the server, keeps what a person opened or scrolled over an update, asks before acting.
"use strict";
(() => {
  const SILENT_MS = 15000;
  const link = document.getElementById("link");
  const dialog = document.getElementById("dialog");
  let heard = Date.now();
  let lost = null;

  const clock = (date) => date.toLocaleTimeString([], { hour12: false });

  function tell() {
    const text = lost ? `connection lost at ${clock(lost)}, trying again` : "live";
    if (link.textContent !== text) link.textContent = text;
    link.className = lost ? "link lost" : "link";
    document.body.classList.toggle("stale", Boolean(lost));
  }

  function hear() {
    heard = Date.now();
    lost = null;
    tell();
  }

  function lose() {
    if (!lost) lost = new Date();
    tell();
  }

  function localTimes(root) {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString([], { month: "short", day: "numeric" })} `;
      one.textContent = day + clock(at);
      one.title = at.toLocaleString();
    }
  }

  const KEPT = ".wide[id], .trace[id], .events[id]";
  const scrolled = new Map();
  document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
    for (const one of event.target.querySelectorAll(KEPT)) scrolled.set(one.id, [one.scrollLeft, one.scrollTop]);
  });
  document.body.addEventListener("htmx:sseMessage", (event) => {
    hear();
    for (const one of event.target.querySelectorAll(KEPT)) {
      const [left, top] = scrolled.get(one.id) || [0, 0];
      one.scrollLeft = left;
      one.scrollTop = top;
    }
    localTimes(event.target);
  });
  document.body.addEventListener("htmx:sseOpen", (event) => {
    event.detail.source.addEventListener("tick", hear);
    hear();
  });
  document.body.addEventListener("htmx:sseError", lose);
  setInterval(() => { if (Date.now() - heard > SILENT_MS) lose(); }, 1000);

  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "dialog-body" && !dialog.open) dialog.showModal();
  });
  document.body.addEventListener("done", () => dialog.close());
  dialog.addEventListener("close", () => { document.getElementById("dialog-body").replaceChildren(); });

  localTimes(document);
})();
