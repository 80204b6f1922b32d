import {badge, at, count, make, moment, phaseMs, phases, PHASES, runLink, size, span} from "./dom.js";
import {button} from "./actions.js";

const held = tx => ["blocked", "waiting"].includes(tx.diagnosis.state);

/* `invalidated`: with an opaque spout a transaction loses its batch when a lower one is attempted again. */
function statusOf(tx) {
  const cell = make("span", {}, badge(tx.status));
  if (tx.invalidated) cell.append(" (invalidated)");
  if (tx.late) cell.append(" (late)");
  if (held(tx)) cell.append(make("div", {className: "faint", textContent: tx.diagnosis.why}));
  if (tx.error) cell.append(make("div", {className: "error brief", textContent: tx.error.split("\n")[0]}));
  return cell;
}

const partitionOf = tx => tx.partition ? `${tx.partition.key}${tx.partition.n > 1 ? ` #${tx.partition.n}` : ""}` : "";

/* The partition of a transaction: which of its revisions it is, and what has replaced it. `last`: of the partition now. */
function revision(tx, last) {
  if (!tx.partition) return "";
  const of = `${tx.partition.key}, revision ${tx.partition.n}${last ? ` of ${last.n}` : ""}`;
  if (!last || last.txid <= tx.txid) return of;
  return `${of}; ${last.committed_txid > tx.txid ? `replaced by transaction ${last.committed_txid}` : `transaction ${last.txid} has the partition now`}`;
}

/* The phases of a transaction one after the other. `longest` milliseconds are the whole width. */
function bar(tx, longest) {
  const made = make("div", {className: "time"}), all = phases(tx), begun = all.length ? all[0][1] : 0;
  for (const [status, from, to] of all) {
    const part = make("i", {title: `${PHASES[status]}: ${span(to - from)}`}), place = ms => Math.min(ms - begun, longest) / longest * 100;
    part.style.left = `min(${place(from)}%, 100% - 2px)`;
    part.style.width = `${place(to) - place(from)}%`;
    part.style.background = `var(--${status})`;
    made.append(part);
  }
  return made;
}

const link = tx => tx.dag_id
  ? runLink(tx.dag_id, tx.run_id, tx.run_id + (tx.map_index >= 0 ? ` [${tx.map_index}]` : ""))
  : make("span", {className: "faint", textContent: tx.visible ? "" : "of a DAG that you may not see"});

/* The run, and below it what the batch has: its files or days. */
const batch = tx => {
  const words = Object.values(tx.batch).join("; ");
  return make("span", {}, link(tx), words ? make("div", {className: "faint brief", textContent: words}) : "");
};

const MOVING = ["PROCESSING", "PROCESSED", "COMMITTING"];
const NAMES = ["Txid", "Status", "Partition", "Run", "Attempts", "Rows read", "Rows staged", "Size", "Begun", "Processing", "Waiting", "Commit", "Phases"];

/* The cells of a row. `tick` updates the cells that change with the clock. */
function row(tx, shown) {
  const opened = shown.opened === tx.txid;
  const opener = make("button", {type: "button", className: "txid", textContent: String(tx.txid), "aria-expanded": String(opened), "aria-label": `Transaction ${tx.txid}, details`});
  const cell = (content, classes) => make("td", {className: classes || ""}, content);
  const moving = {bar: cell("")};
  for (const status of MOVING) moving[status] = cell("", "number");
  const cells = [
    cell(opener, "number"), cell(statusOf(tx), "status"), cell(partitionOf(tx)), cell(batch(tx), "run"),
    cell(tx.attempt === null ? "0" : count(tx.attempt + 1), "number"), cell(count(tx.rows_read), "number"),
    cell(count(tx.rows_staged), "number"), cell(size(tx.bytes), "number spare"), cell(moment(tx.times_ms.begun), "spare"),
    ...MOVING.map(status => moving[status]), moving.bar,
  ];
  cells.forEach((one, place) => { one.dataset.label = NAMES[place]; });
  if (!shown.data.partitions) cells.splice(2, 1);
  const made = make("tr", {className: `row${shown.asked(tx) ? " asked" : ""}${opened ? " open" : ""}`}, cells);
  made.addEventListener("click", event => { if (!event.target.closest("a") && getSelection().isCollapsed) shown.toggle(tx.txid); });
  const rows = [made];
  if (opened) rows.push(make("tr", {className: "open"}, make("td", {className: "wide", colSpan: cells.length}, inside(tx, shown))));
  return {rows, moving, opener};
}

