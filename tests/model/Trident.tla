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
(* A group is several transactions whose writes go together: one step of the ledger begins, attempts, stages, gates or   *)
(* commits all of them, and one step of a state applies them. Its staged batch is that of each, or, where it was merged  *)
(* by key, one that counts for exactly these transactions under these attempts.                                          *)
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
    Group,       \* transactions of a group, at most; 1: there are none
    Merged,      \* what groups stage is merged by key
    TakesBack,   \* people take commits back
    Closes,      \* people close what is SKIPPED and passed
    Damages,     \* the first state goes back to an old copy once, and is rebuilt
    Removed      \* guards that are taken out

VARIABLES
    ledger,      \* [next, pointer, fence, tx]
    worker,      \* what each process holds in its memory
    state,       \* what each store holds
    backup,      \* copies of the ledger: at most one
    alarm,       \* somebody said "the ledger is behind its states"
    saved        \* the copy of the first state; then that it was put back; then that it was found whole again

vars == <<ledger, worker, state, backup, alarm, saved>>

Tx == 1..NTx
States == 1..NStates
Records == 1..NRec
On(guard) == guard \notin Removed
Max(a, b) == IF a > b THEN a ELSE b
Highest(txids) == CHOOSE n \in txids : \A m \in txids : m <= n

(* ---- what is stored ------------------------------------------------------------------------------------------------ *)

VOID == -1   \* hi of a transaction that has no batch (yet, or any more)

\* by, glo, ghi: the staged batch: attempt that made it, and its records. with: what it was merged with
NoTx == [status |-> "none", attempt |-> 0, lo |-> 0, hi |-> VOID, run |-> 0, touched |-> FALSE, fence |-> 0,
         by |-> 0, glo |-> 0, ghi |-> 0, with |-> {}]

\* jobs: the transactions that it is at, as [n, a, lo, hi, with]; of a ticket: fence, late, needed, floor
NoWork == [pc |-> "idle", jobs |-> {}, fence |-> 0, late |-> FALSE, k |-> 0, floor |-> 0, needed |-> {}]

Job(n, a, lo, hi) == [n |-> n, a |-> a, lo |-> lo, hi |-> hi, with |-> {}]
Txids(jobs) == {job.n : job \in jobs}
Lowest(jobs) == CHOOSE job \in jobs : \A other \in jobs : job.n <= other.n
Bare(job) == <<job.n, job.a, job.lo, job.hi>>

\* high, fence, has: the marker. lo, hi: the batch of high, by which a state knows it again ("position"); a: its attempt,
\* in opaque states, which can take the batch of high back ("previous value"). group: the batches of the last step, if
\* it had several.
\* holds: how often each record is in the data
NoData == [high |-> 0, fence |-> 0, has |-> {}, a |-> 0, lo |-> 0, hi |-> 0, group |-> {},
           holds |-> [r \in Records |-> 0]]

Init ==
    /\ ledger = [next |-> 1, pointer |-> 0, fence |-> 0, tx |-> [n \in Tx |-> NoTx]]
    /\ worker = [w \in Workers |-> NoWork]
    /\ state = [s \in States |-> NoData]
    /\ backup = <<>>
    /\ alarm = FALSE
    /\ saved = IF Damages THEN <<NoData>> ELSE <<>>

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

Done(n) == ledger.tx[n].status \in {"COMMITTED", "PRUNED"}

\* Those between the first and the last of a group that are not its own are SKIPPED.
Run(txids) == \A n, m \in txids : \A between \in Tx \ txids :
                 n < between /\ between < m => ledger.tx[between].status = "SKIPPED"

\* Groups are of transactions above the pointer: late ones go alone.
Groups == {txids \in SUBSET ((ledger.pointer + 1)..NTx) : Cardinality(txids) \in 2..Group}
Parts == Groups \cup {{n} : n \in Tx}

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
    /\ UNCHANGED <<worker, state, backup, alarm, saved>>

