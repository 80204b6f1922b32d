"use strict";
const REFRESH_MS = 4000, AFTER_ERROR_MS = 15000;
const PHASES = [["PROCESSING", "processing"], ["PROCESSED", "waiting for its turn"], ["COMMITTING", "committing"]];
const asked = new URLSearchParams(location.search);
const at = id => document.getElementById(id);
let opened = asked.has("txid") ? Number(asked.get("txid")) : null;
let details = null;

/* Airflow's own theme where the page lies in its frame, else the system's. */
function theme() {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  try { if (parent !== window) dark = parent.document.documentElement.classList.contains("dark"); } catch (e) { /* alone */ }
  document.documentElement.classList.toggle("dark", dark);
}

/* Elements are made, never parsed from text: nothing that the ledger holds becomes markup. */
function make(name, properties, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}
/* Where a spout is opaque, a transaction loses its batch when a lower one is attempted again. */
const statusOf = tx => {
  const made = badge(tx.status);
  const cell = make("span", {}, made);
  if (tx.invalidated) cell.append(" (invalidated)");
  if (tx.late) cell.append(" (late)");
  if (tx.abandoned) cell.append(make("div", {className: "error", textContent: "nobody works on it"}));
  return cell;
};
const badge = status => {
  const made = make("span", {className: "badge", textContent: status});
  made.style.background = `var(--${status})`;
  return made;
};
const count = n => n === null || n === undefined || n < 0 ? "–" : n.toLocaleString("en");
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (bytes >= 1024 && power < units.length - 1) { bytes /= 1024; power += 1; }
  return `${power ? bytes.toFixed(1) : bytes} ${units[power]}`;
}
function span(ms) {
  if (ms === null || Number.isNaN(ms) || ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}
const moment = ms => ms ? new Date(ms).toLocaleString("sv") : "–";

/* [status, from, to] of each phase that the current attempt has been through; the last one may still go on. */
function phases(tx) {
  const t = tx.times_ms, stops = [t.COMMITTED, t.FAILED, t.SKIPPED, t.CLOSED];
  const order = ["PROCESSING", "PROCESSED", "COMMITTING"];
  const found = [];
  order.forEach((status, index) => {
    if (!(status in t)) return;
    if (found.length && t[status] < found[found.length - 1][1]) return;
    const later = [...order.slice(index + 1).map(one => t[one]), ...stops].filter(one => one >= t[status]);
    const going = tx.status === status;
    found.push([status, t[status], going ? Date.now() : later.length ? Math.min(...later) : t[status]]);
  });
  return found;
}
const took = (tx, status) => { const one = phases(tx).find(p => p[0] === status); return one ? span(one[2] - one[1]) : "–"; };

function bar(tx, first, last) {
  const made = make("div", {className: "time"});
  for (const [status, from, to] of phases(tx)) {
    const part = make("i", {title: `${PHASES.find(p => p[0] === status)[1]}: ${span(to - from)}`});
    const place = ms => (Math.min(Math.max(ms, first), last) - first) / (last - first) * 100;
    part.style.left = `min(${place(from)}%, 100% - 2px)`;
    part.style.width = `${place(to) - place(from)}%`;
    part.style.background = `var(--${status})`;
    made.append(part);
  }
  return made;
}

/* Leaves the frame by the outer page's own router; alone, the page has nowhere to go. */
function runLink(tx) {
  if (!tx.dag_id) return make("span", {className: "faint", textContent: tx.visible ? "" : "of a DAG that you may not see"});
  const prefix = location.pathname.replace(/\/trident\/.*$/, "");
  const url = `${prefix}/dags/${encodeURIComponent(tx.dag_id)}/runs/${encodeURIComponent(tx.run_id)}`;
  const link = make("a", {href: url, textContent: tx.run_id + (tx.map_index >= 0 ? ` [${tx.map_index}]` : "")});
  link.addEventListener("click", event => {
    event.stopPropagation();
    if (parent === window) return;
    event.preventDefault();
    parent.history.pushState({}, "", url);
    parent.dispatchEvent(new PopStateEvent("popstate"));
  });
  return link;
}

/* What a row shows, as cells; what moves with the clock is brought up to date in place (`tick`). */
function row(tx) {
  const button = make("button", {type: "button", className: "txid", textContent: String(tx.txid)});
  button.setAttribute("aria-expanded", String(opened === tx.txid));
  button.setAttribute("aria-label", `Transaction ${tx.txid}, details`);
  const cell = (content, classes) => make("td", {className: classes || ""}, content);
  const moving = {PROCESSING: cell("", "number"), PROCESSED: cell("", "number"), COMMITTING: cell("", "number"), bar: cell("")};
  const cells = [
    cell(button, "number"), cell(statusOf(tx)), cell(runLink(tx), "run"),
    cell(tx.attempt === null ? "0" : count(tx.attempt + 1), "number"), cell(count(tx.rows_read), "number"),
    cell(count(tx.rows_staged), "number"), cell(size(tx.bytes), "number spare"), cell(moment(tx.times_ms.begun), "spare"),
    moving.PROCESSING, moving.PROCESSED, moving.COMMITTING, moving.bar,
  ];
  const wanted = (asked.has("txid") && Number(asked.get("txid")) === tx.txid) || isAskedRun(tx);
  const made = make("tr", {className: `row${wanted ? " asked" : ""}${opened === tx.txid ? " open" : ""}`}, ...cells);
  made.addEventListener("click", () => { if (getSelection().isCollapsed) toggle(tx.txid); });
  const rows = [made];
  if (opened === tx.txid)
    rows.push(make("tr", {className: "open"}, make("td", {className: "wide", colSpan: cells.length}, ...inside(tx))));
  return {rows, moving, button};
}

function toggle(txid) {
  opened = opened === txid ? null : txid;
  details = null;
  draw();
  load();
}

function tick(shown, tx, first, last) {
  for (const status of ["PROCESSING", "PROCESSED", "COMMITTING"]) {
    const text = took(tx, status);
    if (shown.moving[status].textContent !== text) shown.moving[status].textContent = text;
  }
  shown.moving.bar.replaceChildren(bar(tx, first, last));
}

/* Only rows that changed are made anew, and none in which text is being selected: focus, scroll and selection stay. */
const drawn = new Map();
function drawRows(all, first, last) {
  const body = at("rows"), selection = getSelection(), held = document.activeElement;
  for (const txid of [...drawn.keys()]) if (!all.some(tx => tx.txid === txid)) drawn.delete(txid);
  const wanted = [];
  for (const tx of all) {
    const known = drawn.get(tx.txid), mark = JSON.stringify([tx, opened === tx.txid && [details]]);
    const selecting = known && !selection.isCollapsed && known.rows.some(one => selection.containsNode(one, true));
    if (!known || (known.mark !== mark && !selecting)) {
      const made = {...row(tx), mark};
      const scrolled = known && known.rows[1] && known.rows[1].querySelector("pre");
      drawn.set(tx.txid, made);
      if (known) {
        known.rows[0].before(...made.rows);
        const pre = made.rows[1] && made.rows[1].querySelector("pre");
        if (pre && scrolled) pre.scrollTop = scrolled.scrollTop;
        if (known.button === held) made.button.focus({preventScroll: true});
        else if (pre && known.rows[1] && known.rows[1].contains(held)) pre.focus({preventScroll: true});
      }
    }
    tick(drawn.get(tx.txid), tx, first, last);
    wanted.push(...drawn.get(tx.txid).rows);
  }
  const kept = new Set(wanted);
  for (const one of [...body.children]) if (!kept.has(one)) one.remove();
  wanted.forEach((one, index) => { if (body.children[index] !== one) body.insertBefore(one, body.children[index] || null); });
}

function inside(tx) {
  const list = make("dl", {});
  const say = (name, value) => value && list.append(make("dt", {textContent: name}), make("dd", {}, value));
  say("Rows by state", Object.entries(tx.rows).map(([name, n]) => `${name}: ${count(n)}`).join(", "));
  say("Size", tx.bytes === null ? "" : size(tx.bytes));
  say("Streams with data", tx.streams.join(", "));
  say("Too late for all their windows", Object.entries(tx.late_rows).map(([name, n]) => `${name}: ${count(n)}`).join(", "));
  say("Plan", tx.plan && `${tx.plan}${tx.plan_changed ? ": it changed with this transaction" : ""}`);
  say("Last written by", tx.owner);
  for (const [name, ms] of Object.entries(tx.times_ms).sort((a, b) => a[1] - b[1])) say(name, moment(ms));
  if (details && details.txid === tx.txid && details.metadata_text)
    say("Metadata", make("pre", {textContent: details.metadata_text, tabIndex: 0}));
  if (tx.abandoned) say("Nobody works on it", `${tx.why || "its tasks have ended"}. Clear that task, or ` +
    `"airflow trident backfill ${data.name} --txid ${tx.txid}".`);
  return [tx.error ? make("p", {className: "error", textContent: tx.error}) : null, list];
}

let data = null;
const isAskedRun = tx => asked.has("run_id") && tx.run_id === asked.get("run_id") && tx.dag_id === asked.get("dag_id");

function tile(value, label, bad) {
  return make("div", {className: `tile${bad ? " bad" : ""}${value.length > 14 ? " long" : ""}`}, make("b", {textContent: value}), make("span", {textContent: label}));
}

const lagText = lag => Object.entries(lag).map(([stream, units]) =>
  `${stream}: ${Object.entries(units).map(([unit, n]) => unit === "bytes" ? size(n) : `${count(n)} ${unit}`).join(", ")}`).join("; ");

/* How the coordinator ended last: what looks healthy while it stands is seen by this. */
function coordinatorTiles(now) {
  const one = data.coordinator;
  if (!one) return [tile("–", "coordinator: nothing said yet")];
  const when = one.time_ms ? `, ${span(now - one.time_ms)} ago` : "";
  const lag = one.kind === "nothing new" ? "none" : one.lag_ms ? lagText(one.lag) || "not told" : "not known";
  return [tile(one.kind, `coordinator${when}`, one.is_bad), tile(lag, "not yet claimed at the sources")];
}

function draw() {
  if (!data) return;
  const all = data.transactions, now = Date.now();
  all.forEach(tx => { tx.late = data.late.includes(tx.txid); });
  const planned = all.filter(tx => tx.plan).sort((a, b) => a.txid - b.txid);
  planned.forEach((tx, place) => { tx.plan_changed = place > 0 && planned[place - 1].plan !== tx.plan; });
  const open = all.filter(tx => !["COMMITTED", "SKIPPED", "CLOSED"].includes(tx.status));
  const oldest = Math.min(...open.map(tx => tx.times_ms.begun || now));
  at("tiles").replaceChildren(
    ...coordinatorTiles(now),
    tile(count(data.committed), "committed up to"), tile(count(data.begun), "begun"),
    tile(count(data.pending), "pending"),
    tile(open.length ? span(now - oldest) : "none", "lag: oldest uncommitted"),
    tile(count(data.failed.length), "failed", data.failed.length), tile(count(data.skipped.length), "skipped"),
    ...(data.replaying.length + data.late.length ? [tile(count(data.replaying.length + data.late.length), "being replayed")] : []),
  );
  at("workers").textContent = data.workers.map(one =>
    `${one.host ? `${one.host}/${one.pid}` : "a worker"}${one.txid ? `: transaction ${one.txid}` : ""}` +
    `${one.task ? ` (${one.task})` : ""}`).join(" \u00b7 ");
  at("command").textContent = data.command;
  at("command").style.background = data.command === "run" ? "var(--COMMITTED)" : "var(--COMMITTING)";
  const dag = asked.get("dag_id");
  const shown = all.filter(tx => !dag || asked.has("topology") || at("topology").dataset.byHand || tx.dag_id === dag);
  /* What still goes on runs off the edge: else one that hangs would press all the others together. */
  const recent = shown.slice(0, 25), edges = recent.flatMap(tx => phases(tx).map(p => p[1]));
  const ended = recent.flatMap(tx => phases(tx).filter(p => p[0] !== tx.status).map(p => p[2]));
  const first = Math.min(...edges), known = Math.max(first + 1, ...edges, ...ended);
  const last = open.length ? Math.min(now, known + (known - first) * 0.15) : known;
  drawRows(shown, first, last);
  at("list").hidden = at("key").hidden = !shown.length;
  notice(...troubles(all));
  say("hint", ...data.notes, data.visible ? "" : "What this topology reads and writes belongs to DAGs that you may not see.");
}

/* What stands still until a person does something. */
function troubles(all) {
  const found = [], one = data.coordinator, name = data.name;
  if (one && one.kind === "error")
    found.push(`The coordinator ${one.run_id ? `of run ${one.run_id} ` : ""}failed at ${moment(one.time_ms)}, and nothing ` +
      `new is begun: ${one.error || "see its task's log."}`);
  const failed = data.failed.filter(txid => txid > data.committed);
  if (failed.length)
    found.push(`Transaction ${Math.min(...failed)} is FAILED: nothing above it commits before it. Clear its task, ` +
      `replay it with "airflow trident backfill ${name} --failed", or let the others pass with ` +
      `"airflow trident skip ${name} ${Math.min(...failed)}".`);
  const gone = all.filter(tx => tx.abandoned).map(tx => tx.txid).sort((a, b) => a - b);
  if (gone.length)
    found.push(`Nobody works on ${gone.length > 1 ? "transactions" : "transaction"} ${gone.join(", ")}: clear the task that ` +
      `has ended, or "airflow trident backfill ${name} --txid ${gone[0]}".`);
  return found;
}

/* Said anew only when it is something new: a screen reader reads it out, and text in it may be selected. */
function say(id, ...texts) {
  const lines = texts.filter(text => text), said = JSON.stringify(lines);
  at(id).hidden = !lines.length;
  if (at(id).dataset.said === said) return;
  at(id).dataset.said = said;
  at(id).replaceChildren(...lines.map(text => make("p", {textContent: text})));
}
const notice = (...texts) => say("notice", ...texts);

async function get(path) {
  const answer = await fetch(`api/${path}`, {credentials: "same-origin"});
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.detail || `The server answered ${answer.status}.`);
  return body;
}

