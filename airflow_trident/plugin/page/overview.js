import {at, badge, count, make, rate, sourceLag, span, throughput} from "./dom.js";

/* All topologies: which one is blocked, and why. The server gives the state of each, the worst first. */
export const COLOURS = {blocked: "FAILED", behind: "COMMITTING", paused: "COMMITTING", waiting: "COMMITTING", running: "PROCESSING", idle: "COMMITTED", unreadable: "FAILED"};
const causeOf = ({why, detail}) => detail ? `${why}: ${detail}` : why;

export function drawOverview(all, wanted, open) {
  const text = wanted.toLowerCase();
  const shown = all.filter(one => `${one.name} ${one.diagnosis.state} ${causeOf(one.diagnosis)}`.toLowerCase().includes(text));
  const now = Date.now();
  const rows = shown.map(one => {
    const {state} = one.diagnosis, why = causeOf(one.diagnosis);
    const link = make("a", {href: `?topology=${encodeURIComponent(one.name)}`, textContent: one.name});
    link.addEventListener("click", event => { event.preventDefault(); open(one.name); });
    const mark = badge(state);
    mark.style.background = `var(--${COLOURS[state]})`;
    if (state === "unreadable") return make("tr", {}, make("td", {}, link), make("td", {}, mark), make("td", {className: "why error", colSpan: 8, textContent: why}));
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
  const stuck = all.filter(one => ["unreadable", "blocked"].includes(one.diagnosis.state)).length;
  at("overview-count").textContent = `${count(all.length)} ${all.length === 1 ? "topology" : "topologies"}, ${count(stuck)} blocked`;
  at("overview").hidden = !all.length;
}
