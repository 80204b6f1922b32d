import {at, badge, count, make, phaseMs, phases, runLink, say, sourceLag, span, rate, throughput, tile} from "./dom.js";
import {button} from "./actions.js";
import {charts} from "./charts.js";
import {COLOURS} from "./overview.js";
import {planPicture, planSummary} from "./plan.js";
import {drawRows} from "./rows.js";

/* The coordinator's last outcome: it shows when a topology that looks healthy is blocked. */
function coordinatorTiles(data, now) {
  const one = data.coordinator;
  if (!one) return [tile("–", "coordinator: nothing said yet")];
  const when = one.time_ms ? `, ${span(now - one.time_ms)} ago` : "";
  return [tile(one.kind, `coordinator${when}`, one.is_bad), tile(sourceLag(one), "lag of the sources: not yet claimed")];
}

/* The open transactions with their statuses, lowest first. */
function pipeline(data) {
  return data.open.slice(0, 40).map(tx => {
    const made = make("span", {className: "step", title: tx.diagnosis.why}, `${tx.txid} `, badge(tx.status));
    return make("li", {}, made);
  });
}

const unchanged = (node, mark, make_) => { if (node.dataset.mark === mark) return; node.dataset.mark = mark; node.replaceChildren(...make_()); };

export function drawTopology(data, shown) {
  const now = Date.now(), all = data.transactions;
  for (const tx of all) tx.late = data.late.includes(tx.txid);
  const planned = all.filter(tx => tx.plan).sort((a, b) => a.txid - b.txid);
  planned.forEach((tx, place) => { tx.plan_changed = place > 0 && planned[place - 1].plan !== tx.plan; });
  const oldest = Math.min(...data.open.filter(tx => tx.txid > data.committed).map(tx => tx.times_ms.begun || now));
  const lag = Number.isFinite(oldest) ? span(now - oldest) : "none";
  at("tiles").replaceChildren(
    ...coordinatorTiles(data, now),
    tile(count(data.committed), "committed up to"), tile(count(data.begun), "begun"), tile(count(data.pending), "pending"),
    tile(lag, "lag of commits: oldest uncommitted"), tile(rate(throughput(data.history)), "throughput"),
    tile(count(data.failed.length), "failed", data.failed.length), tile(count(data.skipped.count), "skipped"),
    ...(data.replaying.length + data.late.length ? [tile(count(data.replaying.length + data.late.length), "being replayed")] : []),
  );
  at("workers").textContent = data.workers.map(one =>
    `${one.host ? `${one.host}/${one.pid}` : "a worker"}${one.txid ? `: transaction ${one.txid}` : ""}` +
    `${one.task ? ` (${one.task})` : ""}`).join(" · ");
  at("workers-line").hidden = !data.workers.length;
  const {state, actions} = data.diagnosis;
  at("command").textContent = data.command === "run" || state === "paused" ? state : `${state}, ${data.command}`;
  at("command").style.background = `var(--${COLOURS[state]})`;
  unchanged(at("acts"), JSON.stringify([data.may_act, actions, data.epoch, data.incarnation, data.red_runs]), () =>
    data.may_act ? actions.map(action => button(action, data, null, shown.reload)) : []);
  unchanged(at("pipeline"), JSON.stringify(data.open.map(tx => [tx.txid, tx.status, tx.diagnosis.why])), () => pipeline(data));
  at("pipeline-line").hidden = !data.open.length;
  unchanged(at("charts"), JSON.stringify(data.history), () => charts(data.history));
  at("charts-part").hidden = data.history.length < 2;
  unchanged(at("plan"), JSON.stringify(data.plan), () => planPicture(data.plan));
  at("plan-part").hidden = !data.plan;
  at("plan-summary").textContent = planSummary(data.plan);
  unchanged(at("about"), JSON.stringify([data.streams, data.states, data.incarnation]), () => [
    ...Object.entries(data.streams).flatMap(([name, text]) => [make("dt", {textContent: `stream ${name}`}), make("dd", {textContent: text})]),
    ...Object.entries(data.states).flatMap(([name, text]) => [make("dt", {textContent: `state ${name}`}), make("dd", {textContent: text})]),
    make("dt", {textContent: "life of the ledger"}), make("dd", {textContent: data.incarnation}),
  ]);
  unchanged(at("mending"), JSON.stringify(data.mending), () => mending(data));
  at("mending-part").hidden = !data.mending.length;
  unchanged(at("named"), JSON.stringify(data.named_workers), () => data.named_workers.map(namedWorker));
  at("named-part").hidden = !data.named_workers.length;
  say("notice", ...data.troubles.map(one => `Topology ${data.name} is ${one.state}: ${one.text}`));
  const red = data.red_runs.length;
  say("hint", ...data.notes, red ? `${red === 1 ? `Run ${data.red_runs[0].run_id} is` : `${red} runs are`} red in Airflow although what ${red === 1 ? "it" : "they"} began is committed.` : "", data.visible ? "" : "What this topology reads and writes belongs to DAGs that you may not see.");
  drawList(data, shown, sorted(all, shown.sort));
}

