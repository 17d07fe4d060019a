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

  function localTimes() {
    for (const one of document.querySelectorAll("time[datetime]:not([title])")) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString([], { month: "short", day: "numeric" })} `;
      one.textContent = day + clock(at);
      one.title = at.toLocaleString();
    }
  }

  // What a person has opened or closed stays so.
  const opened = new Map();
  document.body.addEventListener("click", (event) => {
    const summary = event.target.closest("summary");
    const fold = summary && summary.parentElement;
    if (fold && fold.id) opened.set(fold.id, !fold.open);
  });

  // The table of groups: the search and the state that a person chose hold over an update.
  const find = document.getElementById("find");
  let only = "";

  function filter() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const active = Boolean(only || words.length);
    const rows = [...document.querySelectorAll("tr[data-state]")];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = Boolean(only && row.dataset.state !== only) || !words.every((word) => text.includes(word));
    }
    for (const button of document.querySelectorAll("[data-only]")) {
      button.setAttribute("aria-pressed", String(button.dataset.only === only));
    }
    for (const table of document.querySelectorAll("table.groups")) {
      table.parentElement.hidden = active && !table.querySelector("tr[data-state]:not([hidden])");
    }
    for (const fold of document.querySelectorAll("#old-groups")) {
      if (active) fold.open = true;
      else if (!opened.has(fold.id)) fold.open = "open" in fold.dataset;
    }
    find.hidden = rows.length < SEARCHED && !active;
    document.getElementById("none-found").hidden = !active || rows.some((row) => !row.hidden);
  }

  function prepare() {
    localTimes();
    for (const fold of document.querySelectorAll("details[id]")) {
      if (opened.has(fold.id)) fold.open = opened.get(fold.id);
    }
    if (find) filter();
  }

  if (find) {
    find.addEventListener("input", prepare);
    document.getElementById("groups").addEventListener("click", (event) => {
      const button = event.target.closest("[data-only]");
      if (!button) return;
      only = only === button.dataset.only ? "" : button.dataset.only;
      prepare();
    });
  }

  // The page asks for its sections; the server answers with those that have changed, or with nothing (304), so that
  // what people read, select or have scrolled stays.
  const polled = (event) => event.detail.elt === link;
  let scrolled = [];
  const KEPT = ".wide[id], .trace[id], .events[id]";
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (polled(event)) event.detail.headers["If-None-Match"] = link.dataset.etag;
  });
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr } = event.detail;
    if (!polled(event)) return;
    if (xhr.status !== 200) event.detail.shouldSwap = false;
    else {
      link.dataset.etag = xhr.getResponseHeader("ETag");
      scrolled = [...document.querySelectorAll(KEPT)].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
    }
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (!polled(event)) return;
    const { status } = event.detail.xhr;
    if (status === 200 || status === 304) lost = null;
    else lost ||= new Date();
    tell();
    if ([0, 401, 403, 404].includes(status)) look();
  });

  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "dialog-body" && !dialog.open) dialog.showModal();
    else {
      for (const [id, left, top] of scrolled) document.getElementById(id)?.scrollTo(left, top);
      scrolled = [];
      prepare();
    }
  });
  document.body.addEventListener("done", () => dialog.close());
  dialog.addEventListener("close", () => { document.getElementById("dialog-body").replaceChildren(); });

  prepare();
  tell();
})();