\* Several at once: the window has to have room for each of them.
BeginMany ==
    /\ ~Restores /\ ~Opaque
    /\ \E many \in 2..Group :
          LET last == ledger.next + many - 1
              begun(n, lo, hi) == [NoTx EXCEPT !.status = "PROCESSING", !.run = n, !.lo = lo, !.hi = hi]
          IN /\ last <= NTx
             /\ MayBegin
             /\ On("room for each") => last - 1 - ledger.pointer < Pending
             /\ \E cuts \in [ledger.next..last -> Records] :
                   LET from(n) == IF n = ledger.next THEN Position(n) ELSE cuts[n - 1] IN
                   /\ \A n \in ledger.next..last : cuts[n] \in Batches(from(n)) \ {from(n)}
                   /\ ledger' = [ledger EXCEPT !.next = last + 1,
                                   !.tx = [n \in Tx |-> IF n \in DOMAIN cuts THEN begun(n, from(n), cuts[n]) ELSE @[n]]]
    /\ UNCHANGED <<worker, state, backup, alarm, saved>>

\* With restores the look at the states and the claim are two steps: something may happen in between.
LookAtStates(w) ==
    /\ Restores
    /\ Idle(w)
    /\ MayBegin
    /\ IF Behind /\ On("look before begin")
       THEN alarm' = TRUE /\ UNCHANGED worker
       ELSE Becomes(w, [NoWork EXCEPT !.pc = "begin"]) /\ UNCHANGED alarm
    /\ UNCHANGED <<ledger, state, backup, saved>>

BeginAfterLook(w) ==
    /\ worker[w].pc = "begin"
    /\ MayBegin
    /\ BeginAs(ledger.next)
    /\ Becomes(w, NoWork)
    /\ UNCHANGED <<state, backup, alarm, saved>>

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
                             !.by = 0, !.glo = 0, !.ghi = 0, !.with = {}]
        voided(t) == [NoTx EXCEPT !.status = "PROCESSING", !.attempt = t.attempt + 1, !.run = t.run,
                                  !.touched = t.touched]
        hit(m) == m > n /\ Opaque /\ ~Frozen(n) /\ On("invalidation") /\ Uncommitted(ledger.tx[m])
                  /\ ledger.tx[m].hi # VOID /\ hi # old.hi
    IN [ledger EXCEPT !.tx = [m \in Tx |-> IF m = n THEN again ELSE IF hit(m) THEN voided(@[m]) ELSE @[m]]]

Attempt(w, n) ==
    /\ ledger.tx[n].attempt < MaxAttempt
    /\ \E hi \in BatchesOf(n) :
          LET after == AfterAttempt(n, hi)
              job == Job(n, after.tx[n].attempt, after.tx[n].lo, hi)
          IN /\ ledger' = IF On("attempt before work") THEN after ELSE ledger
             /\ Becomes(w, [NoWork EXCEPT !.pc = "process", !.jobs = {job}])

\* One step for all of them; their batches are fixed: groups are for transactional spouts.
AttemptMany(w, txids) ==
    LET again(t) == [t EXCEPT !.status = "PROCESSING", !.attempt = @ + 1, !.fence = 0, !.by = 0, !.glo = 0, !.ghi = 0,
                              !.with = {}]
        job(n) == Job(n, ledger.tx[n].attempt + 1, ledger.tx[n].lo, ledger.tx[n].hi)
    IN /\ \A n \in txids : ledger.tx[n].attempt < MaxAttempt
       /\ ledger' = [ledger EXCEPT !.tx = [n \in Tx |-> IF n \in txids THEN again(@[n]) ELSE @[n]]]
       /\ Becomes(w, [NoWork EXCEPT !.pc = "process", !.jobs = {job(n) : n \in txids}])

AttemptAll(w, txids) ==
    IF Cardinality(txids) = 1 THEN Attempt(w, Highest(txids)) ELSE AttemptMany(w, txids)

\* A group's gate went over it, and a state may hold what is above it: it can come neither before that nor late.
PassedOver(n) ==
    /\ ledger.tx[n].status = "SKIPPED" /\ n > ledger.pointer
    /\ \E m \in Tx : m > n /\ ledger.tx[m].touched

