"use strict";
// A spout module as qtopology 2.x makes it: `items` objects, once for each process.
class Numbers {
    init(name, config, context, callback) {
        this.config = config;
        this.left = config.items;
        this.on = false;
        this.told("init");
        callback(config.refuse ? new Error("no such feed") : null);
    }
    told(method) {
        if (this.config.hears) {
            console.log(JSON.stringify(method));
        }
    }
    heartbeat() {
        this.told("heartbeat");
    }
    shutdown(callback) {
        this.told("shutdown");
        callback();
    }
    run() {
        this.told("run");
        this.on = true;
    }
    pause() {
        this.told("pause");
        this.on = false;
    }
    next(callback) {
        this.told("next");
        if (!this.on || this.left <= 0) {
            return callback(null, null, null);
        }
        const n = this.left--;
        if (n === this.config.without_keys_at) {
            return callback(null, {}, null);
        }
        if (n === this.config.fail_at) {
            return callback(new Error("the feed broke"));
        }
        return callback(null, { n, text: `item ${n}`, extra: { list: [n] } }, n % 2 ? "odd" : null);
    }
}
exports.create = () => new Numbers();
