import {at, make} from "./dom.js";
import {post} from "./api.js";

/* What each button does; the dialog shows this before the action. `tx`: the transaction, if the action has one. */
const WORDS = {
  pause: ["Pause", () => "No new transactions are begun: coordinators are skipped. Those that were begun are finished."],
  resume: ["Resume", () => "Coordinators begin new transactions again."],
  skip: ["Skip", tx => `Transaction ${tx.txid} is left out, and later ones pass it: its data is not in the states until it is replayed. States that depend on the order of transactions take a replay only until a later transaction commits.`],
  close: ["Close", tx => `Transaction ${tx.txid} was skipped and will never be replayed. This cannot be taken back.`],
  backfill: ["Replay", tx => tx
    ? `Transaction ${tx.txid} is processed again as a new attempt and committed, and with it what waits for it. Each state has it once in the end.`
    : "Transactions that are not committed are replayed, lowest first: a range, or all that are unfinished. Those that are committed stay as they are."],
  accept: ["Accept definition", () => "The ledger takes the topology as its DAG defines it now. States and data go on as they are; a new state begins with the next commit."],
  "accept-source": ["Accept source", tx => `Transaction ${tx.txid} takes its source as it is now, and is FAILED until it is replayed.`],
  "clear-runs": ["Clear failed runs", (tx, data) => `The failed tasks of ${data.red_runs.length} runs are cleared, whose transactions are all committed: they find that, and the runs end green. ${data.red_runs.map(one => one.run_id).join(", ")}`],
  bisect: ["Find the bad row", tx => `Transaction ${tx.txid} is processed again and again over parts of its batch until the rows are found that fail. Ledger and states are only read.`],
};

let about = null;

export const label = action => WORDS[action][0];

export function button(action, data, tx, done) {
  const made = make("button", {type: "button", className: "act", textContent: label(action)});
  made.dataset.action = action;
  made.setAttribute("aria-label", tx ? `${label(action)}, transaction ${tx.txid}` : `${label(action)}, topology ${data.name}`);
  made.addEventListener("click", event => { event.stopPropagation(); ask(action, data, tx, done); });
  return made;
}

function ask(action, data, tx, done) {
  about = {action, data, tx, done};
  at("dialog-title").textContent = `${label(action)}: ${tx ? `transaction ${tx.txid} of ` : ""}${data.name}`;
  at("dialog-what").textContent = WORDS[action][1](tx, data);
  at("range").hidden = action !== "backfill" || Boolean(tx);
  for (const id of ["first", "last", "reason"]) at(id).value = "";
  at("first").max = at("last").max = data.begun;
  at("dialog-error").textContent = "";
  at("confirm").textContent = label(action);
  at("confirm").disabled = false;
  at("dialog").showModal();
  at("reason").focus();
}

/* The request says what the person saw: the server refuses the action if that has changed since. */
function body() {
  const {action, data, tx} = about, asked = {action, reason: at("reason").value, incarnation: data.incarnation};
  if (tx) return {...asked, txid: tx.txid, status: tx.status, attempt: tx.attempt === null ? -1 : tx.attempt};
  if (action !== "backfill") return {...asked, epoch: data.epoch};
  const first = at("first").value, last = at("last").value;
  return {...asked, ...(first && {first: Number(first)}), ...(last && {last: Number(last)})};
}

export function prepare() {
  at("cancel").addEventListener("click", () => at("dialog").close());
  at("form").addEventListener("submit", async event => {
    event.preventDefault();
    if (!at("reason").value.trim()) { at("dialog-error").textContent = "Say why: it is kept, with your name."; return; }
    const {data, done} = about;
    at("confirm").disabled = true;
    at("dialog-error").textContent = "";
    try {
      const answer = await post(`topologies/${encodeURIComponent(data.name)}/actions`, body());
      at("dialog").close();
      at("done").textContent = answer.text;
      at("done").hidden = false;
    } catch (error) {
      at("dialog-error").textContent = error.message;
      at("confirm").disabled = false;
    }
    done();
  });
}