StartAttempt(w, txids) ==
    /\ Idle(w)
    /\ Run(txids)
    /\ On("passed over") => \A n \in txids : ~PassedOver(n)
    /\ \A n \in txids : ledger.tx[n].status \in {"PROCESSING", "PROCESSED", "FAILED", "SKIPPED"}
    /\ AttemptAll(w, txids)
    /\ UNCHANGED <<state, backup, alarm, saved>>

\* All of them, or none.
Processed(w) ==
    LET me == worker[w]
        of(n) == CHOOSE job \in me.jobs : job.n = n
        merged == IF Merged /\ Cardinality(me.jobs) > 1 THEN {Bare(job) : job \in me.jobs} ELSE {}
        staged(t, job) == [t EXCEPT !.status = "PROCESSED", !.by = job.a, !.glo = job.lo, !.ghi = job.hi,
                                    !.with = merged]
        current(job) == /\ ledger.tx[job.n].status = "PROCESSING"
                        /\ On("current attempt") => ledger.tx[job.n].attempt = job.a
        done == [n \in Tx |-> IF n \in Txids(me.jobs) THEN staged(ledger.tx[n], of(n)) ELSE ledger.tx[n]]
    IN /\ me.pc = "process"
       /\ ledger' = IF \A job \in me.jobs : current(job) THEN [ledger EXCEPT !.tx = done] ELSE ledger
       /\ Becomes(w, NoWork)
       /\ UNCHANGED <<state, backup, alarm, saved>>

(* ---- committer ----------------------------------------------------------------------------------------------------- *)

\* Those of `with` come in the same step.
TurnWith(n, with) ==
    \A m \in Tx : m < n /\ m > ledger.pointer /\ m \notin with => ledger.tx[m].status = "SKIPPED"
Turn(n) == TurnWith(n, {})

