---------------------------- MODULE Partitions ----------------------------
(* One key of a topology that is bound to partitions: requests for it, its entry in the index, its transactions, and one  *)
(* state that replaces it. Transactions of other keys are between them. Fences, zombies of committers and several states *)
(* are in Trident.tla.                                                                                                   *)
(*                                                                                                                       *)
(* The source of the key has one content after the other; a content may come back. A look takes any time, and an attempt *)
(* reads what was looked at also when there is more by then.                                                             *)
(*                                                                                                                       *)
(* Removed names guards that are taken out: each such mutant must violate an invariant.                                  *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Requests,    \* model values
    Workers,     \* emitters: model values
    NTx,         \* transactions
    NSrc,        \* changes of the source
    MaxAttempt,  \* attempts that a transaction is given
    Removed      \* guards that are taken out

VARIABLES
    src,         \* how often the source has changed
    entry,       \* of the key in the index: [n, tx, looks]
    tx,          \* txid -> [of, status, attempt, look, by, staged, touched]
    pointer,     \* the commit pointer
    request,     \* [pc, since, seen, look, tx]
    worker,      \* [pc, n, a, look, seen]
    holds        \* what the state has of the key: [tx, look]

vars == <<src, entry, tx, pointer, request, worker, holds>>

Tx == 1..NTx
On(guard) == guard \notin Removed
Content(look) == look % 2

NONE == -1
NoTx == [of |-> "none", status |-> "none", attempt |-> 0, look |-> NONE, by |-> 0, staged |-> NONE, touched |-> FALSE]
NoEntry == [n |-> 0, tx |-> 0, looks |-> 0]
NoRequest == [pc |-> "idle", since |-> NONE, seen |-> NoEntry, look |-> NONE, tx |-> 0]
NoWork == [pc |-> "idle", n |-> 0, a |-> 0, look |-> NONE, seen |-> NoEntry]

\* A transaction of another key is pending, and behind it the first one of the key has begun.
Init ==
    /\ src = 0 /\ entry = [n |-> 1, tx |-> 2, looks |-> 0] /\ pointer = 0
    /\ tx = [n \in Tx |-> CASE n = 1 -> [NoTx EXCEPT !.of = "other", !.status = "PROCESSED"]
                         [] n = 2 -> [NoTx EXCEPT !.of = "key", !.status = "PROCESSING", !.look = 0]
                         [] OTHER -> NoTx]
    /\ request = [r \in Requests |-> NoRequest]
    /\ worker = [w \in Workers |-> NoWork]
    /\ holds = [tx |-> 0, look |-> NONE]

Status(n) == tx[n].status
Unfinished(n) == Status(n) \in {"PROCESSING", "PROCESSED", "FAILED", "COMMITTING"}
LetsPass(n) == Status(n) \in {"COMMITTED", "SKIPPED", "CLOSED"}
Free == {n \in Tx : Status(n) = "none"}
Next1 == CHOOSE n \in Free : \A m \in Free : n <= m
OfKey(n) == tx[n].of = "key"

RECURSIVE Over(_, _)
Over(upto, txs) == IF upto < NTx /\ txs[upto + 1].status = "SKIPPED" THEN Over(upto + 1, txs) ELSE upto

Looked(e) == IF On("each look is written") THEN [e EXCEPT !.looks = @ + 1] ELSE e
AsSeen(e) == On("the index is as it was seen") => entry = e
MayRefresh(n) == n # 0 /\ Unfinished(n) /\ (On("not touched") => ~tx[n].touched)
Refreshed(t, look) ==
    [t EXCEPT !.status = "PROCESSING", !.look = look, !.by = 0, !.staged = NONE,
              !.attempt = IF On("a refresh is an attempt") THEN @ + 1 ELSE @]

(* ---- the source and requests ------------------------------------------------------------------------------------- *)

Change ==
    /\ src < NSrc
    /\ src' = src + 1
    /\ UNCHANGED <<entry, tx, pointer, request, worker, holds>>

See(r) ==
    /\ request[r].pc \in {"idle", "again"}
    /\ request' = [request EXCEPT ![r] = [@ EXCEPT !.pc = "seen", !.seen = entry,
                                            !.since = IF @ = NONE THEN src ELSE @]]
    /\ UNCHANGED <<src, entry, tx, pointer, worker, holds>>

Look(r) ==
    /\ request[r].pc = "seen"
    /\ request' = [request EXCEPT ![r] = [@ EXCEPT !.pc = "looked", !.look = src]]
    /\ UNCHANGED <<src, entry, tx, pointer, worker, holds>>

