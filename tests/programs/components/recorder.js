"use strict";
// A bolt module of qtopology 2.x with an effect: appends each object to the file `init.file`.
const fs = require("fs");
class Recorder {
    init(name, config, context, callback) {
        this.file = config.file;
        callback();
    }
    heartbeat() {}
    shutdown(callback) {
        callback();
    }
    receive(data, stream_id, callback) {
        fs.appendFileSync(this.file, `${JSON.stringify(data)}\n`);
        callback();
    }
}
exports.create = () => new Recorder();
