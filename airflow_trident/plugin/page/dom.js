/* Elements and words. Elements are made, never parsed from text, so no text in the ledger becomes markup. */
export const at = id => document.getElementById(id);

export function make(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {}))
    if (key.startsWith("aria-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  made.append(...children.flat().filter(child => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
export function draw(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const badge = status => {
  const made = make("span", {className: "badge", textContent: status});
  made.style.background = `var(--${status}, var(--SKIPPED))`;
  return made;
};

export const count = n => n === null || n === undefined || n < 0 ? "–" : n.toLocaleString("en");

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (bytes >= 1024 && power < units.length - 1) { bytes /= 1024; power += 1; }
  return `${power ? bytes.toFixed(1) : bytes} ${units[power]}`;
}

export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms) || ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

export const moment = ms => ms ? new Date(ms).toLocaleString("sv") : "–";

export const lagText = lag => Object.entries(lag).map(([stream, units]) =>
  `${stream}: ${Object.entries(units).map(([unit, n]) => unit === "bytes" ? size(n) : `${count(n)} ${unit}`).join(", ")}`).join("; ");

/* The lag of the sources, from the coordinator's last outcome. */
export const sourceLag = one => !one ? "not known" : one.kind === "nothing new" ? "none" : one.lag_ms ? lagText(one.lag) || "not told" : "not known";

const ORDER = ["PROCESSING", "PROCESSED", "COMMITTING"];
export const PHASES = {PROCESSING: "processing", PROCESSED: "waiting for its turn", COMMITTING: "committing"};

/* [status, from, to] of each phase that the current attempt has reached; the last phase may still go on. */
export function phases(tx) {
  const t = tx.times_ms, stops = [t.COMMITTED, t.FAILED, t.SKIPPED, t.CLOSED];
  const found = [];
  ORDER.forEach((status, index) => {
    if (!(status in t)) return;
    if (found.length && t[status] < found[found.length - 1][1]) return;
    const later = [...ORDER.slice(index + 1).map(one => t[one]), ...stops].filter(one => one >= t[status]);
    const going = tx.status === status;
    found.push([status, t[status], going ? Date.now() : later.length ? Math.min(...later) : t[status]]);
  });
  return found;
}

export const phaseMs = (tx, status) => { const one = phases(tx).find(p => p[0] === status); return one ? one[2] - one[1] : null; };

/* Rows read per second, over the time between the first commit and the last. */
export function throughput(history) {
  const done = history.filter(one => one.times_ms.COMMITTED && one.rows_read !== null && one.rows_read >= 0);
  if (done.length < 2) return null;
  const times = done.map(one => one.times_ms.COMMITTED), spent = (Math.max(...times) - Math.min(...times)) / 1000;
  const first = Math.min(...times), rows = done.filter(one => one.times_ms.COMMITTED > first).reduce((sum, one) => sum + one.rows_read, 0);
  return spent > 0 ? rows / spent : null;
}
export const rate = perS => perS === null ? "–" : `${perS >= 10 ? count(Math.round(perS)) : perS.toFixed(2)} rows/s`;

/* Changes the element only if the texts changed: a screen reader reads changes out, and a person may select text. */
export function say(id, ...texts) {
  const lines = texts.filter(text => text), said = JSON.stringify(lines);
  at(id).hidden = !lines.length;
  if (at(id).dataset.said === said) return;
  at(id).dataset.said = said;
  at(id).replaceChildren(...lines.map(text => make("p", {textContent: text})));
}

export const tile = (value, label, bad) =>
  make("div", {className: `tile${bad ? " bad" : ""}${value.length > 14 ? " long" : ""}`}, make("b", {textContent: value}), make("span", {textContent: label}));

/* A link into Airflow. Inside Airflow's frame the outer page's router follows it; without a frame it is a plain link. */
export function outer(path, text) {
  const url = location.pathname.replace(/\/trident\/.*$/, "") + path;
  const link = make("a", {href: url, textContent: text});
  link.addEventListener("click", event => {
    event.stopPropagation();
    if (parent === window) return;
    event.preventDefault();
    parent.history.pushState({}, "", url);
    parent.dispatchEvent(new PopStateEvent("popstate"));
  });
  return link;
}
export const runLink = (dagId, runId, text) => outer(`/dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}`, text || runId);
