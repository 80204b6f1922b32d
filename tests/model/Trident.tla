------------------------------ MODULE Trident ------------------------------
(* The protocol of docs/protocol.md: ledger, workers and states, with everything that can go wrong between them.        *)
(*                                                                                                                       *)
(* A ledger step is one conditional multi, hence one action. A worker is a process: it may be killed at any moment       *)
(* (Die) or never be scheduled again; one that sleeps while others go on is a zombie, and a write that is still under    *)
(* way in the network is a zombie that is killed right after its next step. So pauses, lost answers and late writes      *)
(* need no actions of their own.                                                                                         *)
(*                                                                                                                       *)
(* Records of the source are numbered; a batch is an interval of them, (lo, hi]. A transactional spout fixes the batch   *)
(* when the transaction begins. An opaque one chooses it anew with each attempt, which voids every later batch that is   *)
(* not committed.                                                                                                        *)
(*                                                                                                                       *)
(* Removed names guards that are taken out: each such mutant must violate an invariant.                                  *)
EXTENDS Integers, FiniteSets, Sequences, TLC

CONSTANTS
    Workers,     \* processes: model values
    NTx,         \* transactions
    NStates,     \* states of the topology
    NRec,        \* records of the source
    Sizes,       \* how many records a batch may have
    Pending,     \* max_pending
    MaxAttempt,  \* attempts that a transaction is given
    MaxFence,    \* tries of a commit, in all
    Opaque,      \* the spout is opaque, and so are the states
    Ends,        \* attempts are used up, people skip and replay
    Restores,    \* the ledger is backed up once, and restored once
    Removed      \* guards that are taken out

VARIABLES
    ledger,      \* [next, pointer, fence, tx]
    worker,      \* what each process holds in its memory
    state,       \* what each store holds
    backup,      \* copies of the ledger: at most one
    alarm        \* somebody said "the ledger is behind its states"

vars == <<ledger, worker, state, backup, alarm>>

Tx == 1..NTx
States == 1..NStates
Records == 1..NRec
On(guard) == guard \notin Removed
Max(a, b) == IF a > b THEN a ELSE b

(* ---- what is stored ------------------------------------------------------------------------------------------------ *)

VOID == -1   \* hi of a transaction that has no batch (yet, or any more)

\* by, glo, ghi: the staged batch: attempt that made it, and its records
NoTx == [status |-> "none", attempt |-> 0, lo |-> 0, hi |-> VOID, run |-> 0, touched |-> FALSE, fence |-> 0,
         by |-> 0, glo |-> 0, ghi |-> 0]

NoWork == [pc |-> "idle", n |-> 0, a |-> 0, lo |-> 0, hi |-> 0, fence |-> 0, late |-> FALSE, k |-> 0]

\* high, fence, has: the marker. lo, hi: the batch of high, by which a state knows it again ("position"); a: its attempt,
\* in opaque states, which can take the batch of high back ("previous value").
\* holds: how often each record is in the data
NoData == [high |-> 0, fence |-> 0, has |-> {}, a |-> 0, lo |-> 0, hi |-> 0, holds |-> [r \in Records |-> 0]]

Init ==
    /\ ledger = [next |-> 1, pointer |-> 0, fence |-> 0, tx |-> [n \in Tx |-> NoTx]]
    /\ worker = [w \in Workers |-> NoWork]
    /\ state = [s \in States |-> NoData]
    /\ backup = <<>>
    /\ alarm = FALSE

Idle(w) == worker[w].pc = "idle"
Becomes(w, work) == worker' = [worker EXCEPT ![w] = work]
Uncommitted(tx) == tx.status \in {"PROCESSING", "PROCESSED", "COMMITTING", "FAILED", "SKIPPED"}

\* Where the batch of n goes on; VOID while the one before has no batch.
Position(n) == IF n = 1 THEN 0 ELSE ledger.tx[n - 1].hi

\* What the source may give from there on; nothing at its end.
Batches(position) ==
    IF position = VOID THEN {}
    ELSE IF position = NRec THEN {NRec}
    ELSE {hi \in {position + size : size \in Sizes} : hi <= NRec}

\* The pointer moves over the skipped ones that follow directly.
RECURSIVE Over(_, _)
Over(upto, tx) == IF upto < NTx /\ tx[upto + 1].status = "SKIPPED" THEN Over(upto + 1, tx) ELSE upto

