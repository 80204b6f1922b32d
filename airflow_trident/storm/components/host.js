"use strict";
// Runs one bolt or spout of qtopology 2.x as a child: a module, or one of its "sys" nodes. argv: "bolt" or "spout",
// and the JSON of the node, without its `init`: that may hold secrets, and every user of the machine sees argv.
//   in:  init, batch [[id, data, stream_id], ...], heartbeat, run, pause, next, shutdown
//   out: init_completed, init_failed, heartbeat_done, data, empty,
//        batch [[id or null, data, stream_id], ..., [id], ..., [id, error], ...]: an emit, an ack, a failure
const path = require("path");
require("./preload.js");

const BATCH = 512;
const ERROR_AT_SHUTDOWN = 40;
const [kind, text] = process.argv.slice(2);
const node = JSON.parse(text);

let component = null;
let isAsync = false;

// ---- out: small messages are sent together

let out = [];
let armed = false;

function flush() {
    armed = false;
    if (out.length) {
        const some = out;
        out = [];
        process.send({ cmd: "batch", data: some });
    }
}

function put(one) {
    out.push(one);
    if (out.length >= BATCH) {
        flush();
    } else if (!armed) {
        armed = true;
        setImmediate(flush);
    }
}

function say(cmd, data) {
    flush();
    process.send({ cmd, data: data || {} });
}

function told(err) {
    if (err && typeof err === "object") {
        return { name: err.name || "Error", message: String(err.message || err), stack: err.stack, code: err.code };
    }
    return { name: "Error", message: String(err) };
}

// An error in place of data (the file_reader of qtopology gives one for a line that is no JSON) becomes an object
// without keys in JSON, as in qtopology. Its text would be lost with it.
function datum(data) {
    if (data instanceof Error) {
        process.stderr.write(`gave an error as data, which becomes an object without keys: ${data}\n`);
    }
    return data;
}

// ---- the component

function make() {
    const folder = path.resolve(node.working_dir || ".");
    if (node.type === "sys") {
        const qtopology = require(require.resolve("qtopology", { paths: [folder, process.cwd()] }));
        return kind === "bolt" ? qtopology.createSysBolt(node) : qtopology.createSysSpout(node);
    }
    if (node.type === "module_class") {
        return new (require(folder)[node.cmd])(node.subtype);
    }
    if (node.type === "module_method") {
        return require(folder)[node.cmd](node.subtype);
    }
    return require(path.join(folder, node.cmd)).create(node.subtype);
}

// Calls a method in its own style (callback or promise); `then` is called once.
function call(method, args, then) {
    let over = false;
    const once = (err, data, stream_id) => {
        if (!over) {
            over = true;
            then(err, data, stream_id);
        }
    };
    try {
        if (isAsync) {
            Promise.resolve(component[method](...args)).then((given) => once(null, given), (err) => once(err || "rejected"));
        } else {
            component[method](...args, once);
        }
    } catch (err) {
        once(err || "thrown");
    }
}

// ---- a bolt gets one row at a time, so that the row of each emit is known

const queue = [];
let current = null;
let busy = false;
let turning = false;

function onEmit(data, stream_id, callback) {
    put([current, datum(data), stream_id === undefined ? null : stream_id]);
    if (callback) {
        process.nextTick(callback);
    }
    return isAsync ? Promise.resolve() : undefined;
}

function turn() {
    if (turning) {
        return;
    }
    turning = true;
    while (!busy && queue.length) {
        const [id, data, stream_id] = queue.shift();
        busy = true;
        current = id;
        call("receive", [data, stream_id], (err) => {
            put(err ? [id, told(err)] : [id]);
            busy = false;
            current = null;
            turn();
        });
    }
    turning = false;
}

const heard = {
    init(data) {
        const { name, ...config } = data;
        node.name = name;
        node.init = { ...config };
        if (kind === "bolt") {
            config.onEmit = onEmit;
        }
        try {
            component = make();
            if (!component) {
                throw new Error(`${node.cmd} made nothing`);
            }
        } catch (err) {
            say("init_failed", { err: told(err), making: true });
            return;
        }
        isAsync = component.init.length < 4;
        call("init", [name, config, {}], (err) => (err ? say("init_failed", { err: told(err) }) : say("init_completed")));
    },
    batch(data) {
        for (const one of data) {
            queue.push(one);
        }
        turn();
    },
    heartbeat() {
        try {
            component.heartbeat();
            say("heartbeat_done");
        } catch (err) {
            say("heartbeat_done", { err: told(err) });
        }
    },
    run() {
        component.run();
    },
    pause() {
        component.pause();
    },
    next() {
        call("next", [], (err, given, stream_id) => {
            const [data, stream] = isAsync && given ? [given.data, given.stream_id] : [given, stream_id];
            if (err) {
                say("empty", { err: told(err) });
            } else if (data) {
                say("data", { data: datum(data), stream_id: stream === undefined ? null : stream });
            } else {
                say("empty");
            }
        });
    },
    shutdown() {
        call("shutdown", [], (err) => {
            flush();
            if (err) {
                process.stderr.write(`${(err && err.stack) || err}\n`);
            }
            process.exit(err ? ERROR_AT_SHUTDOWN : 0);
        });
    },
};

process.on("message", (message) => {
    const listener = message && heard[message.cmd];
    if (listener) {
        listener(message.data);
    }
});
process.on("disconnect", () => process.exit(1));