Serve(r, n) == request' = [request EXCEPT ![r] = [NoRequest EXCEPT !.pc = "served", !.since = request[r].since, !.tx = n]]
Again(r) == request' = [request EXCEPT ![r] = [NoRequest EXCEPT !.pc = "again", !.since = request[r].since]]

BeginIt(me) ==
    LET n == Next1
        last == entry.tx
        over == last # 0 /\ Status(last) = "SKIPPED" /\ last <= pointer
        begun == [NoTx EXCEPT !.of = "key", !.status = "PROCESSING", !.look = me.look]
    IN /\ tx' = [m \in Tx |-> IF m = n THEN begun
                              ELSE IF over /\ m = last THEN [tx[m] EXCEPT !.status = "CLOSED"] ELSE tx[m]]
       /\ entry' = [n |-> entry.n + 1, tx |-> n, looks |-> 0]

Step(r) ==
    LET me == request[r]
        last == entry.tx
        same == last # 0 /\ Content(tx[last].look) = Content(me.look)
        looks == On("a join looks")
    IN /\ me.pc = "looked"
       /\ IF ~AsSeen(me.seen) /\ (last = 0 \/ last # me.seen.tx \/ On("the index is as it was seen"))
          THEN Again(r) /\ UNCHANGED <<entry, tx>>
          ELSE IF MayRefresh(last) /\ (same \/ ~looks)
          THEN entry' = Looked(entry) /\ Serve(r, last) /\ UNCHANGED tx
          ELSE IF MayRefresh(last)
          THEN /\ tx[last].attempt < MaxAttempt
               /\ tx' = [tx EXCEPT ![last] = Refreshed(@, me.look)]
               /\ entry' = Looked(entry) /\ Serve(r, last)
          ELSE IF (last = 0 \/ LetsPass(last)) /\ Free # {}
          THEN BeginIt(me) /\ Serve(r, Next1)
          ELSE Again(r) /\ UNCHANGED <<entry, tx>>
       /\ UNCHANGED <<src, pointer, worker, holds>>

\* Without the condition two requests that saw no transaction both begin one.
BeginUnseen(r) ==
    /\ ~On("a begin asks the index")
    /\ request[r].pc = "looked" /\ Free # {}
    /\ BeginIt(request[r]) /\ Serve(r, Next1)
    /\ UNCHANGED <<src, pointer, worker, holds>>

(* ---- emitters ---------------------------------------------------------------------------------------------------- *)

Attempt(w, n) ==
    /\ worker[w].pc = "idle"
    /\ OfKey(n) /\ ~tx[n].touched /\ Status(n) \in {"PROCESSING", "PROCESSED", "FAILED", "SKIPPED"}
    /\ Status(n) = "SKIPPED" /\ On("superseded") => entry.tx = n
    /\ Status(n) = "SKIPPED" /\ On("passed") => n > pointer
    /\ tx[n].attempt < MaxAttempt
    /\ tx' = [tx EXCEPT ![n] = [@ EXCEPT !.status = "PROCESSING", !.attempt = @ + 1, !.by = 0, !.staged = NONE]]
    /\ worker' = [worker EXCEPT ![w] = [NoWork EXCEPT !.pc = "process", !.n = n, !.a = tx[n].attempt + 1,
                                          !.look = tx[n].look]]
    /\ UNCHANGED <<src, entry, pointer, request, holds>>

Processed(w) ==
    LET me == worker[w]
        t == tx[me.n]
        current == t.status = "PROCESSING" /\ t.attempt = me.a
    IN /\ me.pc = "process"
       /\ tx' = IF current THEN [tx EXCEPT ![me.n] = [@ EXCEPT !.status = "PROCESSED", !.by = me.a, !.staged = me.look]]
                ELSE tx
       /\ worker' = [worker EXCEPT ![w] = NoWork]
       /\ UNCHANGED <<src, entry, pointer, request, holds>>

\* The source is not as it was recorded: the emitter looks, and refreshes its own attempt.
SeeChanged(w) ==
    LET me == worker[w]
    IN /\ me.pc = "process" /\ src > me.look
       /\ worker' = [worker EXCEPT ![w] = IF entry.tx = me.n /\ tx[me.n].attempt = me.a
                                          THEN [@ EXCEPT !.pc = "refresh", !.seen = entry, !.look = NONE] ELSE NoWork]
       /\ UNCHANGED <<src, entry, tx, pointer, request, holds>>

LookChanged(w) ==
    /\ worker[w].pc = "refresh" /\ worker[w].look = NONE
    /\ worker' = [worker EXCEPT ![w] = [@ EXCEPT !.look = src]]
    /\ UNCHANGED <<src, entry, tx, pointer, request, holds>>