const NAMED = ["Worker", "Status", "Epoch", "Told", "Where", "Error"];
const namedWorker = one => make("tr", {}, [one.worker, one.status, one.epoch === null ? "–" : String(one.epoch), one.told || "–",
  one.host ? `${one.host}/${one.pid}${one.task ? `, ${one.task}` : ""}` : "–", one.error || ""].map((text, place) => {
  const cell = make("td", {textContent: text, className: place === 2 ? "number" : place === 5 ? "error why" : ""});
  cell.dataset.label = NAMED[place];
  return cell;
}));

const mending = data => data.mending.map(run => make("li", {},
  `${run.action}${run.txid ? ` of transaction ${run.txid}` : run.partitions ? ` of ${run.partitions}` : ""}${run.by ? ` by ${run.by}` : ""}${run.reason ? ` (${run.reason})` : ""}: `, runLink(run.dag_id, run.run_id, run.state),
  run.said.map(line => make("div", {className: "said", textContent: line}))));

const KEYS = {
  txid: tx => tx.txid, status: tx => tx.status, attempts: tx => tx.attempt ?? -1, read: tx => tx.rows_read ?? -1, staged: tx => tx.rows_staged ?? -1,
  partition: tx => tx.partition ? tx.partition.key : "", size: tx => tx.bytes ?? -1, begun: tx => tx.times_ms.begun || 0, PROCESSING: tx => phaseMs(tx, "PROCESSING") ?? -1,
  PROCESSED: tx => phaseMs(tx, "PROCESSED") ?? -1, COMMITTING: tx => phaseMs(tx, "COMMITTING") ?? -1, run: tx => tx.run_id,
};

/* The server sorts all transactions by txid; by any other column the page sorts the rows that it shows. */
function sorted(all, sort) {
  if (!sort || sort.by === "txid") return all;
  const key = KEYS[sort.by], sign = sort.down ? -1 : 1;
  return [...all].sort((a, b) => sign * (typeof key(a) === "string" ? key(a).localeCompare(key(b)) : key(a) - key(b)) || b.txid - a.txid);
}

function drawList(data, shown, all) {
  /* Bars of running transactions may leave the cell: otherwise one that hangs would make all other bars tiny. */
  const ended = all.filter(tx => !["PROCESSING", "PROCESSED", "COMMITTING"].includes(tx.status)).map(phases).filter(one => one.length);
  const longest = Math.max(1, ...ended.map(one => one[one.length - 1][2] - one[0][1]));
  for (const head of document.querySelectorAll("th.bound")) head.hidden = !data.partitions;
  drawRows(all, {...shown, data, mayAct: data.may_act}, longest);
  at("list").hidden = at("key").hidden = !all.length;
  const filtered = shown.filtered(), found = data.found === null ? "" : `${count(data.found)} ${filtered ? "found" : "kept"}; `;
  at("range-shown").textContent = all.length ? `${found}${count(all[0].txid)} to ${count(all[all.length - 1].txid)} shown` : "";
  at("older").disabled = data.more === null;
  at("newer").disabled = !shown.paged();
  at("empty").hidden = all.length > 0;
  at("empty").textContent = data.more !== null ? "Nothing found so far: look further back." : filtered ? "No transaction fits." : "No transaction was begun yet.";
}