\* A store was reached by a commit that the ledger knows nothing of: it was restored from an old copy.
Behind == \E s \in States : state[s].fence > ledger.fence \/ state[s].high >= ledger.next

(* ---- coordinator --------------------------------------------------------------------------------------------------- *)

MayBegin ==
    /\ ledger.next <= NTx
    /\ On("window") => ledger.next - 1 - ledger.pointer < Pending

\* run = next: a new claim; run < next: a claim that asks again, because the answer was lost.
BeginAs(run) ==
    LET n == ledger.next
        begun(hi) == [NoTx EXCEPT !.status = "PROCESSING", !.run = run, !.hi = hi,
                                  !.lo = IF hi = VOID THEN 0 ELSE Position(n)]
    IN /\ On("claim key") => run = n
       /\ \E hi \in IF Opaque THEN {VOID} ELSE Batches(Position(n)) \ {Position(n)} :
             ledger' = [ledger EXCEPT !.next = n + 1, !.tx[n] = begun(hi)]

Begin ==
    /\ ~Restores
    /\ MayBegin
    /\ \E run \in 1..ledger.next : BeginAs(run)
    /\ UNCHANGED <<worker, state, backup, alarm>>

\* With restores the look at the states and the claim are two steps: something may happen in between.
LookAtStates(w) ==
    /\ Restores
    /\ Idle(w)
    /\ MayBegin
    /\ IF Behind /\ On("look before begin")
       THEN alarm' = TRUE /\ UNCHANGED worker
       ELSE Becomes(w, [NoWork EXCEPT !.pc = "begin"]) /\ UNCHANGED alarm
    /\ UNCHANGED <<ledger, state, backup>>

BeginAfterLook(w) ==
    /\ worker[w].pc = "begin"
    /\ MayBegin
    /\ BeginAs(ledger.next)
    /\ Becomes(w, NoWork)
    /\ UNCHANGED <<state, backup, alarm>>

(* ---- emitter ------------------------------------------------------------------------------------------------------- *)

\* What a later one passed, or a person let pass, keeps its batch for ever.
Frozen(n) == ~Opaque \/ (n <= ledger.pointer /\ On("frozen below the pointer"))

BatchesOf(n) ==
    IF Frozen(n) /\ On("metadata fixed") THEN {ledger.tx[n].hi} ELSE Batches(Position(n))

\* The same step voids what came later and is not committed, if its position is no longer true.
AfterAttempt(n, hi) ==
    LET old == ledger.tx[n]
        next == IF old.status \in {"FAILED", "SKIPPED"} /\ ~On("attempts only rise") THEN 1 ELSE old.attempt + 1
        lo == IF hi = old.hi /\ Frozen(n) THEN old.lo ELSE Position(n)
        again == [old EXCEPT !.status = "PROCESSING", !.attempt = next, !.lo = lo, !.hi = hi, !.fence = 0,
                             !.by = 0, !.glo = 0, !.ghi = 0]
        voided(t) == [NoTx EXCEPT !.status = "PROCESSING", !.attempt = t.attempt + 1, !.run = t.run,
                                  !.touched = t.touched]
        hit(m) == m > n /\ Opaque /\ ~Frozen(n) /\ On("invalidation") /\ Uncommitted(ledger.tx[m])
                  /\ ledger.tx[m].hi # VOID /\ hi # old.hi
    IN [ledger EXCEPT !.tx = [m \in Tx |-> IF m = n THEN again ELSE IF hit(m) THEN voided(@[m]) ELSE @[m]]]

Attempt(w, n) ==
    /\ ledger.tx[n].attempt < MaxAttempt
    /\ \E hi \in BatchesOf(n) :
          LET after == AfterAttempt(n, hi) IN
          /\ ledger' = IF On("attempt before work") THEN after ELSE ledger
          /\ Becomes(w, [NoWork EXCEPT !.pc = "process", !.n = n, !.a = after.tx[n].attempt,
                                       !.lo = after.tx[n].lo, !.hi = hi])

StartAttempt(w, n) ==
    /\ Idle(w)
    /\ ledger.tx[n].status \in {"PROCESSING", "PROCESSED", "FAILED", "SKIPPED"}
    /\ Attempt(w, n)
    /\ UNCHANGED <<state, backup, alarm>>