\* Below it nothing can come any more, when n is about to commit.
Floor(n) ==
    LET above == Max(n, ledger.pointer + 1)
        waiting == {m \in 1..ledger.pointer : ~Done(m) /\ ledger.tx[m].status # "CLOSED"
                                              /\ (On("floor below the skipped") \/ ledger.tx[m].status # "SKIPPED")}
    IN IF ~Closes THEN 0 ELSE CHOOSE m \in waiting \cup {above} : \A other \in waiting \cup {above} : m <= other

\* Anybody, for any transactions: the sweep.
Gate(w, txids) ==
    LET fence == ledger.fence + 1
        job(n) == LET t == ledger.tx[n] IN [Job(n, t.by, t.glo, t.ghi) EXCEPT !.with = t.with]
        opened(t) == [t EXCEPT !.status = "COMMITTING", !.touched = TRUE, !.fence = fence]
        first == CHOOSE n \in txids : \A m \in txids : n <= m
    IN /\ Idle(w)
       /\ \A n \in txids : ledger.tx[n].status \in {"PROCESSED", "COMMITTING"}
       /\ On("order") => Turn(first)
       /\ On("turn in a group") => \A n \in txids : TurnWith(n, txids) \/ n = first
       /\ fence <= MaxFence
       /\ IF Restores /\ Behind /\ On("look before gate")
          THEN alarm' = TRUE /\ UNCHANGED <<ledger, worker>>
          ELSE /\ ledger' = [ledger EXCEPT !.fence = fence,
                                           !.tx = [n \in Tx |-> IF n \in txids THEN opened(@[n]) ELSE @[n]]]
               /\ Becomes(w, [pc |-> "apply", jobs |-> {job(n) : n \in txids}, fence |-> fence, k |-> 1,
                              late |-> first <= ledger.pointer, floor |-> Floor(first),
                              needed |-> IF Damages THEN {m \in Tx : Done(m)} ELSE {}])
               /\ UNCHANGED alarm
       /\ UNCHANGED <<state, backup, saved>>

\* What was staged for it: its own records, or those of all that it was merged with.
RowsOf(job) == UNION {(bare[3] + 1)..bare[4] : bare \in IF job.with = {} THEN {Bare(job)} ELSE job.with}
FileOf(job) == IF job.with = {} THEN {Bare(job)} ELSE job.with

\* One atomic step of one store. It may come late, when others have gone on long ago.
Applied(store, job, fence, read) ==
    LET ours == IF FileOf(job) \in read THEN {} ELSE RowsOf(job)
        theirs == (store.lo + 1)..store.hi
        back == IF job.n = store.high /\ Opaque THEN theirs ELSE {}
        added(r) == store.holds[r] + (IF r \in ours THEN 1 ELSE 0) - (IF r \in back THEN 1 ELSE 0)
        last == job.n >= store.high
    IN [high |-> Max(store.high, job.n), fence |-> Max(store.fence, fence), has |-> store.has \cup {job.n},
        a |-> IF last /\ Opaque THEN job.a ELSE store.a, lo |-> IF last THEN job.lo ELSE store.lo,
        hi |-> IF last THEN job.hi ELSE store.hi, group |-> IF last THEN {} ELSE store.group,
        holds |-> [r \in Records |-> added(r)]]

Has(store, n) ==
    IF ~On("applied set") THEN n = store.high            \* Storm: only an equal txid is skipped
    ELSE IF ~On("holes") THEN n <= store.high
    ELSE n \in store.has

\* It came in the last step, with others.
InGroup(store, job) ==
    /\ On("group in the marker")
    /\ IF On("digest") THEN <<job.n, job.lo, job.hi>> \in store.group
       ELSE \E member \in store.group : member[1] = job.n

\* The highest txid is known by its batch; below it only one that was let pass may come, into a hole or again, and those
\* that came with it.
Foreign(store, job, late) ==
    /\ job.n <= store.high
    /\ On("same batch")
    /\ IF job.n = store.high THEN <<job.lo, job.hi>> # <<store.lo, store.hi>> ELSE ~late /\ ~InGroup(store, job)

\* One after the other, each by what those before it leave.
RECURSIVE Through(_, _, _)
Through(found, jobs, me) ==
    IF jobs = {} THEN found
    ELSE LET job == Lowest(jobs)
             store == found.store
             has == Has(store, job.n)
             replaces == has /\ Opaque /\ job.n = store.high /\ job.a # store.a /\ On("replace")
             takes == ~has \/ replaces
             after == IF takes THEN Applied(store, job, me.fence, found.read)
                      ELSE [store EXCEPT !.fence = Max(@, me.fence)]
         IN Through([store |-> after, taken |-> found.taken \cup (IF takes THEN {job.n} ELSE {}),
                     read |-> found.read \cup (IF takes THEN {FileOf(job)} ELSE {}),
                     foreign |-> found.foreign \/ (~replaces /\ Foreign(store, job, me.late))], jobs \ {job}, me)

\* What was merged by key counts for these transactions under these attempts.
Usable(jobs) ==
    \A job \in jobs : job.with # {} /\ On("inseparable") => job.with = {Bare(other) : other \in jobs}

Apply(w) ==
    LET me == worker[w]
        store == state[me.k]
        fenced == On("fence in the state") /\ me.fence < store.fence
        lacks == On("needed") /\ ~(me.needed \subseteq store.has)
        found == Through([store |-> store, taken |-> {}, read |-> {}, foreign |-> FALSE], me.jobs, me)
        mixed == /\ found.taken \notin {{}, Txids(me.jobs)} /\ On("mixed")
                 /\ \E job \in me.jobs : job.with # {}
        step == {<<job.n, job.lo, job.hi>> : job \in {one \in me.jobs : On("whole step") \/ one.n \in found.taken}}
        group == IF Cardinality(me.jobs) > 1 /\ found.taken # {} THEN step ELSE found.store.group
        forgotten == {m \in Tx : m < me.floor}
        last == me.k = NStates \/ ~On("every state")
    IN /\ me.pc = "apply"
       /\ Usable(me.jobs)
       /\ alarm' = (alarm \/ (found.foreign /\ ~fenced /\ ~lacks))
       /\ IF fenced \/ lacks \/ found.foreign
          THEN Becomes(w, NoWork) /\ UNCHANGED state
          ELSE /\ ~mixed
               /\ state' = [state EXCEPT ![me.k] = [found.store EXCEPT !.group = group, !.has = @ \cup forgotten]]
               /\ Becomes(w, [me EXCEPT !.pc = IF last THEN "finish" ELSE "apply",
                                        !.k = IF last THEN 0 ELSE @ + 1])
       /\ UNCHANGED <<ledger, backup, saved>>

\* Only the last committed record and those of the step itself are kept: the smallest retention there is.
Pruned(tx, txids, upto) ==
    LET done == {m \in Tx : tx[m].status = "COMMITTED"}
        old == {m \in done : \E later \in done : later > m} \ txids
        passed == IF On("keep the skipped") THEN {} ELSE {m \in Tx : m < upto /\ tx[m].status = "SKIPPED"}
    IN [m \in Tx |-> IF m \in old \cup passed THEN [tx[m] EXCEPT !.status = "PRUNED", !.with = {}] ELSE tx[m]]

Valid(job, fence) ==
    LET t == ledger.tx[job.n]
    IN t.status = "COMMITTING" /\ (On("ticket") => t.fence = fence /\ t.by = job.a)

\* All of them or none; the tickets of a group may come back one by one, too, in their order.
Committed(w) ==
    LET me == worker[w]
        ended(t) == [t EXCEPT !.status = "COMMITTED", !.attempt = 0, !.fence = 0, !.by = 0, !.with = {}]
    IN /\ me.pc = "finish"
       /\ \E jobs \in {me.jobs} \cup {{job} : job \in me.jobs} :
             LET txids == Txids(jobs)
                 done == [n \in Tx |-> IF n \in txids THEN ended(ledger.tx[n]) ELSE ledger.tx[n]]
                 highest == Highest(txids)
                 upto == IF highest > ledger.pointer THEN Over(highest, done) ELSE ledger.pointer
                 kept == Pruned(done, txids, upto)
                 left == IF jobs = me.jobs THEN NoWork ELSE [me EXCEPT !.jobs = @ \ jobs]
                 turn(n) == n > ledger.pointer => TurnWith(n, txids)
             IN IF ~ \A job \in jobs : Valid(job, me.fence) THEN UNCHANGED ledger /\ Becomes(w, NoWork)
                ELSE /\ On("turn of a ticket") => \A n \in txids : turn(n)
                     /\ IF On("pointer in the same step")
                        THEN ledger' = [ledger EXCEPT !.tx = kept, !.pointer = upto] /\ Becomes(w, left)
                        ELSE /\ ledger' = [ledger EXCEPT !.tx = done]
                             /\ Becomes(w, [NoWork EXCEPT !.pc = "point", !.jobs = me.jobs])
       /\ UNCHANGED <<state, backup, alarm, saved>>

MovePointer(w) ==
    /\ worker[w].pc = "point"
    /\ ledger' = [ledger EXCEPT !.pointer = Over(Max(@, Highest(Txids(worker[w].jobs))), ledger.tx)]
    /\ Becomes(w, NoWork)
    /\ UNCHANGED <<state, backup, alarm, saved>>

\* The staged batch is gone, or cannot be taken apart: back to PROCESSING under new attempts, by the right of the ticket;
\* of all of them or of one.
EmitAgain(w) ==
    LET me == worker[w]
    IN /\ me.pc = "apply"
       /\ me.k = 1 \/ \E job \in me.jobs : job.with # {}
       /\ \E jobs \in {me.jobs} \cup {{job} : job \in me.jobs} :
             IF \A job \in jobs : Valid(job, me.fence) THEN AttemptAll(w, Txids(jobs))
             ELSE Becomes(w, NoWork) /\ UNCHANGED ledger
       /\ UNCHANGED <<state, backup, alarm, saved>>

(* ---- ends, people, accidents --------------------------------------------------------------------------------------- *)

\* Attempts are used up.
Fail(n) ==
    /\ Ends
    /\ ledger.tx[n].attempt > 0
    /\ ledger.tx[n].status \in {"PROCESSING", "PROCESSED", "COMMITTING"}
    /\ ledger' = [ledger EXCEPT !.tx[n] = [@ EXCEPT !.status = "FAILED", !.fence = 0, !.by = 0, !.glo = 0, !.ghi = 0,
                                                 !.with = {}]]
    /\ UNCHANGED <<worker, state, backup, alarm, saved>>

