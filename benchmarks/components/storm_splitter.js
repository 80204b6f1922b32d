"use strict";
// A bolt on Storm's own storm.js, whose folder is in NODE_PATH.
const storm = require("storm.js");
class Splitter extends storm.BasicBolt {
    process(tuple, done) {
        for (const word of tuple.values[0].split(" ")) {
            this.emit({ tuple: [word], anchorTupleId: tuple.id }, () => {});
        }
        done();
    }
}
new Splitter().run();