Processed(w) ==
    LET me == worker[w]
        t == ledger.tx[me.n]
        staged == [t EXCEPT !.status = "PROCESSED", !.by = me.a, !.glo = me.lo, !.ghi = me.hi]
        current == t.status = "PROCESSING" /\ (On("current attempt") => t.attempt = me.a)
    IN /\ me.pc = "process"
       /\ ledger' = IF current THEN [ledger EXCEPT !.tx[me.n] = staged] ELSE ledger
       /\ Becomes(w, NoWork)
       /\ UNCHANGED <<state, backup, alarm>>

(* ---- committer ----------------------------------------------------------------------------------------------------- *)

Turn(n) == \A m \in Tx : m < n /\ m > ledger.pointer => ledger.tx[m].status = "SKIPPED"

\* Anybody, for any transaction: the sweep.
Gate(w, n) ==
    LET t == ledger.tx[n]
        fence == ledger.fence + 1
    IN /\ Idle(w)
       /\ t.status \in {"PROCESSED", "COMMITTING"}
       /\ On("order") => Turn(n)
       /\ fence <= MaxFence
       /\ IF Restores /\ Behind /\ On("look before gate")
          THEN alarm' = TRUE /\ UNCHANGED <<ledger, worker>>
          ELSE /\ ledger' = [ledger EXCEPT !.fence = fence,
                                           !.tx[n] = [@ EXCEPT !.status = "COMMITTING", !.touched = TRUE,
                                                               !.fence = fence]]
               /\ Becomes(w, [pc |-> "apply", n |-> n, a |-> t.by, lo |-> t.glo, hi |-> t.ghi, fence |-> fence,
                              late |-> n <= ledger.pointer, k |-> 1])
               /\ UNCHANGED alarm
       /\ UNCHANGED <<state, backup>>

\* One atomic step of one store. It may come late, when others have gone on long ago.
Applied(store, me) ==
    LET ours == (me.lo + 1)..me.hi
        theirs == (store.lo + 1)..store.hi
        back == IF me.n = store.high /\ Opaque THEN theirs ELSE {}
        added(r) == store.holds[r] + (IF r \in ours THEN 1 ELSE 0) - (IF r \in back THEN 1 ELSE 0)
        last == me.n >= store.high
    IN [high |-> Max(store.high, me.n), fence |-> Max(store.fence, me.fence), has |-> store.has \cup {me.n},
        a |-> IF last /\ Opaque THEN me.a ELSE store.a, lo |-> IF last THEN me.lo ELSE store.lo,
        hi |-> IF last THEN me.hi ELSE store.hi, holds |-> [r \in Records |-> added(r)]]

Has(store, n) ==
    IF ~On("applied set") THEN n = store.high            \* Storm: only an equal txid is skipped
    ELSE IF ~On("holes") THEN n <= store.high
    ELSE n \in store.has

\* The highest txid is known by its batch; below it only one that was let pass may come, into a hole or again.
Foreign(store, me) ==
    /\ me.n <= store.high
    /\ On("same batch")
    /\ IF me.n = store.high THEN <<me.lo, me.hi>> # <<store.lo, store.hi>> ELSE ~me.late

Apply(w) ==
    LET me == worker[w]
        store == state[me.k]
        fenced == On("fence in the state") /\ me.fence < store.fence
        has == Has(store, me.n)
        replaces == has /\ Opaque /\ me.n = store.high /\ me.a # store.a /\ On("replace")
        foreign == ~replaces /\ Foreign(store, me)
        after == IF has /\ ~replaces THEN [store EXCEPT !.fence = Max(@, me.fence)] ELSE Applied(store, me)
        last == me.k = NStates \/ ~On("every state")
    IN /\ me.pc = "apply"
       /\ alarm' = (alarm \/ (foreign /\ ~fenced))
       /\ IF fenced \/ foreign
          THEN Becomes(w, NoWork) /\ UNCHANGED state
          ELSE /\ state' = [state EXCEPT ![me.k] = after]
               /\ Becomes(w, [me EXCEPT !.pc = IF last THEN "finish" ELSE "apply",
                                        !.k = IF last THEN 0 ELSE @ + 1])
       /\ UNCHANGED <<ledger, backup>>

