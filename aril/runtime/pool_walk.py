"""How a participant of the pool walks a batch: a part of the LLVM IR of `pool_ir.py`, which puts the numbers in.

A batch is queues of records. A record may start when all records it waits for are done; who runs it does not matter.
"""

from __future__ import annotations

WALK = """
; A copy as a kernel. Its arguments: where to, where from, how many bytes.
define void @aril_pool_copy(ptr %args, i64 %chunk, ptr %scratch) {
  %to = load ptr, ptr %args, align 8
  %fromp = getelementptr i8, ptr %args, i64 8
  %from = load ptr, ptr %fromp, align 8
  %sizep = getelementptr i8, ptr %args, i64 16
  %size = load i64, ptr %sizep, align 8
  %start = mul i64 %chunk, {COPY_BYTES}
  %rest = sub i64 %size, %start
  %whole = icmp ugt i64 %rest, {COPY_BYTES}
  %n = select i1 %whole, i64 {COPY_BYTES}, i64 %rest
  %d = getelementptr i8, ptr %to, i64 %start
  %s = getelementptr i8, ptr %from, i64 %start
  %r = call ptr @memcpy(ptr %d, ptr %s, i64 %n)
  ret void
}

; Whether a record is done; with %ask, whoever finishes it is asked to wake the sleepers.
define internal i1 @is_done(ptr %left, i1 %ask) alwaysinline {
entry:
  %n = load atomic i64, ptr %left acquire, align 8
  %rest = and i64 %n, {COUNT_MASK}
  %done = icmp eq i64 %rest, 0
  %known = xor i1 %ask, true
  %enough = or i1 %done, %known
  br i1 %enough, label %out, label %mark
mark:
  %n1 = atomicrmw or ptr %left, i64 {ASLEEP} seq_cst
  %rest1 = and i64 %n1, {COUNT_MASK}
  %done1 = icmp eq i64 %rest1, 0
  br label %out
out:
  %r = phi i1 [%done, %entry], [%done1, %mark]
  ret i1 %r
}

; Whether all is done that a record waits for.
define internal i1 @is_ready(ptr %rec, i1 %ask) {
entry:
  %countp = getelementptr i8, ptr %rec, i64 {R_WAIT_COUNT}
  %count = load i64, ptr %countp, align 8
  %waitsp = getelementptr i8, ptr %rec, i64 {R_WAITS}
  %waits = load ptr, ptr %waitsp, align 8
  br label %next
next:
  %i = phi i64 [0, %entry], [%i1, %fine]
  %end = icmp uge i64 %i, %count
  br i1 %end, label %out, label %look
look:
  %at = getelementptr ptr, ptr %waits, i64 %i
  %left = load ptr, ptr %at, align 8
  %done = call i1 @is_done(ptr %left, i1 %ask)
  br i1 %done, label %fine, label %out
fine:
  %i1 = add i64 %i, 1
  br label %next
out:
  %r = phi i1 [true, %next], [false, %look]
  ret i1 %r
}

; How many chunks of a record are given out: those from the front and those from the back.
define internal i64 @given(i64 %next) alwaysinline {
  %front = and i64 %next, {FRONT_MASK}
  %back = lshr i64 %next, {BACK_SHIFT}
  %sum = add i64 %front, %back
  ret i64 %sum
}

; Count %n chunks of a record as done, and wake those who sleep until it is.
define internal void @finish(ptr %pool, ptr %rec, i64 %n) {
entry:
  %left = getelementptr i8, ptr %rec, i64 {R_LEFT}
  %old = atomicrmw sub ptr %left, i64 %n seq_cst
  %new = sub i64 %old, %n
  %hit = icmp eq i64 %new, {ASLEEP}
  br i1 %hit, label %wake, label %out
wake:
  %progress = getelementptr i8, ptr %pool, i64 {PROGRESS}
  %x = atomicrmw add ptr %progress, i32 1 seq_cst
  call void @futex_wake(ptr %progress)
  br label %out
out:
  ret void
}

; Wait until a record is done: spin a bounded time, then sleep.
define internal void @wait_for(ptr %pool, ptr %rec) noinline {
entry:
  %left = getelementptr i8, ptr %rec, i64 {R_LEFT}
  %progress = getelementptr i8, ptr %pool, i64 {PROGRESS}
  %lingerp = getelementptr i8, ptr %pool, i64 {LINGER}
  %limit = load i32, ptr %lingerp, align 4
  br label %spin
spin:
  %n = phi i32 [0, %entry], [%n1, %again]
  %done = call i1 @is_done(ptr %left, i1 false)
  br i1 %done, label %out, label %more
{PAUSE_OR_SLEEP}
sleep:
  ; in this order: whoever finishes the record after we asked also changes the word we sleep on
  %w = load atomic i32, ptr %progress seq_cst, align 4
  %done1 = call i1 @is_done(ptr %left, i1 true)
  br i1 %done1, label %out, label %wait
wait:
  call void @futex_wait(ptr %progress, i32 %w)
  br label %sleep
out:
  ret void
}

; Run a record of at most one chunk, which is done then.
define internal void @run_single(ptr %pool, ptr %rec, i1 %none, ptr %scratch) alwaysinline {
entry:
  br i1 %none, label %done, label %call
call:
  %fn = load ptr, ptr %rec, align 8
  %argsp = getelementptr i8, ptr %rec, i64 {R_ARGS}
  %args = load ptr, ptr %argsp, align 8
  call void %fn(ptr %args, i64 0, ptr %scratch)
  br label %done
done:
  call void @finish(ptr %pool, ptr %rec, i64 1)
  ret void
}

; Walk the batch as participant %index of %members. A round looks at the queues that are ours, then at the others. In
; a queue records start in order, as soon as what they wait for is done, whoever has chunks of earlier ones in hand.
; Records of one chunk are run by the queue's own participant: handing them around would cost more than they do. The
; calling thread takes them too when it has had nothing else to do for a while, so that a worker may be late.
; Of a record of several chunks, even participants take the first that is left, odd ones the last: in the next call, or
; in the next kernel over the same memory, each finds most of its part in its own core's cache.
define internal void @walk(ptr %pool, i64 %index, i64 %members) noinline {
entry:
  %batchp = getelementptr i8, ptr %pool, i64 {BATCH}
  %batch = load ptr, ptr %batchp, align 8
  %queues = load i64, ptr %batch, align 8
  %rows = getelementptr i8, ptr %batch, i64 {QUEUES}
  %scratches = getelementptr i8, ptr %pool, i64 {SCRATCH}
  %scratchp = getelementptr ptr, ptr %scratches, i64 %index
  %scratch = load ptr, ptr %scratchp, align 8
  %progress = getelementptr i8, ptr %pool, i64 {PROGRESS}
  %spinp = getelementptr i8, ptr %pool, i64 {SPIN}
  %short = load i32, ptr %spinp, align 4
  %patience = lshr i32 %short, 3
  %lingerp = getelementptr i8, ptr %pool, i64 {LINGER}
  %limit = load i32, ptr %lingerp, align 4
  %caller = icmp eq i64 %index, 0
  %parity = and i64 %index, 1
  %backward = icmp eq i64 %parity, 1
  %unit = select i1 %backward, i64 {BACK_UNIT}, i64 1
  %twice = shl i64 %queues, 1
  %cursors = alloca ptr, i64 %queues, align 8
  br label %init
init:
  %i = phi i64 [0, %entry], [%i1, %init]
  %iat = shl i64 %i, 5
  %irow = getelementptr i8, ptr %rows, i64 %iat
  %ifirst = load ptr, ptr %irow, align 8
  %icursor = getelementptr ptr, ptr %cursors, i64 %i
  store ptr %ifirst, ptr %icursor, align 8
  %i1 = add i64 %i, 1
  %imore = icmp ult i64 %i1, %queues
  br i1 %imore, label %init, label %round

round:
  %idle = phi i32 [0, %init], [0, %helped], [%idle1, %again], [%idlebusy, %busyround], [0, %slept]
  %late = icmp uge i32 %idle, %patience
  %ask = icmp uge i32 %idle, %limit
  %word = load atomic i32, ptr %progress seq_cst, align 4
  br label %queue
queue:
  %k = phi i64 [0, %round], [%k1, %nextq]
  %busy = phi i1 [false, %round], [%busy1, %nextq]
  %stole = phi i1 [false, %round], [%stole1, %nextq]
  %open = phi i1 [false, %round], [%open1, %nextq]
  %allq = icmp uge i64 %k, %twice
  br i1 %allq, label %rounded, label %pick
pick:
  %second = icmp uge i64 %k, %queues
  %less = sub i64 %k, %queues
  %q = select i1 %second, i64 %less, i64 %k
  %rowat = shl i64 %q, 5
  %row = getelementptr i8, ptr %rows, i64 %rowat
  %homep = getelementptr i8, ptr %row, i64 {Q_HOME}
  %home = load i64, ptr %homep, align 8
  %homed = urem i64 %home, %members
  %mine = icmp eq i64 %homed, %index
  %fits = xor i1 %mine, %second
  br i1 %fits, label %enter, label %skipq
skipq:
  br label %nextq
enter:
  %cursor = getelementptr ptr, ptr %cursors, i64 %q
  %start = load ptr, ptr %cursor, align 8
  %endp = getelementptr i8, ptr %row, i64 {Q_END}
  %end = load ptr, ptr %endp, align 8
  %unshared = icmp eq i64 %homed, 0
  br label %record

record:
  %rec = phi ptr [%start, %enter], [%rec1, %advance]
  %busy2 = phi i1 [%busy, %enter], [%busy3, %advance]
  %stole2 = phi i1 [%stole, %enter], [%stole3, %advance]
  %atend = icmp eq ptr %rec, %end
  br i1 %atend, label %leaveq, label %look
look:
  %argsp = getelementptr i8, ptr %rec, i64 {R_ARGS}
  %chunksp = getelementptr i8, ptr %rec, i64 {R_CHUNKS}
  %nextp = getelementptr i8, ptr %rec, i64 {R_NEXT}
  %chunks = load i64, ptr %chunksp, align 8
  %many = icmp ugt i64 %chunks, 1
  br i1 %many, label %peek, label %few
few:
  ; a record without chunks does nothing, but not before its waits are over: others rely on that
  %none = icmp eq i64 %chunks, 0
  br i1 %mine, label %own, label %other
own:
  %oready = call i1 @is_ready(ptr %rec, i1 %ask)
  br i1 %oready, label %claim, label %blocked
claim:
  br i1 %unshared, label %single, label %contend
contend:
  %took = atomicrmw add ptr %nextp, i64 1 monotonic
  %first = icmp eq i64 %took, 0
  br i1 %first, label %single, label %skip
single:
  call void @run_single(ptr %pool, ptr %rec, i1 %none, ptr %scratch)
  br label %advance
other:
  br i1 %caller, label %untaken, label %skip
untaken:
  %taken = load atomic i64, ptr %nextp monotonic, align 8
  %gone = icmp ne i64 %taken, 0
  br i1 %gone, label %skip, label %maybe
maybe:
  br i1 %late, label %steal, label %blocked
steal:
  %sready = call i1 @is_ready(ptr %rec, i1 %ask)
  br i1 %sready, label %grab, label %blocked
grab:
  %stook = atomicrmw add ptr %nextp, i64 1 monotonic
  %sfirst = icmp eq i64 %stook, 0
  br i1 %sfirst, label %stolen, label %skip
stolen:
  call void @run_single(ptr %pool, ptr %rec, i1 %none, ptr %scratch)
  br label %advance
peek:
  ; a look before the write: a late worker passes finished records without taking their lines from others
  %seen = load atomic i64, ptr %nextp monotonic, align 8
  %seenall = call i64 @given(i64 %seen)
  %over = icmp uge i64 %seenall, %chunks
  br i1 %over, label %skip, label %check
check:
  %mready = call i1 @is_ready(ptr %rec, i1 %ask)
  br i1 %mready, label %shared, label %blocked
shared:
  %fn = load ptr, ptr %rec, align 8
  %args = load ptr, ptr %argsp, align 8
  %last = sub i64 %chunks, 1
  br label %take
take:
  %did = phi i64 [0, %shared], [%did1, %run]
  %next = atomicrmw add ptr %nextp, i64 %unit monotonic
  %spoken = call i64 @given(i64 %next)
  %got = icmp ult i64 %spoken, %chunks
  br i1 %got, label %run, label %counted
run:
  %ahead = and i64 %next, {FRONT_MASK}
  %behind = lshr i64 %next, {BACK_SHIFT}
  %fromlast = sub i64 %last, %behind
  %c = select i1 %backward, i64 %fromlast, i64 %ahead
  call void %fn(ptr %args, i64 %c, ptr %scratch)
  %did1 = add i64 %did, 1
  br label %take
counted:
  %some = icmp ne i64 %did, 0
  br i1 %some, label %report, label %skip
report:
  call void @finish(ptr %pool, ptr %rec, i64 %did)
  br i1 %mine, label %advance, label %helped
helped:
  ; our own queues come first again
  %rech = getelementptr i8, ptr %rec, i64 {RECORD_BYTES}
  store ptr %rech, ptr %cursor, align 8
  br label %round
skip:
  br label %advance
advance:
  %busy3 = phi i1 [true, %single], [%busy2, %stolen], [true, %report], [%busy2, %skip]
  %stole3 = phi i1 [%stole2, %single], [true, %stolen], [%stole2, %report], [%stole2, %skip]
  %rec1 = getelementptr i8, ptr %rec, i64 {RECORD_BYTES}
  br label %record
blocked:
  br label %leaveq
leaveq:
  %stuck = phi i1 [false, %record], [true, %blocked]
  store ptr %rec, ptr %cursor, align 8
  %open2 = or i1 %open, %stuck
  br label %nextq
nextq:
  %busy1 = phi i1 [%busy, %skipq], [%busy2, %leaveq]
  %stole1 = phi i1 [%stole, %skipq], [%stole2, %leaveq]
  %open1 = phi i1 [%open, %skipq], [%open2, %leaveq]
  %k1 = add i64 %k, 1
  br label %queue

rounded:
  br i1 %open, label %unfinished, label %out
unfinished:
  %active = or i1 %busy, %stole
  br i1 %active, label %busyround, label %resting
busyround:
  ; who helps out goes on helping: the worker is still late
  %idlebusy = select i1 %busy, i32 0, i32 %patience
  br label %round
resting:
  %idle1 = add i32 %idle, 1
  br i1 %ask, label %sleep, label %again
again:
  call void @rest(i32 %idle)
  br label %round
sleep:
  call void @futex_wait(ptr %progress, i32 %word)
  br label %slept
slept:
  br label %round
out:
  ret void
}
"""