Refresh(w) ==
    LET me == worker[w]
        may == AsSeen(me.seen) /\ entry.tx = me.n /\ MayRefresh(me.n) /\ tx[me.n].attempt < MaxAttempt
    IN /\ me.pc = "refresh" /\ me.look # NONE
       /\ tx' = IF may THEN [tx EXCEPT ![me.n] = Refreshed(@, me.look)] ELSE tx
       /\ entry' = IF may THEN Looked(entry) ELSE entry
       /\ worker' = [worker EXCEPT ![w] = NoWork]
       /\ UNCHANGED <<src, pointer, request, holds>>

Die(w) ==
    /\ worker[w].pc # "idle"
    /\ worker' = [worker EXCEPT ![w] = NoWork]
    /\ UNCHANGED <<src, entry, tx, pointer, request, holds>>

(* ---- commits and people ------------------------------------------------------------------------------------------ *)

Gate(n) ==
    /\ Status(n) = "PROCESSED"
    /\ \A m \in Tx : m < n /\ m > pointer => Status(m) = "SKIPPED"
    /\ tx' = [tx EXCEPT ![n] = [@ EXCEPT !.status = "COMMITTING", !.touched = TRUE]]
    /\ UNCHANGED <<src, entry, pointer, request, worker, holds>>

Apply(n) ==
    /\ Status(n) = "COMMITTING" /\ OfKey(n) /\ holds.tx < n
    /\ holds' = [tx |-> n, look |-> tx[n].staged]
    /\ UNCHANGED <<src, entry, tx, pointer, request, worker>>

Committed(n) ==
    LET done == [tx EXCEPT ![n] = [@ EXCEPT !.status = "COMMITTED", !.touched = FALSE]]
    IN /\ Status(n) = "COMMITTING" /\ (OfKey(n) => holds.tx >= n)
       /\ tx' = done
       /\ pointer' = IF n > pointer THEN Over(n, done) ELSE pointer
       /\ UNCHANGED <<src, entry, request, worker, holds>>

Fail(n) ==
    /\ OfKey(n) /\ Status(n) = "PROCESSING" /\ tx[n].attempt > 0
    /\ tx' = [tx EXCEPT ![n] = [@ EXCEPT !.status = "FAILED"]]
    /\ UNCHANGED <<src, entry, pointer, request, worker, holds>>

Skip(n) ==
    LET skipped == [tx EXCEPT ![n] = [@ EXCEPT !.status = "SKIPPED", !.by = 0, !.staged = NONE]]
    IN /\ OfKey(n) /\ Status(n) \in {"PROCESSING", "PROCESSED", "FAILED"} /\ ~tx[n].touched
       /\ tx' = skipped
       /\ pointer' = Over(pointer, skipped)
       /\ UNCHANGED <<src, entry, request, worker, holds>>

Next ==
    \/ Change
    \/ \E r \in Requests : See(r) \/ Look(r) \/ Step(r) \/ BeginUnseen(r)
    \/ \E w \in Workers : Processed(w) \/ SeeChanged(w) \/ LookChanged(w) \/ Refresh(w) \/ Die(w)
    \/ \E n \in Tx : Gate(n) \/ Apply(n) \/ Committed(n) \/ Fail(n) \/ Skip(n) \/ \E w \in Workers : Attempt(w, n)

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Requests)

(* ---- what must hold ---------------------------------------------------------------------------------------------- *)

\* A key has one unfinished transaction, and it is the one in the index.
One == \A n \in Tx : OfKey(n) /\ Unfinished(n) => entry.tx = n

\* No request is served by a look from before it began.
Fresh == \A r \in Requests :
            request[r].pc = "served" /\ Status(request[r].tx) \notin {"SKIPPED", "CLOSED"} =>
                \E moment \in request[r].since..src : Content(moment) = Content(tx[request[r].tx].look)

\* What is staged, or in the state, is the look that the ledger has.
Whole == /\ \A n \in Tx : OfKey(n) /\ Status(n) \in {"PROCESSED", "COMMITTING"} => tx[n].staged = tx[n].look
         /\ holds.tx # 0 => holds.look = tx[holds.tx].look

\* The state has the newest committed transaction of the key.
Newest == \A n \in Tx : OfKey(n) /\ Status(n) = "COMMITTED" => n <= holds.tx

\* What requests may join can still be committed.
Comes == \A n \in Tx : OfKey(n) /\ Unfinished(n) => n > pointer

=============================================================================