\* A transaction without a batch cannot be skipped: there is nothing to leave out, and the next could not go on.
Skip(n) ==
    LET skipped == [ledger.tx EXCEPT ![n] = [@ EXCEPT !.status = "SKIPPED", !.by = 0, !.glo = 0, !.ghi = 0, !.with = {}]]
    IN /\ Ends
       /\ ledger.tx[n].status \in {"PROCESSING", "PROCESSED", "FAILED"}
       /\ On("touched is not skipped") => ~ledger.tx[n].touched
       /\ ledger.tx[n].hi # VOID
       /\ ledger' = [ledger EXCEPT !.tx = skipped, !.pointer = Over(@, skipped)]
       /\ UNCHANGED <<worker, state, backup, alarm, saved>>

\* What was let pass will never come.
Close(n) ==
    /\ Closes
    /\ ledger.tx[n].status = "SKIPPED"
    /\ n <= ledger.pointer
    /\ ledger' = [ledger EXCEPT !.tx[n].status = "CLOSED"]
    /\ UNCHANGED <<worker, state, backup, alarm, saved>>

\* A person takes a commit back: the ledger gives out a fence, each state that does not hold the batch takes it, and if
\* the transaction is still as it was then, it is as if no commit of it had ever begun.
Bar(w, n) ==
    LET t == ledger.tx[n]
        fence == ledger.fence + 1
    IN /\ TakesBack
       /\ Idle(w)
       /\ t.touched /\ ~Done(n)
       /\ fence <= MaxFence
       /\ ledger' = [ledger EXCEPT !.fence = fence, !.tx[n].fence = fence]
       /\ Becomes(w, [NoWork EXCEPT !.pc = IF On("bar the states") THEN "bar" ELSE "take back",
                                    !.jobs = {Job(n, t.attempt, 0, 0)}, !.fence = fence, !.k = 1])
       /\ UNCHANGED <<state, backup, alarm, saved>>

