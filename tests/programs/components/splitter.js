"use strict";
// A bolt as a module of qtopology 2.x, with callbacks. init.mode chooses what else it does.
const fs = require("fs");
class Splitter {
    at(step) {
        // mode "killed": the first process of all that reaches this step is killed there
        const { mode, step: wanted, mark } = this.config;
        if (mode === "killed" && step === wanted && !fs.existsSync(mark)) {
            fs.writeFileSync(mark, "");
            process.kill(process.pid, "SIGKILL");
        }
    }
    told(method, ...args) {
        if (this.mode === "hears") {
            console.error(JSON.stringify([method, ...args]));
        }
        if (this.mode === "late" && !this.begun) {
            throw new Error(`heard ${method} before it had begun`);
        }
    }
    init(name, config, context, callback) {
        this.emit = config.onEmit;
        this.config = config;
        this.mode = config.mode;
        this.sum = 0;
        this.at("init");
        if (this.mode === "late") {
            setTimeout(() => {
                this.begun = true;
                callback();
            }, 300);
            return;
        }
        this.told("init", name, config);
        callback(this.mode === "badinit" ? new Error("no such setting") : null);
    }
    heartbeat() {
        this.told("heartbeat");
        this.at("heartbeat");
        if (this.mode === "badbeat") {
            throw new Error("no beat");
        }
        if (this.mode === "beat") {
            this.emit({ word: `sum=${this.sum}` }, null, () => {});
        }
    }
    shutdown(callback) {
        this.told("shutdown");
        this.at("shutdown");
        if (this.mode !== "stays") {
            callback(this.mode === "badend" ? new Error("no end") : null);
        }
    }
    receive(data, stream_id, callback) {
        const now = data.line.includes("now");
        this.told("receive", data, stream_id);
        this.at("row");
        this.sum += 1;
        if (now && this.mode === "err") {
            callback(new Error("no such word"));
            return;
        }
        if (now && this.mode === "throw") {
            throw new Error("no such word");
        }
        if (now && this.mode === "never") {
            return;
        }
        if (now && this.mode === "exit0") {
            process.exit(0);
        }
        const words = data.line.split(" ");
        let left = words.length;
        for (const word of words) {
            this.emit({ word, length: word.length }, this.mode === "streams" && word.length > 3 ? "long" : null, (err) => {
                this.told("emitted", word);
                left -= 1;
                if (left === 0) {
                    callback(err);
                    setImmediate(() => data.line.includes("last") && this.at("last ack")); // when it has left the host
                }
            });
            this.at("emit");
        }
    }
}
// The same bolt with promises.
class AsyncSplitter {
    async init(name, config) {
        this.emit = config.onEmit;
    }
    heartbeat() {}
    async shutdown() {}
    async receive(data) {
        for (const word of data.line.split(" ")) {
            await this.emit({ word }, null);
        }
    }
}
exports.create = (subtype) => (subtype === "async" ? new AsyncSplitter() : new Splitter());
exports.Splitter = Splitter;
exports.splitter = () => new Splitter();
