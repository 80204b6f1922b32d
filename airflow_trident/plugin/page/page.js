import {at, make, PHASES, say} from "./dom.js";
import {get} from "./api.js";
import {prepare} from "./actions.js";
import {drawOverview} from "./overview.js";
import {drawPartitions, prepareGrid} from "./partitions.js";
import {forget} from "./rows.js";
import {drawTopology} from "./topology.js";

const GRID_MS = 30000, REFRESH_MS = 4000, AFTER_ERROR_MS = 15000, STALE_MS = 20000;
const asked = new URLSearchParams(location.search);
const number = name => asked.has(name) && Number(asked.get(name)) > 0 ? Number(asked.get(name)) : null;

/* Nothing is drawn while a mouse button or the space bar is held: a button that is replaced between press and release gets
   no click. A release outside of the window is noticed when the pointer comes back, or the window loses the keyboard. */
let release = null, held = null;
const hold = () => { held ||= new Promise(done => { release = done; }); };
addEventListener("pointerdown", hold, true);
addEventListener("keydown", event => { if (event.key === " ") hold(); }, true);
const released = event => { if (held && !event.buttons) { held = null; setTimeout(release); } };
for (const kind of ["pointerup", "pointercancel", "pointermove", "keyup"]) addEventListener(kind, released, true);
addEventListener("blur", released);

/* What is shown. `topology`: empty for the overview. `trail`: the txid after which each page begins, from the second page
   to this one. `partition`: the chosen one; `period`: of the grid, empty for the latest. `oldestFirst`: the order of the pages, always by txid; other columns sort only the rows of one page. */
const now = {topology: "", opened: number("txid"), details: null, data: null, trail: [], oldestFirst: false, sort: {by: "txid", down: true}, found: false, readAt: 0,
  partition: asked.get("partition") || "", period: "", grid: null};

/* Airflow's own theme if the page is in Airflow's frame, else the system's. */
function theme() {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  try { if (parent !== window) dark = parent.document.documentElement.classList.contains("dark"); } catch (e) { /* alone */ }
  document.documentElement.classList.toggle("dark", dark);
}

const isAskedRun = tx => asked.has("run_id") && tx.run_id === asked.get("run_id") && tx.dag_id === asked.get("dag_id");
const filtered = () => Boolean(now.partition || at("status").value || at("text").value.trim() || at("from").value || at("to").value);
const shown = () => ({
  opened: now.opened, details: now.details, sort: now.sort, filtered, paged: () => now.trail.length > 0, reload: load,
  asked: tx => (asked.has("txid") && Number(asked.get("txid")) === tx.txid) || isAskedRun(tx),
  partition: now.partition, choose,
  toggle: txid => { now.opened = now.opened === txid ? null : txid; now.details = null; drawTopology(now.data, shown()); load(); },
});

/* Shows the transactions of a partition, the last one open; null: all transactions again. */
function choose(cell) {
  const over = !cell || now.partition === cell.key;
  now.partition = over ? "" : cell.key;
  now.opened = over || !cell.txid ? null : cell.txid;
  now.details = null;
  now.trail = [];
  drawPartitions(now.grid, {...shown(), data: now.data});
  load();
}

function query() {
  const wanted = new URLSearchParams();
  if (now.opened !== null) wanted.set("txid", now.opened);
  for (const status of at("status").value.split(",").filter(one => one)) wanted.append("status", status);
  if (at("text").value.trim()) wanted.set("text", at("text").value.trim());
  if (at("from").value) wanted.set("from_ms", new Date(at("from").value).getTime());
  if (at("to").value) wanted.set("to_ms", new Date(at("to").value).getTime());
  if (now.partition) wanted.set("partition", now.partition);
  if (now.oldestFirst) wanted.set("oldest_first", "true");
  if (now.trail.length) wanted.set("after", now.trail[now.trail.length - 1]);
  return wanted.toString();
}

/* The topology of a link: the one that it names, else that of its DAG, else the overview of all; never another one. */
async function chosen() {
  if (asked.has("topology")) return asked.get("topology");
  if (!asked.has("dag_id")) return "";
  const here = new URLSearchParams();
  for (const key of ["dag_id", "run_id"]) if (asked.has(key)) here.set(key, asked.get(key));
  const found = await get(`names?${here}`);
  if (found.of_dag.length) return found.of_dag[0];
  say("hint", `DAG ${asked.get("dag_id")} has no transactions in any topology's ledger.`);
  return "";
}

function show(topology) {
  now.topology = topology;
  now.details = now.data = now.grid = null;
  now.trail = [];
  now.period = asked.get("period") || "";
  forget();
  for (const id of ["notice", "hint"]) say(id);
  for (const id of ["done", "list", "key", "overview", "partitions-part", "charts-part", "mending-part", "named-part", "pipeline-line", "workers-line", "empty"]) at(id).hidden = true;
  at("one").hidden = !topology;
  at("all").hidden = Boolean(topology);
  at("back").hidden = at("command").hidden = !topology;
  at("title").textContent = topology || "Transactions";
  at("tiles").replaceChildren();
  for (const id of ["overview-rows", "acts", "charts", "about", "pipeline", "mending", "named"]) { at(id).replaceChildren(); delete at(id).dataset.said; delete at(id).dataset.mark; }
}

function open(topology) {
  const url = new URL(location.href);
  url.search = topology ? `?topology=${encodeURIComponent(topology)}` : "";
  history.pushState({topology}, "", url);
  for (const key of [...asked.keys()]) asked.delete(key);
  now.opened = null;
  now.partition = "";
  show(topology);
  at("fresh").textContent = "reading the ledger …";
  load();
}

