// Says whether the page follows the server, keeps what a person opened or scrolled over an update, asks before acting.
"use strict";
(() => {
  const SEARCHED = 6;  // from so many groups on there is a search
  const link = document.getElementById("link");
  const dialog = document.getElementById("dialog");
  let lost = null;

  const clock = (date) => date.toLocaleTimeString([], { hour12: false });

  function tell() {
    const text = lost ? `connection lost at ${clock(lost)}, trying again` : "live";
    if (link.textContent !== text) link.textContent = text;
    link.className = lost ? "link lost" : "link";
    document.body.classList.toggle("stale", Boolean(lost));
  }

  function hear() {
    lost = null;
    tell();
  }

  function lose() {
    if (!lost) lost = new Date();
    tell();
  }

  // The server wants a new sign-in, another server leads, or the group is gone: a new load of the page shows which, and
  // follows a redirect to another server, which a script may not.
  let looking = false;
  async function look() {
    if (looking) return;
    looking = true;
    const answer = await fetch(location.href, { redirect: "manual" }).catch(() => null);
    looking = false;
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

  // Sections ask for themselves; the server answers with nothing (304) if a page has the newest. What came is put into
  // a section only where something differs, so that what people read, select or have scrolled stays.
  const polled = (event) => event.detail.elt.dataset && "etag" in event.detail.elt.dataset;
  const KEPT = ".wide[id], .trace[id], .events[id]";
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (polled(event)) event.detail.headers["If-None-Match"] = event.detail.elt.dataset.etag;
  });
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { elt, xhr } = event.detail;
    if (!polled(event)) return;
    if (xhr.status !== 200) event.detail.shouldSwap = false;
    else {
      elt.dataset.etag = xhr.getResponseHeader("ETag");
      elt.scrolled = [...elt.querySelectorAll(KEPT)].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
    }
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (!polled(event)) return;
    const { status } = event.detail.xhr;
    if (status === 200 || status === 304) hear();
    else {
      lose();
      if ([0, 401, 403, 404].includes(status)) look();
    }
  });

  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "dialog-body" && !dialog.open) dialog.showModal();
    else {
      for (const [id, left, top] of event.target.scrolled || []) document.getElementById(id)?.scrollTo(left, top);
      prepare(event.target);
      filterAll();
    }
  });
  document.body.addEventListener("done", () => dialog.close());
  dialog.addEventListener("close", () => { document.getElementById("dialog-body").replaceChildren(); });

  prepare(document);
  filterAll();
  tell();
})();
