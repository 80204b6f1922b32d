"use strict";
// A tiny program of the first protocol (seed 001) that splits lines: no acknowledgements, process.exit(0) at shutdown.
const [mode, many] = process.argv.slice(2);
const say = (cmd, data) => process.send({ cmd, data });
let beats = 0;
let begun = false;
process.on("message", ({ cmd, data }) => {
    if (mode === "hears") {
        console.error(JSON.stringify({ cmd, data }));
    }
    if (mode === "late" && cmd !== "init" && !begun) {
        throw new Error(`heard ${cmd} before it had begun`);
    }
    if (cmd === "init" && mode === "late") {
        setTimeout(() => {
            begun = true;
            say("init_completed", {});
        }, 300);
    } else if (cmd === "init") {
        say("init_completed", {});
    } else if (cmd === "data") {
        if (mode === "many") {
            for (let i = 0; i < Number(many); i++) {
                say("data", { word: `${data.line}-${i}` });
            }
            return;
        }
        for (const word of data.line.split(" ")) {
            say("data", { word });
        }
        if (data.line.includes("now")) {
            if (mode === "exit7") {
                process.exit(7);
            } else if (mode === "ack") {
                say("ack", {});
            }
        }
    } else if (cmd === "heartbeat" && mode === "beat") {
        beats += 1;
        say("data", { word: `beat${beats}` });
    } else if (cmd === "shutdown") {
        process.exit(mode === "badend" ? 9 : 0);
    }
});
