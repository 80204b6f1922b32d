"use strict";
// A spout program as qtopology 0.7 starts it, on the plain channel: argv is the number of tuples, and its faults. With "held"
// it gives nothing more until it gets spout_ack, as the spout of qtopology's demo does. It prints the messages that it gets.
// With "behind" it answers `next` no sooner than it hears `run` or `shutdown`, with "beats" it says what it gives, too.
const [count, ...flags] = process.argv.slice(2);
const has = (flag) => flags.includes(flag);
let left = Number(count);
let running = false;
let held = false;
let begun = false;
let nothing = flags.find((flag) => flag.startsWith("nothing:"));
const behind = [];
const say = (cmd, data) => process.send({ cmd, data });
process.on("message", (message) => {
    if (has("hears")) {
        console.log(JSON.stringify(message.cmd));
    }
    if (has("behind") && message.cmd === "next") {
        behind.push(message);
        return;
    }
    take(message);
    if (message.cmd === "run") {
        behind.splice(0).forEach(take);
    }
});
function take({ cmd, data }) {
    if (has("late") && cmd === "init") {
        setTimeout(() => {
            begun = true;
            say("init_completed", {});
        }, 300);
        return;
    }
    if (has("late") && !begun) {
        throw new Error(`heard ${cmd} before it had begun`);
    }
    if (cmd === "init") {
        console.log(`init ${JSON.stringify(data)}`);
        say(has("refuses") ? "init_failed" : "init_completed", {});
    } else if (cmd === "run" || cmd === "pause") {
        running = cmd === "run";
    } else if (cmd === "spout_ack") {
        console.log("spout_ack");
        held = false;
    } else if (cmd === "next") {
        if (!running || !left || held) {
            say("empty", {});
            return;
        }
        if (nothing) {
            const data = JSON.parse(nothing.slice("nothing:".length));
            nothing = undefined;
            held = has("held");
            say("data", has("seed") ? data : { data, stream_id: null });
            return;
        }
        const n = left--;
        held = has("held");
        if (has("beats")) {
            console.log(`gives ${n}`);
        }
        const datum = { n, text: `č ${n}` };
        say("data", has("seed") ? datum : { data: datum, stream_id: has("streams") && n % 2 ? "odd" : null });
        if (has("twice")) {
            say("empty", {});
        }
    } else if (cmd === "heartbeat" && has("beats")) {
        say("data", { data: { n: -1, text: "beat" }, stream_id: null });
    } else if (cmd === "shutdown") {
        running = true;
        behind.splice(0).forEach(take);
        process.exit(has("bad-end") ? 3 : 0);
    }
}
process.on("disconnect", () => process.exit(0));