function inside(tx, shown) {
  const list = make("dl", {}), details = shown.details && shown.details.txid === tx.txid ? shown.details : null;
  const put = (name, value) => value && list.append(make("dt", {textContent: name}), make("dd", {}, value));
  put("Partition", revision(tx, details && details.partition_now));
  put("Batch", Object.entries(tx.batch).map(([stream, words]) => `${stream}: ${words}`).join("; ") || tx.streams.join(", "));
  put("Rows by state", Object.entries(tx.rows).map(([name, n]) => `${name}: ${count(n)}`).join(", "));
  put("Size", tx.bytes === null ? "" : size(tx.bytes));
  put("Too late for all their windows, or without a time", Object.entries(tx.late_rows).map(([name, n]) => `${name}: ${count(n)}`).join(", "));
  if (held(tx)) put("Why it is not committed", (details || tx).diagnosis.text);
  put("Plan", tx.plan && `${tx.plan}${tx.plan_changed ? ": it changed with this transaction" : ""}`);
  put("Code of transforms", details && details.code);
  put("Last written by", tx.owner);
  for (const [name, ms] of Object.entries(tx.times_ms).sort((a, b) => a[1] - b[1])) put(name, moment(ms));
  if (details && details.attempts && details.attempts.length) put("Attempts that failed", attempts(details.attempts));
  if (details && details.metadata_text) put("Metadata", make("pre", {textContent: details.metadata_text, tabIndex: 0}));
  const acts = shown.mayAct ? tx.diagnosis.actions.map(action => button(action, shown.data, tx, shown.reload)) : [];
  return [acts.length ? make("div", {className: "acts"}, acts) : null, tx.error ? make("p", {className: "error", textContent: tx.error}) : null, list];
}

/* The attempts that did not reach COMMITTED. An attempt without an end was killed or given up. */
const PAST = ["Attempt", "Begun", "Took", "By", "How it ended"];
const attempts = all => make("table", {className: "attempts"},
  make("thead", {}, make("tr", {}, PAST.map(name => make("th", {textContent: name, scope: "col"})))),
  make("tbody", {}, [...all].reverse().map(one => make("tr", {}, [
    String(one.attempt + 1), moment(one.begun_ms), one.ended_ms ? span(one.ended_ms - one.begun_ms) : "–", one.by,
    one.ended_ms ? one.error || "failed" : "killed, or given up for the next one",
  ].map((text, place) => { const cell = make("td", {textContent: text, className: place === 4 ? "error" : ""}); cell.dataset.label = PAST[place]; return cell; })))));

function tick(drawn, tx, longest) {
  for (const status of MOVING) {
    const text = span(phaseMs(tx, status));
    if (drawn.moving[status].textContent !== text) drawn.moving[status].textContent = text;
  }
  drawn.moving.bar.replaceChildren(bar(tx, longest));
}

const reachable = row_ => [...row_.querySelectorAll("button, a, pre")];
const nameOf = one => one.tagName + (one.getAttribute("aria-label") || one.href || "");

/* Only rows that changed are made again, except those in which text is selected: focus, scroll and selection stay. */
const drawn = new Map();
export function forget() { drawn.clear(); at("rows").replaceChildren(); }
export function drawRows(all, shown, longest) {
  const body = at("rows"), selection = getSelection(), held = document.activeElement;
  for (const txid of [...drawn.keys()]) if (!all.some(tx => tx.txid === txid)) drawn.delete(txid);
  const wanted = [];
  for (const tx of all) {
    const known = drawn.get(tx.txid), mark = JSON.stringify([tx, shown.mayAct, shown.opened === tx.txid && [shown.details]]);
    const selecting = known && !selection.isCollapsed && known.rows.some(one => selection.containsNode(one, true));
    if (!known || (known.mark !== mark && !selecting)) {
      const made = {...row(tx, shown), mark};
      const scrolled = known && known.rows[1] && known.rows[1].querySelector("pre");
      drawn.set(tx.txid, made);
      if (known) {
        known.rows[0].before(...made.rows);
        const pre = made.rows[1] && made.rows[1].querySelector("pre");
        if (pre && scrolled) pre.scrollTop = scrolled.scrollTop;
        if (known.rows.some(one => one.contains(held))) {
          const again = made.rows.flatMap(reachable).find(one => nameOf(one) === nameOf(held)) || made.opener;
          again.focus({preventScroll: true});
        }
      }
    }
    tick(drawn.get(tx.txid), tx, longest);
    wanted.push(...drawn.get(tx.txid).rows);
  }
  const kept = new Set(wanted);
  for (const one of [...body.children]) if (!kept.has(one)) one.remove();
  wanted.forEach((one, index) => { if (body.children[index] !== one) body.insertBefore(one, body.children[index] || null); });
}