async function readTopology() {
  const {topology, opened} = now, wanted = query();
  const answer = await get(`topologies/${encodeURIComponent(topology)}${wanted ? `?${wanted}` : ""}`);
  await held;
  if (topology !== now.topology || wanted !== query()) { again = true; return; }
  now.data = answer;
  if (opened === null && asked.has("run_id") && !now.found) {
    const mine = answer.transactions.find(tx => isAskedRun(tx) && (Number(asked.get("map_index") || -1) < 0 ||
      tx.map_index < 0 || tx.map_index === Number(asked.get("map_index"))));
    if (mine) { now.opened = mine.txid; now.found = again = true; }
  }
  if (opened !== null) now.details = answer.details;
  if (opened !== null && !answer.transactions.some(tx => tx.txid === opened) && !filtered() && !now.trail.length && opened < answer.begun && opened > 0 && !now.found) {
    now.found = again = true;
    now.trail = [opened + 1];
  }
  drawTopology(answer, shown());
  await readPartitions();
}

/* The grid is read again if a transaction has moved, another period is wanted, or half a minute is over. */
let gridMark = "", gridAt = 0;
async function readPartitions() {
  const {topology, data, period} = now;
  if (!data.partitions) return;
  const mark = JSON.stringify([topology, period, data.incarnation, data.begun, data.committed, data.failed, data.skipped, data.open.map(tx => [tx.txid, tx.status])]);
  if (!now.grid || mark !== gridMark || Date.now() - gridAt > GRID_MS) {
    const grid = await get(`topologies/${encodeURIComponent(topology)}/partitions${period ? `?period=${period}` : ""}`);
    await held;
    if (topology !== now.topology || period !== now.period) { again = true; return; }
    now.grid = grid;
    gridMark = mark;
    gridAt = Date.now();
  }
  drawPartitions(now.grid, {...shown(), data});
}

async function readOverview() {
  const all = await get("topologies");
  await held;
  if (now.topology) return;
  now.all = all;
  drawOverview(all, at("search").value, open);
  if (!all.length) say("notice", "No topology has a ledger yet. A topology's first coordinator run creates it.");
}

/* One request at a time: a slow server must answer before it is asked again. An answer that is no longer wanted is not
   shown. */
let going = false, again = false, timer = null, first = true;
async function load() {
  if (going) { again = true; return; }
  going = true;
  again = false;
  clearTimeout(timer);
  let wait = REFRESH_MS;
  try {
    if (first) { const topology = await chosen(); show(topology); first = false; }
    await (now.topology ? readTopology() : readOverview());
    now.readAt = Date.now();
    if (at("notice").dataset.failed) { say("notice"); delete at("notice").dataset.failed; again = true; }
    fresh();
  } catch (error) {
    say("notice", error.message);
    at("notice").dataset.failed = "yes";
    fresh();
    wait = AFTER_ERROR_MS;
  }
  going = false;
  if (again) load();
  else if (!document.hidden) timer = setTimeout(load, wait);
}

/* Shows when the data was read, and marks it if it is old. */
function fresh() {
  const old = now.readAt && Date.now() - now.readAt > STALE_MS;
  document.body.classList.toggle("stale", Boolean(old));
  at("fresh").textContent = now.readAt ? `${old ? "STALE: " : ""}read ${new Date(now.readAt).toLocaleTimeString("sv")}` : "nothing read yet";
}
setInterval(fresh, 5000);

function listen() {
  at("text").value = asked.get("find") || "";
  for (const id of ["status", "from", "to"]) at(id).addEventListener("change", () => { now.trail = []; load(); });
  let typed = null;
  at("text").addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(() => { now.trail = []; load(); }, 300); });
  at("search").addEventListener("input", () => now.all && drawOverview(now.all, at("search").value, open));
  for (const side of ["before", "after"]) at(`period-${side}`).addEventListener("click", () => { if (now.grid && now.grid[side]) { now.period = now.grid[side]; load(); } });
  at("clear").addEventListener("click", () => { now.partition = ""; for (const id of ["status", "text", "from", "to"]) at(id).value = ""; now.trail = []; load(); });
  at("older").addEventListener("click", () => { if (now.data && now.data.more !== null) { now.trail.push(now.data.more); load(); } });
  at("newer").addEventListener("click", () => { now.trail.pop(); load(); });
  at("back").addEventListener("click", event => { event.preventDefault(); open(""); });
  for (const head of document.querySelectorAll("th button")) head.addEventListener("click", () => {
    const by = head.dataset.by;
    now.sort = {by, down: now.sort.by === by ? !now.sort.down : true};
    for (const one of document.querySelectorAll("th button")) one.closest("th").setAttribute("aria-sort", one === head ? now.sort.down ? "descending" : "ascending" : "none");
    if (by === "txid") { now.oldestFirst = !now.sort.down; now.trail = []; }
    if (now.data) drawTopology(now.data, shown());
    load();
  });
  addEventListener("popstate", () => { const topology = new URLSearchParams(location.search).get("topology") || ""; now.opened = null; now.partition = ""; show(topology); load(); });
  /* No requests while the page is hidden, and one at once when it is visible again. */
  document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
}

at("key").replaceChildren(...Object.entries(PHASES).map(([status, words]) => {
  const square = make("i", {});
  square.style.background = `var(--${status})`;
  return make("span", {}, square, words);
}));
theme();
try { new parent.MutationObserver(theme).observe(parent.document.documentElement, {attributeFilter: ["class"]}); } catch (e) { /* alone */ }
prepare();
prepareGrid();
listen();
load();
