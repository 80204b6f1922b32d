import {draw, make} from "./dom.js";

/* The plan from spouts to states: a column for each step; in a narrow window a row for each step. The same is also a list,
   for people who do not see the picture. */
const WIDTH = 190, HEIGHT = 56, ACROSS = 44, BESIDE = 16, PAD = 4, LETTERS = 29;
const COLOURS = {spout: "var(--PROCESSING)", operation: "var(--faint)", grouping: "var(--COMMITTING)", state: "var(--COMMITTED)"};
const KINDS = Object.keys(COLOURS);
const short = text => text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text;
const plural = (n, kind) => `${n} ${kind}${n === 1 ? "" : "s"}`;

export function planSummary(plan) {
  if (!plan) return "";
  const counted = KINDS.map(kind => [plan.boxes.filter(box => box.kind === kind).length, kind]).filter(([n]) => n);
  return `The plan: ${counted.map(([n, kind]) => plural(n, kind)).join(", ")}${plan.left_out ? `, and ${plan.left_out} more` : ""}`;
}

/* name -> [step, place among the boxes of that step]. A box comes after all of its inputs; a spout directly before its first
   reader. */
function placed(boxes) {
  const step = new Map(), steps = new Map(), filled = [];
  for (const box of boxes) step.set(box.name, Math.max(0, ...box.inputs.filter(name => step.has(name)).map(name => step.get(name) + 1)));
  for (const box of boxes.filter(one => !one.inputs.length)) {
    const readers = boxes.filter(one => one.inputs.includes(box.name)).map(one => step.get(one.name));
    step.set(box.name, readers.length ? Math.min(...readers) - 1 : 0);
  }
  for (const box of boxes) {
    const at = step.get(box.name);
    filled[at] = filled[at] || 0;
    steps.set(box.name, [at, filled[at]++]);
  }
  return {steps, along: filled.length, beside: Math.max(1, ...filled.map(n => n || 0))};
}

function picture(plan, down) {
  const {steps, along, beside} = placed(plan.boxes);
  const corner = ([step, place]) => down
    ? [PAD + place * (WIDTH + BESIDE), PAD + step * (HEIGHT + ACROSS)]
    : [PAD + step * (WIDTH + ACROSS), PAD + place * (HEIGHT + BESIDE)];
  const arrows = plan.boxes.flatMap(box => box.inputs.filter(name => steps.has(name)).map(name => {
    const [fromX, fromY] = corner(steps.get(name)), [toX, toY] = corner(steps.get(box.name));
    const [x1, y1, x2, y2] = down
      ? [fromX + WIDTH / 2, fromY + HEIGHT, toX + WIDTH / 2, toY - 6]
      : [fromX + WIDTH, fromY + HEIGHT / 2, toX - 6, toY + HEIGHT / 2];
    const bend = ACROSS / 2, curve = down
      ? `C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`
      : `C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
    const head = down ? `M${x2 - 4} ${y2}L${x2 + 4} ${y2}L${x2} ${y2 + 6}z` : `M${x2} ${y2 - 4}L${x2} ${y2 + 4}L${x2 + 6} ${y2}z`;
    return draw("g", {}, draw("path", {class: "arrow", d: `M${x1} ${y1}${curve}`}), draw("path", {class: "head", d: head}));
  }));
  const boxes = plan.boxes.map(box => {
    const [x, y] = corner(steps.get(box.name)), name = box.name.replace(/^state /, "");
    const line = (text, place, kind) => draw("text", {x: x + 10, y: y + 16 + 15 * place, class: kind}, short(text));
    return draw("g", {}, draw("title", {}, `${box.kind} ${name}${box.what ? `: ${box.what}` : ""}`),
      draw("rect", {class: "box", x, y, width: WIDTH, height: HEIGHT, rx: box.kind === "operation" ? 4 : 14, stroke: COLOURS[box.kind]}),
      line(name, 0, "name"), line(box.kind, 1, ""), line(box.what, 2, ""));
  });
  const [width, height] = down
    ? [beside * (WIDTH + BESIDE), along * (HEIGHT + ACROSS)] : [along * (WIDTH + ACROSS), beside * (HEIGHT + BESIDE)];
  return draw("svg", {
    width: width + 2 * PAD, height: height + 2 * PAD, role: "img", "aria-label": `${planSummary(plan)}. The list below says the same.`,
  }, ...arrows, ...boxes);
}

export function planPicture(plan) {
  if (!plan) return [];
  const narrow = matchMedia("(max-width: 640px)"), frame = make("div", {className: "plan", tabIndex: 0, role: "group", "aria-label": "The plan as a picture"});
  const redraw = () => frame.replaceChildren(picture(plan, narrow.matches));
  narrow.addEventListener("change", redraw);
  redraw();
  const list = make("ol", {}, plan.boxes.map(box => make("li", {},
    `${box.kind} ${box.name.replace(/^state /, "")}${box.what ? `: ${box.what}` : ""}${box.inputs.length ? `; from ${box.inputs.join(", ")}` : ""}`)));
  return [frame, make("details", {}, make("summary", {textContent: "The plan as a list"}), list)];
}
