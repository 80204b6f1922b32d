"use strict";
// A bolt module of qtopology 2.x: emits for each object the stream on which it came, and whether its list has arrived.
class Tagger {
    init(name, config, context, callback) {
        this.onEmit = config.onEmit;
        callback();
    }
    heartbeat() {}
    shutdown(callback) {
        callback();
    }
    receive(data, stream_id, callback) {
        const has_extra = Array.isArray(data.extra && data.extra.list);
        this.onEmit({ n: data.n, stream: stream_id || "none", has_extra }, null, callback);
    }
}
exports.create = () => new Tagger();