\* Only the last committed record and that of n itself are kept: the smallest retention there is.
Pruned(tx, n, upto) ==
    LET done == {m \in Tx : tx[m].status = "COMMITTED"}
        old == {m \in done : \E later \in done : later > m} \ {n}
        passed == IF On("keep the skipped") THEN {} ELSE {m \in Tx : m < upto /\ tx[m].status = "SKIPPED"}
    IN [m \in Tx |-> IF m \in old \cup passed THEN [tx[m] EXCEPT !.status = "PRUNED"] ELSE tx[m]]

Valid(me) ==
    LET t == ledger.tx[me.n]
    IN t.status = "COMMITTING" /\ (On("ticket") => t.fence = me.fence /\ t.by = me.a)

Committed(w) ==
    LET me == worker[w]
        done == [ledger.tx EXCEPT ![me.n] = [@ EXCEPT !.status = "COMMITTED", !.attempt = 0, !.fence = 0, !.by = 0]]
        upto == IF me.n > ledger.pointer THEN Over(me.n, done) ELSE ledger.pointer
        kept == Pruned(done, me.n, upto)
    IN /\ me.pc = "finish"
       /\ IF ~Valid(me) THEN UNCHANGED ledger /\ Becomes(w, NoWork)
          ELSE IF On("pointer in the same step")
          THEN ledger' = [ledger EXCEPT !.tx = kept, !.pointer = upto] /\ Becomes(w, NoWork)
          ELSE ledger' = [ledger EXCEPT !.tx = done] /\ Becomes(w, [NoWork EXCEPT !.pc = "point", !.n = me.n])
       /\ UNCHANGED <<state, backup, alarm>>

MovePointer(w) ==
    /\ worker[w].pc = "point"
    /\ ledger' = [ledger EXCEPT !.pointer = Over(Max(@, worker[w].n), ledger.tx)]
    /\ Becomes(w, NoWork)
    /\ UNCHANGED <<state, backup, alarm>>

\* The staged batch is gone: back to PROCESSING under a new attempt, by the right of the ticket.
EmitAgain(w) ==
    LET me == worker[w]
    IN /\ me.pc = "apply"
       /\ me.k = 1
       /\ IF Valid(me) THEN Attempt(w, me.n) ELSE Becomes(w, NoWork) /\ UNCHANGED ledger
       /\ UNCHANGED <<state, backup, alarm>>

(* ---- ends, people, accidents --------------------------------------------------------------------------------------- *)

\* Attempts are used up.
Fail(n) ==
    /\ Ends
    /\ ledger.tx[n].attempt > 0
    /\ ledger.tx[n].status \in {"PROCESSING", "PROCESSED", "COMMITTING"}
    /\ ledger' = [ledger EXCEPT !.tx[n] = [@ EXCEPT !.status = "FAILED", !.fence = 0, !.by = 0, !.glo = 0, !.ghi = 0]]
    /\ UNCHANGED <<worker, state, backup, alarm>>

\* A transaction without a batch cannot be skipped: there is nothing to leave out, and the next could not go on.
Skip(n) ==
    LET skipped == [ledger.tx EXCEPT ![n] = [@ EXCEPT !.status = "SKIPPED", !.by = 0, !.glo = 0, !.ghi = 0]]
    IN /\ Ends
       /\ ledger.tx[n].status \in {"PROCESSING", "PROCESSED", "FAILED"}
       /\ On("touched is not skipped") => ~ledger.tx[n].touched
       /\ ledger.tx[n].hi # VOID
       /\ ledger' = [ledger EXCEPT !.tx = skipped, !.pointer = Over(@, skipped)]
       /\ UNCHANGED <<worker, state, backup, alarm>>

Die(w) ==
    /\ ~Idle(w)
    /\ Becomes(w, NoWork)
    /\ UNCHANGED <<ledger, state, backup, alarm>>

Backup ==
    /\ Restores
    /\ backup = <<>>
    /\ backup' = <<ledger>>
    /\ UNCHANGED <<ledger, worker, state, alarm>>

\* Whoever restores a ledger stops the emitters and committers first: attempts and fences are given out a second time.
Restore ==
    /\ Len(backup) = 1
    /\ ledger # backup[1]
    /\ \A w \in Workers : worker[w].pc \in {"idle", "begin"}
    /\ ledger' = backup[1]
    /\ backup' = <<NoTx, NoTx>>
    /\ UNCHANGED <<worker, state, alarm>>

