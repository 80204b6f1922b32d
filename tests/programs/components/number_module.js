"use strict";
// A spout module as qtopology 2.x makes it: `items` objects, once for each process.
class Numbers {
    init(name, config, context, callback) {
        this.config = config;
        this.left = config.items;
        this.on = false;
        callback(config.refuse ? new Error("no such feed") : null);
    }
    heartbeat() {}
    shutdown(callback) {
        callback();
    }
    run() {
        this.on = true;
    }
    pause() {
        this.on = false;
    }
    next(callback) {
        if (!this.on || this.left <= 0) {
            return callback(null, null, null);
        }
        const n = this.left--;
        if (n === this.config.fail_at) {
            return callback(new Error("the feed broke"));
        }
        return callback(null, { n, text: `item ${n}`, extra: { list: [n] } }, n % 2 ? "odd" : null);
    }
}
exports.create = () => new Numbers();