BarState(w) ==
    LET me == worker[w]
        store == state[me.k]
        held == Highest(Txids(me.jobs)) \in store.has /\ On("held is not taken back")
        last == me.k = NStates
    IN /\ me.pc = "bar"
       /\ IF held \/ me.fence < store.fence
          THEN Becomes(w, NoWork) /\ UNCHANGED state
          ELSE /\ state' = [state EXCEPT ![me.k].fence = me.fence]
               /\ Becomes(w, [me EXCEPT !.pc = IF last THEN "take back" ELSE "bar", !.k = IF last THEN 0 ELSE @ + 1])
       /\ UNCHANGED <<ledger, backup, alarm, saved>>

TakeBack(w) ==
    LET me == worker[w]
        job == Lowest(me.jobs)
        t == ledger.tx[job.n]
        same == t.fence = me.fence /\ t.attempt = job.a
        failed == [t EXCEPT !.status = "FAILED", !.touched = FALSE, !.fence = 0, !.by = 0, !.glo = 0, !.ghi = 0,
                            !.with = {}]
    IN /\ me.pc = "take back"
       /\ ledger' = IF ~Done(job.n) /\ (On("the bar is the last word") => same)
                    THEN [ledger EXCEPT !.tx[job.n] = failed] ELSE ledger
       /\ Becomes(w, NoWork)
       /\ UNCHANGED <<state, backup, alarm, saved>>

Die(w) ==
    /\ ~Idle(w)
    /\ Becomes(w, NoWork)
    /\ UNCHANGED <<ledger, state, backup, alarm, saved>>