/* Which topology: the one that was chosen, else that of the link, else that of the link's DAG; never another one. */
async function choose() {
  const select = at("topology");
  if (select.dataset.chosen) return select.dataset.chosen;
  const here = new URLSearchParams();
  for (const key of ["dag_id", "run_id"]) if (asked.has(key) && !asked.has("topology")) here.set(key, asked.get(key));
  const found = await get(`names?${here}`), names = found.names;
  const wanted = asked.get("topology") || (asked.has("dag_id") ? found.of_dag[0] : names[0]);
  const options = [...names];
  if (wanted && !names.includes(wanted)) options.unshift(wanted);
  if (!wanted) options.unshift("");
  select.replaceChildren(...options.map(name => make("option", {value: name, textContent: name || "choose a topology"})));
  select.value = wanted || "";
  select.hidden = !names.length;
  if (!names.length) notice("No topology has a ledger yet. A topology's first coordinator run creates it.");
  else if (!wanted) say("hint", `DAG ${asked.get("dag_id")} has no transactions in any topology's ledger.`);
  else if (!names.includes(wanted)) notice(`There is no topology ${wanted}. Known: ${names.join(", ")}.`);
  else select.dataset.chosen = wanted;
  return select.dataset.chosen || "";
}

/* One at a time: a slow server is not asked again before it has answered. What is no longer wanted is not shown. */
let going = false, again = false, timer = null;
async function load() {
  if (going) { again = true; return; }
  going = true;
  again = false;
  clearTimeout(timer);
  let wait = REFRESH_MS;
  try {
    const name = await choose();
    if (name) {
      const txid = opened;
      const answer = await get(`topologies/${encodeURIComponent(name)}${txid === null ? "" : `?txid=${txid}`}`);
      if (name === at("topology").dataset.chosen) {
        data = answer;
        if (opened === null && asked.has("run_id") && !load.found) {
          const mine = data.transactions.find(tx => isAskedRun(tx) && (Number(asked.get("map_index") || -1) < 0 ||
            tx.map_index < 0 || tx.map_index === Number(asked.get("map_index"))));
          if (mine) { opened = mine.txid; load.found = again = true; }
        }
        if (opened !== null && opened === txid) details = answer.details;
        draw();
      }
    }
    at("fresh").textContent = `read ${new Date().toLocaleTimeString("sv")}`;
  } catch (error) {
    notice(error.message);
    wait = AFTER_ERROR_MS;
  }
  going = false;
  if (again) load();
  else if (!document.hidden) timer = setTimeout(load, wait);
}

at("key").replaceChildren(...PHASES.map(([status, words]) => {
  const square = make("i", {});
  square.style.background = `var(--${status})`;
  return make("span", {}, square, words);
}));
at("topology").addEventListener("change", event => {
  event.target.dataset.chosen = event.target.value;
  event.target.dataset.byHand = "yes";
  opened = details = data = null;
  drawn.clear();
  at("rows").replaceChildren();
  at("tiles").replaceChildren();
  at("list").hidden = at("key").hidden = true;
  load();
});
/* Nothing is asked while nobody looks, and at once when somebody does. */
document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
theme();
try { new parent.MutationObserver(theme).observe(parent.document.documentElement, {attributeFilter: ["class"]}); } catch (e) { /* alone */ }
at("fresh").textContent = "reading the ledger \u2026";
load();
