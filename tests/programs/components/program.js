"use strict";
// A tiny program of protocol 0.7 that splits lines. argv[2] chooses what else it does when a line has the word "now".
const fs = require("fs");
const mode = process.argv[2];
const say = (cmd, data) => process.send({ cmd, data });
const keep = setInterval(() => {}, 1 << 30);
let emits = 0;
let begun = false;
function at(step) {
    // mode "killed": the first process of all that reaches this step is killed there
    const [, , , wanted, mark] = process.argv;
    if (mode === "killed" && step === wanted && !fs.existsSync(mark)) {
        fs.writeFileSync(mark, "");
        process.kill(process.pid, "SIGKILL");
    }
}
function emit(data, stream_id) {
    emits += 1;
    say("data", { data, id: emits, stream_id: stream_id || null });
}
function ack(ack_id, err) {
    say("ack", err ? { err, ack_id } : { ack_id });
}
function receive({ data, ack_id }) {
    const now = data.line.includes("now");
    if (now && mode === "err") {
        return ack(ack_id, {});
    }
    if (now && mode === "never") {
        return undefined;
    }
    if (now && mode === "spin") {
        for (;;) {}
    }
    at("row");
    for (const word of data.line.split(" ")) {
        emit({ word }, mode === "streams" && word.length > 3 ? "long" : null);
        at("emit");
    }
    if (now && mode === "exit7") {
        process.exit(7);
    }
    if (now && mode === "throw") {
        throw new Error("no such word");
    }
    if (now && mode === "print") {
        console.log('{"cmd":"ack"}');
    }
    ack(ack_id);
    at("ack");
    if (data.line.includes("last")) {
        at("last ack");
    }
    if (now && mode === "twice") {
        ack(ack_id);
    }
    return undefined;
}
process.on("message", ({ cmd, data }) => {
    if (mode === "hears") {
        console.error(JSON.stringify({ cmd, data }));
    }
    at(cmd);
    if (cmd === "init") {
        if (mode === "late") {
            setTimeout(() => {
                begun = true;
                say("init_completed", {});
            }, 300);
        } else if (mode === "badinit") {
            say("init_failed", {}); // and goes on, as 0.7 does
        } else if (mode !== "silent") {
            say("init_completed", {});
        }
    } else if (mode === "late" && !begun) {
        throw new Error(`heard ${cmd} before it had begun`);
    } else if (cmd === "data") {
        receive(data);
    } else if (cmd === "heartbeat" && mode === "beat") {
        emit({ word: "beat" });
    } else if (cmd === "shutdown") {
        if (mode !== "stays") {
            clearInterval(keep);
            process.exit(mode === "badend" ? 9 : 0);
        }
    }
});