\* The first state is copied (as it was at the beginning, if not later), and put back.
CopyState ==
    /\ Damages
    /\ Len(saved) = 1 /\ saved # <<state[1]>>
    /\ saved' = <<state[1]>>
    /\ UNCHANGED <<ledger, worker, state, backup, alarm>>

PutStateBack ==
    /\ Len(saved) = 1 /\ saved # <<state[1]>>
    /\ state' = [state EXCEPT ![1] = saved[1]]
    /\ saved' = <<"put", "back">>
    /\ UNCHANGED <<ledger, worker, backup, alarm>>

\* What it lacks is replayed into it alone, lowest first, with a fence of its own; whoever finds that it lacks nothing
\* says so. What went into it before it was put back, and is not COMMITTED yet, is found to be lacking later.
Rebuild(w) ==
    LET lacking == {n \in Tx : Done(n)} \ state[1].has
        fence == ledger.fence + 1
    IN /\ Idle(w)
       /\ Len(saved) = 2
       /\ IF lacking = {}
          THEN /\ \A v \in Workers : worker[v].pc # "finish" /\ ~(worker[v].pc = "apply" /\ worker[v].k > 1)
               /\ saved' = <<"found", "whole", "again">>
               /\ UNCHANGED <<ledger, worker>>
          ELSE /\ fence <= MaxFence
               /\ ledger' = [ledger EXCEPT !.fence = fence]
               /\ Becomes(w, [NoWork EXCEPT !.pc = "rebuild", !.fence = fence, !.late = TRUE,
                                 !.jobs = {Job(n, 0, ledger.tx[n].lo, ledger.tx[n].hi) : n \in lacking}])
               /\ UNCHANGED saved
       /\ UNCHANGED <<state, backup, alarm>>

RebuildOne(w) ==
    LET me == worker[w]
        job == Lowest(me.jobs)
        left == me.jobs \ {job}
        found == Through([store |-> state[1], taken |-> {}, read |-> {}, foreign |-> FALSE], {job}, me)
    IN /\ me.pc = "rebuild"
       /\ alarm' = (alarm \/ found.foreign)
       /\ IF found.foreign \/ (me.fence < state[1].fence /\ On("fence in the state"))
          THEN Becomes(w, NoWork) /\ UNCHANGED state
          ELSE /\ state' = [state EXCEPT ![1] = found.store]
               /\ Becomes(w, IF left = {} THEN NoWork ELSE [me EXCEPT !.jobs = left])
       /\ UNCHANGED <<ledger, backup, saved>>

Backup ==
    /\ Restores
    /\ backup = <<>>
    /\ backup' = <<ledger>>
    /\ UNCHANGED <<ledger, worker, state, alarm, saved>>

\* Whoever restores a ledger stops the emitters and committers first: attempts and fences are given out a second time.
Restore ==
    /\ Len(backup) = 1
    /\ ledger # backup[1]
    /\ \A w \in Workers : worker[w].pc \in {"idle", "begin"}
    /\ ledger' = backup[1]
    /\ backup' = <<NoTx, NoTx>>
    /\ UNCHANGED <<worker, state, alarm, saved>>

Next ==
    \/ Begin \/ BeginMany
    \/ Backup \/ Restore
    \/ CopyState \/ PutStateBack
    \/ \E n \in Tx : Fail(n) \/ Skip(n) \/ Close(n)
    \/ \E w \in Workers :
          \/ LookAtStates(w) \/ BeginAfterLook(w)
          \/ Processed(w) \/ Apply(w) \/ Committed(w) \/ MovePointer(w) \/ EmitAgain(w) \/ Die(w)
          \/ BarState(w) \/ TakeBack(w) \/ Rebuild(w) \/ RebuildOne(w)
          \/ \E txids \in Parts : StartAttempt(w, txids) \/ Gate(w, txids)
          \/ \E n \in Tx : Bar(w, n)

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Workers)

(* ---- the promises -------------------------------------------------------------------------------------------------- *)

