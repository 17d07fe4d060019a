// Says whether the page follows the server, keeps what a person opened or scrolled over an update, asks before acting.
"use strict";
(() => {
  const SILENT_MS = 15000;
  const SEARCHED = 6;  // from so many groups on there is a search
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

  // The server answers, but not as an event stream: it wants a new sign-in, another server leads, the group is gone.
  // A new load of the page shows what it is, and follows a redirect to another server, which a script may not.
  async function look() {
    const headers = { Accept: "text/html" };
    const answer = await fetch(location.href, { headers, redirect: "manual" }).catch(() => null);
    if (answer && (answer.type === "opaqueredirect" || [401, 403, 404].includes(answer.status))) location.reload();
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

  // The table of groups: the search and the state that a person chose hold over an update.
  const find = document.getElementById("find");
  let only = "";

  function filter(root) {
    if (!find) return;
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of root.querySelectorAll("tr[data-state]")) {
      const text = row.textContent.toLowerCase();
      row.hidden = Boolean(only && row.dataset.state !== only) || !words.every((word) => text.includes(word));
    }
    for (const button of root.querySelectorAll("[data-only]")) {
      button.setAttribute("aria-pressed", String(button.dataset.only === only));
    }
    const active = Boolean(only || words.length);
    for (const table of root.querySelectorAll("table.groups")) {
      table.parentElement.hidden = active && !table.querySelector("tr[data-state]:not([hidden])");
    }
    for (const fold of root.querySelectorAll("#old-groups")) {
      if (active) fold.open = true;
      else if (!opened.has(fold.id)) fold.open = "open" in fold.dataset;
    }
  }

  function filterAll() {
    if (!find) return;
    unfold(document);
    filter(document);
    const rows = document.querySelectorAll("tr[data-state]");
    const active = Boolean(only || find.value);
    find.hidden = rows.length < SEARCHED && !active;
    document.getElementById("none-found").hidden = !active || [...rows].some((row) => !row.hidden);
  }

  if (find) {
    find.addEventListener("input", filterAll);
    document.getElementById("groups").addEventListener("click", (event) => {
      const button = event.target.closest("[data-only]");
      if (!button) return;
      only = only === button.dataset.only ? "" : button.dataset.only;
      filterAll();
    });
  }

  // What a person has opened or closed stays so.
  const opened = new Map();
  document.body.addEventListener("click", (event) => {
    const summary = event.target.closest("summary");
    const fold = summary && summary.parentElement;
    if (fold && fold.id) opened.set(fold.id, !fold.open);
  });

  function unfold(root) {
    for (const fold of root.querySelectorAll("details[id]")) {
      if (opened.has(fold.id)) fold.open = opened.get(fold.id);
    }
  }

  function prepare(root) {
    localTimes(root);
    unfold(root);
    filter(root);
  }

  // What somebody else needs to know: why, what to do, the root cause, the rounds. Browsers offer a clipboard to pages
  // over TLS only; the older way works on all.
  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser does not copy");
  }

  const copying = document.getElementById("copy");
  if (copying) {
    copying.addEventListener("click", async () => {
      const parts = ["now", "asked", "cause", "rounds", "asked-of-round"].map((id) => document.getElementById(id).innerText.trim());
      const text = [location.href, ...parts].filter(Boolean).join("\n\n");
      copying.textContent = await copy(text).then(() => "Copied", () => "Not copied");
      setTimeout(() => { copying.textContent = "Copy"; }, 2000);
    });
  }

  // A command that is to be typed somewhere else.
  document.body.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) button.className = await copy(button.dataset.copy).then(() => "copy done", () => "copy failed");
  });

  const KEPT = ".wide[id], .trace[id]";
  const scrolled = new Map();
  document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
    const news = document.createElement("template");
    news.innerHTML = event.detail.data;
    prepare(news.content);
    if (news.innerHTML === event.target.innerHTML) {  // as after every new connection: leave alone what people read
      hear();
      event.preventDefault();
      return;
    }
    for (const one of event.target.querySelectorAll(KEPT)) scrolled.set(one.id, [one.scrollLeft, one.scrollTop]);
  });
  document.body.addEventListener("htmx:sseMessage", (event) => {
    hear();
    for (const one of event.target.querySelectorAll(KEPT)) {
      const [left, top] = scrolled.get(one.id) || [0, 0];
      one.scrollLeft = left;
      one.scrollTop = top;
    }
    prepare(event.target);
    filterAll();
  });
  document.body.addEventListener("htmx:sseOpen", (event) => {
    event.detail.source.addEventListener("tick", hear);
    hear();
  });
  document.body.addEventListener("htmx:sseError", (event) => {
    lose();
    if (event.detail.source.readyState === EventSource.CLOSED) look();
  });
  setInterval(() => { if (Date.now() - heard > SILENT_MS) lose(); }, 1000);

  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "dialog-body" && !dialog.open) dialog.showModal();
    else prepare(event.target);
  });
  document.body.addEventListener("done", () => dialog.close());
  dialog.addEventListener("close", () => { document.getElementById("dialog-body").replaceChildren(); });

  prepare(document);
  filterAll();
})();