Next ==
    \/ Begin
    \/ Backup
    \/ Restore
    \/ \E n \in Tx : Fail(n) \/ Skip(n)
    \/ \E w \in Workers :
          \/ LookAtStates(w) \/ BeginAfterLook(w)
          \/ Processed(w) \/ Apply(w) \/ Committed(w) \/ MovePointer(w) \/ EmitAgain(w) \/ Die(w)
          \/ \E n \in Tx : StartAttempt(w, n) \/ Gate(w, n)

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Workers)

(* ---- the promises -------------------------------------------------------------------------------------------------- *)

Known(n) == n < ledger.next
Status(n) == ledger.tx[n].status
Done(n) == Status(n) \in {"COMMITTED", "PRUNED"}

\* Txids are dense; a claim has one transaction.
P1 == /\ \A n \in Tx : Known(n) <=> Status(n) # "none"
      /\ \A n, m \in Tx : Known(n) /\ Known(m) /\ n # m => ledger.tx[n].run # ledger.tx[m].run

\* Batches follow each other without gap or overlap; what is staged or committed is the batch that the ledger has.
P2 == /\ \A n \in Tx : n > 1 /\ ledger.tx[n].hi # VOID => ledger.tx[n].lo = ledger.tx[n - 1].hi
      /\ \A n \in Tx : Status(n) \in {"PROCESSED", "COMMITTING", "COMMITTED", "PRUNED"} =>
            ledger.tx[n].glo = ledger.tx[n].lo /\ ledger.tx[n].ghi = ledger.tx[n].hi

\* No two processes ever work under the same attempt, and the ledger knows of each.
P3 == \A w \in Workers : worker[w].pc = "process" =>
         /\ Done(worker[w].n) \/ worker[w].a <= ledger.tx[worker[w].n].attempt
         /\ \A v \in Workers : v # w /\ worker[v].pc = "process" =>
               <<worker[v].n, worker[v].a>> # <<worker[w].n, worker[w].a>>

\* What is staged was made by the current attempt.
P4 == \A n \in Tx : Status(n) \in {"PROCESSED", "COMMITTING"} => ledger.tx[n].by = ledger.tx[n].attempt

P5 == ledger.next - 1 - ledger.pointer <= Pending

\* Whatever a state holds, what came before it is there, too, or was let pass. (A restored ledger does not know that.)
P6 == /\ \A n \in Tx : Status(n) = "COMMITTING" => Turn(n)
      /\ Len(backup) # 2 => \A s \in States, n \in Tx : n \in state[s].has =>
            \A m \in Tx : m < n /\ m \notin state[s].has => m <= ledger.pointer /\ ~Done(m)

\* No record is in a state twice.
P7 == \A s \in States, r \in Records : state[s].holds[r] \in {0, 1}

\* What the ledger calls COMMITTED is in every state, each record of it; the pointer is where it ought to be.
P8 == /\ \A n \in Tx, s \in States : Done(n) =>
            n \in state[s].has /\ \A r \in (ledger.tx[n].lo + 1)..ledger.tx[n].hi : state[s].holds[r] = 1
      /\ Len(backup) # 2 => \A n \in Tx, s \in States : Status(n) = "SKIPPED" => n \notin state[s].has
      /\ \A n \in Tx : n <= ledger.pointer => Known(n)
      /\ ledger.pointer < NTx => Status(ledger.pointer + 1) \notin {"COMMITTED", "PRUNED", "SKIPPED"}

\* Somebody can always go on: the oldest transaction can be attempted, and no state refuses the next committer.
P9 == /\ Opaque => Position(ledger.pointer + 1) # VOID
      /\ \A s \in States : state[s].fence <= ledger.fence

\* Records are kept as long as they are needed, and no longer.
P10 == /\ Cardinality({n \in Tx : Status(n) = "COMMITTED"}) <= 2
       /\ \A n \in Tx : Status(n) = "PRUNED" => \A s \in States : n \in state[s].has

\* Nobody says that the ledger is behind if it is not.
P11 == alarm => Restores /\ Len(backup) = 2

=============================================================================
