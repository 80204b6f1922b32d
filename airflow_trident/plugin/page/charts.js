import {draw, make, moment, phaseMs, size, span} from "./dom.js";

/* Small charts with axes, over the latest committed transactions: one bar for each, the oldest at the left. */
const WIDTH = 420, HEIGHT = 150, LEFT = 64, BOTTOM = 22, TOP = 8;

/* The upper end of an axis: a round number in the unit that a person reads. */
function decimal(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map(step => step * power).find(step => step >= value);
}
function binary(value) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return decimal(value / unit) * unit;
}
const STEPS_S = [0.2, 1, 2, 4, 10, 20, 40, 60, 120, 240, 600, 1200, 2400, 3600, 7200, 14400, 43200, 86400];
const clock = ms => (STEPS_S.find(step => step * 1000 >= ms) || decimal(ms / 86400000) * 86400) * 1000;
const axis = (ms => ms < 1000 ? `${ms} ms` : ms < 60000 ? `${ms / 1000} s` : ms < 3600000 ? `${ms / 60000} min` : `${ms / 3600000} h`);

/* `parts`: [[colour, function from a transaction to its value], ...], stacked; `words` gives a value as text. */
function chart(title, history, parts, words, ceiling, ticks = words) {
  const totals = history.map(tx => parts.reduce((sum, [, value]) => sum + (value(tx) || 0), 0));
  const top = ceiling(Math.max(0, ...totals)), inner = HEIGHT - BOTTOM - TOP, step = (WIDTH - LEFT - 4) / Math.max(1, history.length);
  const y = value => TOP + inner - value / top * inner;
  const lines = [0, 0.5, 1].flatMap(share => [
    draw("line", {x1: LEFT, x2: WIDTH, y1: y(top * share), y2: y(top * share), class: "grid"}),
    draw("text", {x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end"}, ticks(top * share)),
  ]);
  const bars = history.flatMap((tx, place) => {
    let below = 0;
    return parts.map(([colour, value, name]) => {
      const part = value(tx) || 0, from = y(below + part), bar = draw("rect", {
        x: LEFT + place * step, width: Math.max(1, step - 1), y: from, height: Math.max(0, y(below) - from), fill: colour,
      }, draw("title", {}, `transaction ${tx.txid}${name ? `, ${name}` : ""}: ${words(part)}, ${moment(tx.times_ms.COMMITTED)}`));
      below += part;
      return bar;
    });
  });
  const ends = history.length ? [
    draw("text", {x: LEFT, y: HEIGHT - 6}, String(history[0].txid)),
    draw("text", {x: WIDTH - 2, y: HEIGHT - 6, "text-anchor": "end"}, String(history[history.length - 1].txid)),
    draw("text", {x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle"}, "transaction"),
  ] : [];
  const most = history.length ? Math.max(...totals) : 0;
  const picture = draw("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `${title}: ${history.length} transactions, at most ${words(most)}, the last ${words(totals[totals.length - 1] || 0)}`,
  }, ...lines, ...bars, ...ends);
  return make("figure", {}, make("figcaption", {textContent: title}), picture);
}

const short = n => n >= 1e6 ? `${+(n / 1e6).toFixed(1)} M` : n >= 1e3 ? `${+(n / 1e3).toFixed(1)} k` : String(+n.toFixed(1));

export function charts(history) {
  const lag = tx => tx.times_ms.COMMITTED - tx.times_ms.begun;
  const color = status => `var(--${status})`;
  return [
    chart("Rows read", history, [[color("PROCESSING"), tx => Math.max(0, tx.rows_read || 0)]], short, decimal),
    chart("Size staged", history, [[color("PROCESSED"), tx => tx.bytes || 0]], size, binary),
    chart("Duration by phase", history, ["PROCESSING", "PROCESSED", "COMMITTING"].map(status =>
      [color(status), tx => phaseMs(tx, status), status.toLowerCase()]), span, clock, axis),
    chart("Lag: begun to committed", history, [[color("COMMITTED"), lag]], span, clock, axis),
  ];
}