Known(n) == n < ledger.next
Status(n) == ledger.tx[n].status

\* Of a state that was put back nothing is promised until somebody has found it whole again.
Trusted(s) == ~(Len(saved) = 2 /\ s = 1)

\* Txids are dense; a claim has one transaction.
P1 == /\ \A n \in Tx : Known(n) <=> Status(n) # "none"
      /\ \A n, m \in Tx : Known(n) /\ Known(m) /\ n # m => ledger.tx[n].run # ledger.tx[m].run

\* Batches follow each other without gap or overlap; what is staged or committed is the batch that the ledger has.
P2 == /\ \A n \in Tx : n > 1 /\ ledger.tx[n].hi # VOID => ledger.tx[n].lo = ledger.tx[n - 1].hi
      /\ \A n \in Tx : Status(n) \in {"PROCESSED", "COMMITTING", "COMMITTED", "PRUNED"} =>
            ledger.tx[n].glo = ledger.tx[n].lo /\ ledger.tx[n].ghi = ledger.tx[n].hi

\* No two processes ever work under the same attempt, and the ledger knows of each.
P3 == \A w \in Workers : worker[w].pc = "process" =>
         \A job \in worker[w].jobs :
            /\ Done(job.n) \/ job.a <= ledger.tx[job.n].attempt
            /\ \A v \in Workers : v # w /\ worker[v].pc = "process" =>
                  \A other \in worker[v].jobs : <<other.n, other.a>> # <<job.n, job.a>>

\* What is staged was made by the current attempt.
P4 == \A n \in Tx : Status(n) \in {"PROCESSED", "COMMITTING"} => ledger.tx[n].by = ledger.tx[n].attempt

P5 == ledger.next - 1 - ledger.pointer <= Pending

\* Whatever a state holds, what came before it is there, too, or was let pass. (A restored ledger does not know that. Of a group
\* one may be attempted again while the others are COMMITTING: what counts is what the states take.)
P6 == /\ Group = 1 => \A n \in Tx : Status(n) = "COMMITTING" => Turn(n)
      /\ Len(backup) # 2 => \A s \in States, n \in Tx : n \in state[s].has =>
            \A m \in Tx : m < n /\ m \notin state[s].has =>
                  Status(m) = "SKIPPED" \/ (m <= ledger.pointer /\ ~Done(m))

\* No record is in a state twice.
P7 == \A s \in States, r \in Records : state[s].holds[r] \in {0, 1}

\* What the ledger calls COMMITTED is in every state, each record of it; the pointer is where it ought to be.
P8 == /\ \A n \in Tx, s \in States : Done(n) /\ Trusted(s) =>
            n \in state[s].has /\ \A r \in (ledger.tx[n].lo + 1)..ledger.tx[n].hi : state[s].holds[r] = 1
      /\ Len(backup) # 2 => \A n \in Tx, s \in States : Status(n) = "SKIPPED" => n \notin state[s].has
      /\ Len(backup) # 2 => \A n \in Tx, s \in States :
            Known(n) /\ Status(n) # "CLOSED" /\ ~ledger.tx[n].touched => n \notin state[s].has
      /\ \A n \in Tx : n <= ledger.pointer => Known(n) /\ (~Ends => Done(n))
      /\ ledger.pointer < NTx => Status(ledger.pointer + 1) \notin {"COMMITTED", "PRUNED", "SKIPPED", "CLOSED"}

\* Somebody can always go on: the oldest transaction can be attempted, and no state refuses the next committer.
P9 == /\ Opaque => Position(ledger.pointer + 1) # VOID
      /\ \A s \in States : state[s].fence <= ledger.fence

\* Records are kept as long as they are needed, and no longer.
P10 == /\ Cardinality({n \in Tx : Status(n) = "COMMITTED"}) <= Group + 1
       /\ \A n \in Tx : Status(n) = "PRUNED" => \A s \in States : Trusted(s) => n \in state[s].has

\* Nobody says that the ledger is behind if it is not.
P11 == alarm => Restores /\ Len(backup) = 2

=============================================================================
