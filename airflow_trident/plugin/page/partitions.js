import {at, count, make, moment} from "./dom.js";
import {button} from "./actions.js";

/* The partitions of a bound topology: days as a calendar of a month, hours as a row for each day, weeks and months of a year
   as a list. */
const STATUSES = ["COMMITTED", "PROCESSING", "PROCESSED", "COMMITTING", "FAILED", "SKIPPED", "MISSING", "OPEN"];
const WORDS = {PROCESSING: "running", PROCESSED: "waiting for its turn", COMMITTING: "committing", OPEN: "not complete yet"};
const wordOf = status => WORDS[status] || status.toLowerCase();
const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const SHAPES = {day: calendar, hour: clock, week: list, month: list};
const ACROSS = {day: 7, hour: 24, week: 1, month: 1};
const nameOf = {day: key => String(Number(key.slice(8))), hour: key => key.slice(11, 13), week: key => key, month: key => key};

/* In words, for the tooltip and a screen reader. */
function about(cell) {
  const since = cell.status === "MISSING" ? ` since ${moment(cell.complete_ms)}` : cell.status === "OPEN" ? `, complete at ${moment(cell.complete_ms)}` : "";
  return [`${cell.key}: ${wordOf(cell.status)}${since}`, cell.n > 0 ? `revision ${cell.n}` : "", cell.rows === null ? "" : `${count(cell.rows)} rows`,
    cell.committed_ms ? `committed ${moment(cell.committed_ms)}` : ""].filter(text => text).join(", ");
}

function square(cell, shown) {
  const chosen = shown.partition === cell.key, name = nameOf[shown.step](cell.key);
  const made = make("button", {type: "button", className: `cell ${cell.status}`, title: about(cell), "aria-label": about(cell), "aria-pressed": String(chosen)},
    make("b", {textContent: name}), cell.n > 1 ? make("span", {className: "again", textContent: `#${cell.n}`}) : null,
    shown.step === "hour" ? null : make("span", {className: "rows", textContent: cell.rows === null ? "" : count(cell.rows)}));
  made.dataset.key = cell.key;
  made.addEventListener("click", () => shown.choose(cell));
  return make("td", {}, made);
}

const table = (name, heads, rows, kind) => make("table", {className: `partitions ${kind}`, "aria-label": name},
  heads.length ? make("thead", {}, make("tr", {}, heads.map(text => make("th", {scope: "col", textContent: text})))) : null, make("tbody", {}, rows));
const filled = (cells, length) => [...cells, ...Array.from({length: Math.max(0, length - cells.length)}, () => make("td", {}))];

function calendar(data, shown) {
  const weekday = key => (new Date(`${key}T00:00:00Z`).getUTCDay() + 6) % 7, weeks = [];
  for (const cell of data.cells) {
    const place = weekday(cell.key);
    if (!weeks.length || place === 0) weeks.push(Array.from({length: weeks.length ? 0 : place}, () => make("td", {})));
    const week = weeks[weeks.length - 1];
    while (week.length < place) week.push(make("td", {}));
    week.push(square(cell, shown));
  }
  return table("Days", WEEKDAYS, weeks.map(week => make("tr", {}, filled(week, 7))), "days");
}

function clock(data, shown) {
  const days = new Map();
  for (const cell of data.cells) {
    const day = cell.key.slice(0, 10), hours = days.get(day) || days.set(day, []).get(day);
    while (hours.length < Number(cell.key.slice(11, 13))) hours.push(make("td", {}));
    hours.push(square(cell, shown));
  }
  return table("Hours", [], [...days].map(([day, hours]) => make("tr", {}, make("th", {scope: "row", textContent: day}), filled(hours, 24))), "hours");
}

function list(data, shown) {
  const rows = data.cells.map(cell => make("tr", {}, square(cell, shown), make("td", {textContent: wordOf(cell.status)}),
    make("td", {textContent: cell.committed_ms ? moment(cell.committed_ms) : ""})));
  return table("Partitions", [], rows, "list");
}

/* Draws the grid again only if it has changed, and keeps the focus on its partition. One cell is in the order of the Tab key;
   the arrow keys lead to the others. */
export function drawPartitions(data, shown) {
  at("partitions-part").hidden = !data;
  if (!data) return;
  const view = {...shown, step: data.step}, held = document.activeElement && document.activeElement.dataset.key;
  at("partitions-title").textContent = `Partitions: ${data.step}s of ${data.timezone}, from ${data.begin}`;
  at("period").textContent = data.period;
  at("period-before").disabled = !data.before;
  at("period-after").disabled = !data.after;
  at("partitions-count").textContent = STATUSES.map(status => [data.cells.filter(cell => cell.status === status).length, status])
    .filter(([n]) => n).map(([n, status]) => `${count(n)} ${wordOf(status)}`).join(", ");
  const chosen = data.cells.find(cell => cell.key === shown.partition);
  const mark = JSON.stringify([data, shown.partition, shown.data.may_act, shown.data.incarnation]);
  if (at("partitions").dataset.mark === mark) return;
  at("partitions").dataset.mark = mark;
  at("partitions").dataset.step = data.step;
  at("partitions").replaceChildren(SHAPES[data.step](data, view));
  const cells = [...document.querySelectorAll("button.cell")];
  const entry = cells.find(cell => cell.dataset.key === (held || shown.partition)) || cells[cells.length - 1];
  for (const cell of cells) cell.tabIndex = cell === entry ? 0 : -1;
  if (held && entry) entry.focus({preventScroll: true});
  at("partitions-acts").replaceChildren(...(shown.data.may_act ? [button("redo", shown.data, null, shown.reload)] : []));
  at("partition").hidden = !chosen;
  at("partition").replaceChildren(...(chosen ? panel(chosen, shown) : []));
}

function panel(cell, shown) {
  const list = make("dl", {});
  const put = (name, value) => value && list.append(make("dt", {textContent: name}), make("dd", {}, value));
  put("Status", wordOf(cell.status));
  put("From", `${moment(cell.start_ms)} to ${moment(cell.end_ms)}`);
  put(cell.status === "MISSING" ? "Missing since" : "Complete at", moment(cell.complete_ms));
  put("Revision", cell.n ? String(cell.n) : "");
  put("Rows", cell.rows === null ? "" : count(cell.rows));
  put("In the states", cell.committed_txid ? `transaction ${cell.committed_txid}${cell.committed_ms ? `, committed ${moment(cell.committed_ms)}` : ""}` : "nothing");
  const all = make("button", {type: "button", textContent: "Show all transactions"});
  all.addEventListener("click", () => shown.choose(null));
  const acts = shown.data.may_act && cell.status !== "OPEN" ? [button("redo", shown.data, cell, shown.reload)] : [];
  return [make("h2", {textContent: `Partition ${cell.key}`}), list, make("div", {className: "acts"}, ...acts, all)];
}

/* Arrow keys, Home and End go from partition to partition. */
export function prepareGrid() {
  at("partitions").addEventListener("keydown", event => {
    const cells = [...document.querySelectorAll("button.cell")], place = cells.indexOf(event.target.closest("button.cell"));
    const across = ACROSS[at("partitions").dataset.step];
    const to = {ArrowLeft: place - 1, ArrowRight: place + 1, ArrowUp: place - across, ArrowDown: place + across, Home: 0, End: cells.length - 1}[event.key];
    if (place < 0 || to === undefined) return;
    event.preventDefault();
    const next = cells[Math.max(0, Math.min(cells.length - 1, to))];
    for (const cell of cells) cell.tabIndex = cell === next ? 0 : -1;
    next.focus();
  });
}
