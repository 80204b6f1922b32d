"use strict";
// Required before an unmodified qtopology program, to make its channel block. Without it, process.send() queues what the
// socket does not take at once, and process.exit(), which such programs call on "shutdown", drops that queue.
const symbol = Object.getOwnPropertySymbols(process).find((one) => one.description === "kChannelHandle");
const handle = symbol && process[symbol];
if (!handle || typeof handle.setBlocking !== "function" || handle.setBlocking(true) !== 0) {
    process.stderr.write(`trident: the channel of Node ${process.version} cannot be made to block\n`);
    process.exit(41);
}
