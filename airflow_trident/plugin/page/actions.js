import {at, make} from "./dom.js";
import {post} from "./api.js";

/* What each button does; the dialog shows this before the action. `tx`: the transaction, if the action has one; of "redo"
   the partition, if it is about one. */
const WORDS = {
  pause: ["Pause", () => "No new transactions are begun: coordinators are skipped. Those that were begun are finished."],
  resume: ["Resume", () => "Coordinators begin new transactions again."],
  skip: ["Skip", tx => `Transaction ${tx.txid} is left out, and later ones pass it: its data is not in the states until it is replayed. States that depend on the order of transactions take a replay only until a later transaction commits.`],
  close: ["Close", tx => `Transaction ${tx.txid} was skipped and will never be replayed. This cannot be taken back.`],
  backfill: ["Replay", tx => tx
    ? `Transaction ${tx.txid} is processed again as a new attempt and committed, and with it what waits for it. Each state has it once in the end.`
    : "Transactions that are not committed are replayed, lowest first: a range, or all that are unfinished. Those that are committed stay as they are."],
  redo: ["Redo", (key, data) => `Each ${data.partitions.step} is processed again from its sources as they are now, and replaces what the states have of it. Other ${data.partitions.step}s stay as they are.`],
  accept: ["Accept definition", () => "The ledger takes the topology as its DAG defines it now. States and data go on as they are; a new state begins with the next commit."],
  "accept-source": ["Accept source", tx => `Transaction ${tx.txid} takes its source as it is now, and is FAILED until it is replayed.`],
  "clear-runs": ["Clear failed runs", (tx, data) => `The failed tasks of ${data.red_runs.length} runs are cleared, whose transactions are all committed: they find that, and the runs end green. ${data.red_runs.map(one => one.run_id).join(", ")}`],
  bisect: ["Find the bad row", tx => `Transaction ${tx.txid} is processed again and again over parts of its batch until the rows are found that fail. Ledger and states are only read.`],
};

let about = null;

export const label = action => WORDS[action][0];

/* What the action is about, in words: a transaction, a partition, or nothing but the topology. */
const what = (action, tx) => !tx ? "" : action === "redo" ? `partition ${tx.key}` : `transaction ${tx.txid}`;

export function button(action, data, tx, done) {
  const made = make("button", {type: "button", className: "act", textContent: label(action)});
  made.dataset.action = action;
  made.setAttribute("aria-label", tx ? `${label(action)}, ${what(action, tx)}` : `${label(action)}, topology ${data.name}`);
  made.addEventListener("click", event => { event.stopPropagation(); ask(action, data, tx, done); });
  return made;
}

function ask(action, data, tx, done) {
  about = {action, data, tx, done};
  at("dialog-title").textContent = `${label(action)}: ${tx ? `${what(action, tx)} of ` : ""}${data.name}`;
  at("dialog-what").textContent = WORDS[action][1](tx, data);
  at("range").hidden = action !== "backfill" || Boolean(tx);
  at("keys").hidden = action !== "redo";
  for (const id of ["first", "last", "reason", "choice"]) at(id).value = "";
  for (const id of ["key-first", "key-last"]) at(id).value = tx && action === "redo" ? tx.key : "";
  for (const id of ["gone", "empty-key"]) at(id).checked = false;
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
  if (action === "redo") return {...asked, ...keys(tx)};
  if (tx) return {...asked, txid: tx.txid, status: tx.status, attempt: tx.attempt === null ? -1 : tx.attempt};
  if (action !== "backfill") return {...asked, epoch: data.epoch};
  const first = at("first").value, last = at("last").value;
  return {...asked, ...(first && {first: Number(first)}), ...(last && {last: Number(last)})};
}

/* The revision is that of the partition as it was shown, if the action is about no other one. */
function keys(partition) {
  const first = at("key-first").value.trim(), last = at("key-last").value.trim(), one = partition && first === partition.key && last === first;
  return {
    action: "backfill", partition: first, to: last, choice: at("choice").value,
    gone: at("gone").checked ? "take" : "", empty: at("empty-key").checked ? "take" : "", ...(one && {revision: partition.n}),
  };
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
