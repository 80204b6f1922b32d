import {at, badge, count, make, rate, sourceLag, span, throughput} from "./dom.js";

/* All topologies: which one is stuck, and why. Those that need a person come first. */
const WORST = ["blocked", "behind", "paused", "running", "idle", "cannot be read"];

/* [state, why]: the state is one of WORST. */
export function judged(one) {
  if (one.problem) return ["cannot be read", one.problem];
  const failed = one.failed.filter(txid => txid > one.committed);
  if (failed.length) return ["blocked", `transaction ${Math.min(...failed)} is FAILED${one.lowest && one.lowest.error ? `: ${one.lowest.error.split("\n")[0]}` : ""}`];
  const last = one.coordinator;
  if (last && last.kind === "error") return ["blocked", `the coordinator failed${last.error ? `: ${last.error.split("\n")[0]}` : ""}`];
  if (last && last.is_bad) return ["blocked", `the coordinator is ${last.kind}`];
  if (one.command !== "run") return ["paused", `the command is "${one.command}"`];
  if (one.idle) return ["blocked", one.idle];
  if (one.lowest && one.lowest.abandoned) return ["blocked", `no worker for transaction ${one.lowest.txid}, which is ${one.lowest.status}${one.lowest.why ? `: ${one.lowest.why}` : ""}`];
  if (one.lowest && one.lowest.attempt > 0) return ["behind", `transaction ${one.lowest.txid} is at attempt ${one.lowest.attempt + 1}`];
  if (one.pending) return ["running", `${one.lowest ? `transaction ${one.lowest.txid} is ${one.lowest.status}` : `${one.pending} under way`}`];
  return ["idle", one.begun ? "all that was begun is committed" : "nothing was begun yet"];
}

export const COLOURS = {"blocked": "FAILED", behind: "COMMITTING", paused: "COMMITTING", running: "PROCESSING", idle: "COMMITTED", "cannot be read": "FAILED"};
const rank = one => { const place = WORST.indexOf(judged(one)[0]); return place === 5 ? -1 : place; };

export function drawOverview(all, wanted, open) {
  const text = wanted.toLowerCase();
  const shown = all.filter(one => one.name.toLowerCase().includes(text) || judged(one).join(" ").toLowerCase().includes(text))
    .sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  const now = Date.now();
  const rows = shown.map(one => {
    const [state, why] = judged(one);
    const link = make("a", {href: `?topology=${encodeURIComponent(one.name)}`, textContent: one.name});
    link.addEventListener("click", event => { event.preventDefault(); open(one.name); });
    const mark = badge(state);
    mark.style.background = `var(--${COLOURS[state]})`;
    if (one.problem) return make("tr", {}, make("td", {}, link), make("td", {}, mark), make("td", {className: "why error", colSpan: 8, textContent: why}));
    const last = one.coordinator;
    const cells = [
      ["", link], ["", mark], ["why", why],
      ["number", one.lowest ? span(now - one.lowest.times_ms.begun) : "none"], ["", sourceLag(last)],
      ["", last ? `${last.kind}${last.time_ms ? `, ${span(now - last.time_ms)} ago` : ""}` : "–"],
      ["number", count(one.committed)], ["number", count(one.pending)], ["number", count(one.failed.length)],
      ["number", rate(throughput(one.history))],
    ];
    const names = ["Topology", "State", "Why", "Lag of commits", "Lag of sources", "Coordinator", "Committed", "Pending", "Failed", "Throughput"];
    return make("tr", {}, cells.map(([kind, content], place) => {
      const cell = make("td", {className: kind}, content);
      cell.dataset.label = names[place];
      return cell;
    }));
  });
  const said = JSON.stringify(rows.map(one => one.textContent));
  if (at("overview-rows").dataset.said !== said && !at("overview-rows").contains(document.activeElement)) {
    at("overview-rows").replaceChildren(...rows);
    at("overview-rows").dataset.said = said;
  }
  const stuck = all.filter(one => rank(one) <= 0).length;
  at("overview-count").textContent = `${count(all.length)} ${all.length === 1 ? "topology" : "topologies"}, ${count(stuck)} blocked`;
  at("overview").hidden = !all.length;
}
