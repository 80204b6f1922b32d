"use strict";
// A bolt as a module of qtopology 2.x has it, with callbacks. init.mode says what else it does.
class Splitter {
    init(name, config, context, callback) {
        this.emit = config.onEmit;
        this.mode = config.mode;
        this.sum = 0;
        callback(this.mode === "badinit" ? new Error("no such setting") : null);
    }
    heartbeat() {
        if (this.mode === "badbeat") {
            throw new Error("no beat");
        }
        if (this.mode === "beat") {
            this.emit({ word: `sum=${this.sum}` }, null, () => {});
        }
    }
    shutdown(callback) {
        if (this.mode !== "stays") {
            callback(this.mode === "badend" ? new Error("no end") : null);
        }
    }
    receive(data, stream_id, callback) {
        const now = data.line.includes("now");
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
                left -= 1;
                if (left === 0) {
                    callback(err);
                }
            });
        }
    }
}
// The same with promises.
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
