"""The worker loop of the CPU runtime as LLVM IR: compiled like any kernel, once, and kept in the disk cache.

In comes an architecture's name; out goes the module's text. `pool.py` explains the protocol and owns the memory.
"""

from __future__ import annotations

from aril.runtime import pool_places

# Bytes from the start of the pool's memory. Words that different threads write lie on lines of their own.
GENERATION = 0  # i32, futex: a new batch was published
STATE = 64  # i32, futex: OPEN, WAITING, and how many workers are inside the batch
DONE = 128  # i32: chunks of this batch that are done
WAIT_TARGET = 132  # i32: the least value of DONE that somebody sleeps for, else all ones
WAKES = 136  # i32, futex: how often sleepers for DONE were woken
SLEEPERS = 192  # i32: workers that sleep on GENERATION
BATCH, COUNT, QUIT, SPIN, WORKERS = 256, 264, 272, 276, 280  # ptr, i64, i32, i32, i32: read by all, written seldom
SCRATCH = 512  # ptr a participant; number 0 is the calling thread

# A record of a batch, 64 bytes.
RECORD_BYTES = 64
R_FN, R_ARGS, R_CHUNKS, R_FLAGS, R_NEXT = 0, 8, 16, 24, 32
FLAG_BARRIER = 1

# Numbers of the futex system call, and the instruction that makes a spinning core polite.
_ARCH = {
    "x86_64": {
        "FUTEX": 202,
        "PAUSE": "call void @llvm.x86.sse2.pause()",
        "DECL": "declare void @llvm.x86.sse2.pause()",
    },
    "aarch64": {
        "FUTEX": 98,
        "PAUSE": "call void @llvm.aarch64.hint(i32 1)",
        "DECL": "declare void @llvm.aarch64.hint(i32)",
    },
}

_TEXT = """
declare i64 @syscall(i64, ...)
{DECL}

define internal void @futex_wait(ptr %word, i32 %value) noinline {
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

define internal void @futex_wake(ptr %word) noinline {
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}

; Wait until DONE reaches %target: spin a bounded time, then sleep.
define internal void @wait_done(ptr %pool, i32 %target) noinline {
entry:
  %done = getelementptr i8, ptr %pool, i64 {DONE}
  %wanted = getelementptr i8, ptr %pool, i64 {WAIT_TARGET}
  %spinp = getelementptr i8, ptr %pool, i64 {SPIN}
  %limit = load i32, ptr %spinp, align 4
  br label %spin
spin:
  %n = phi i32 [0, %entry], [%n1, %again]
  %d = load atomic i32, ptr %done acquire, align 4
  %ok = icmp uge i32 %d, %target
  br i1 %ok, label %out, label %more
more:
  %n1 = add i32 %n, 1
  %spent = icmp uge i32 %n, %limit
  br i1 %spent, label %announce, label %again
again:
  {PAUSE}
  br label %spin
announce:
  %wakes = getelementptr i8, ptr %pool, i64 {WAKES}
  br label %sleep
sleep:
  ; in this order: a wake that forgets our target after we named it also changes the word we sleep on
  %w = load atomic i32, ptr %wakes seq_cst, align 4
  %t = atomicrmw umin ptr %wanted, i32 %target seq_cst
  %d2 = load atomic i32, ptr %done seq_cst, align 4
  %ok2 = icmp uge i32 %d2, %target
  br i1 %ok2, label %out, label %wait
wait:
  call void @futex_wait(ptr %wakes, i32 %w)
  br label %sleep
out:
  ret void
}

; Count %n more chunks as done, and wake the sleepers once the least of their targets is reached; the others name
; theirs again.
define internal void @add_done(ptr %pool, i32 %n) {
entry:
  %done = getelementptr i8, ptr %pool, i64 {DONE}
  %wanted = getelementptr i8, ptr %pool, i64 {WAIT_TARGET}
  %old = atomicrmw add ptr %done, i32 %n seq_cst
  %new = add i32 %old, %n
  %target = load atomic i32, ptr %wanted seq_cst, align 4
  %hit = icmp uge i32 %new, %target
  br i1 %hit, label %wake, label %out
wake:
  %wakes = getelementptr i8, ptr %pool, i64 {WAKES}
  %x = atomicrmw xchg ptr %wanted, i32 -1 seq_cst
  %y = atomicrmw add ptr %wakes, i32 1 seq_cst
  call void @futex_wake(ptr %wakes)
  br label %out
out:
  ret void
}

; Walk the batch as participant %index. Records of one chunk belong to the calling thread (number 0): handing them
; around would cost more than they do.
define internal void @walk(ptr %pool, i64 %index) noinline {
entry:
  %batchp = getelementptr i8, ptr %pool, i64 {BATCH}
  %batch = load ptr, ptr %batchp, align 8
  %countp = getelementptr i8, ptr %pool, i64 {COUNT}
  %count = load i64, ptr %countp, align 8
  %scratches = getelementptr i8, ptr %pool, i64 {SCRATCH}
  %scratchp = getelementptr ptr, ptr %scratches, i64 %index
  %scratch = load ptr, ptr %scratchp, align 8
  %caller = icmp eq i64 %index, 0
  br label %record
record:
  %r = phi i64 [0, %entry], [%r1, %next]
  %total = phi i32 [0, %entry], [%total1, %next]
  %need0 = phi i32 [0, %entry], [%need, %next]
  %end = icmp uge i64 %r, %count
  br i1 %end, label %out, label %look
look:
  %at = shl i64 %r, 6
  %rec = getelementptr i8, ptr %batch, i64 %at
  %argsp = getelementptr i8, ptr %rec, i64 {R_ARGS}
  %chunksp = getelementptr i8, ptr %rec, i64 {R_CHUNKS}
  %flagsp = getelementptr i8, ptr %rec, i64 {R_FLAGS}
  %nextp = getelementptr i8, ptr %rec, i64 {R_NEXT}
  %fn = load ptr, ptr %rec, align 8
  %args = load ptr, ptr %argsp, align 8
  %chunks = load i64, ptr %chunksp, align 8
  %flags = load i32, ptr %flagsp, align 4
  %barrierbit = and i32 %flags, {FLAG_BARRIER}
  %barrier = icmp ne i32 %barrierbit, 0
  %need = select i1 %barrier, i32 %total, i32 %need0
  %chunks32 = trunc i64 %chunks to i32
  %total1 = add i32 %total, %chunks32
  %many = icmp ugt i64 %chunks, 1
  br i1 %many, label %peek, label %few
few:
  %one = icmp eq i64 %chunks, 1
  %mine = and i1 %one, %caller
  br i1 %mine, label %single, label %next
single:
  call void @wait_done(ptr %pool, i32 %need)
  call void %fn(ptr %args, i64 0, ptr %scratch)
  call void @add_done(ptr %pool, i32 1)
  br label %next
peek:
  ; a look before the write: a late worker passes finished records without taking their lines from others
  %seen = load atomic i64, ptr %nextp monotonic, align 8
  %over = icmp uge i64 %seen, %chunks
  br i1 %over, label %next, label %enter
enter:
  call void @wait_done(ptr %pool, i32 %need)
  br label %take
take:
  %did = phi i32 [0, %enter], [%did1, %run]
  %c = atomicrmw add ptr %nextp, i64 1 monotonic
  %got = icmp ult i64 %c, %chunks
  br i1 %got, label %run, label %count_done
run:
  call void %fn(ptr %args, i64 %c, ptr %scratch)
  %did1 = add i32 %did, 1
  br label %take
count_done:
  %some = icmp ne i32 %did, 0
  br i1 %some, label %report, label %next
report:
  call void @add_done(ptr %pool, i32 %did)
  br label %next
next:
  %r1 = add i64 %r, 1
  br label %record
out:
  ret void
}

; Leave the batch; whoever closed it may be asleep until the last one has left.
define internal void @leave(ptr %pool) {
entry:
  %state = getelementptr i8, ptr %pool, i64 {STATE}
  %old = atomicrmw sub ptr %state, i32 1 seq_cst
  %last = icmp eq i32 %old, {WAITING_1}
  br i1 %last, label %wake, label %out
wake:
  call void @futex_wake(ptr %state)
  br label %out
out:
  ret void
}

; A worker thread. %self: the pool, then this worker's number.
define ptr @aril_pool_worker(ptr %self) {
entry:
  %pool = load ptr, ptr %self, align 8
  %indexp = getelementptr i8, ptr %self, i64 8
  %index = load i64, ptr %indexp, align 8
  %generation = getelementptr i8, ptr %pool, i64 {GENERATION}
  %sleepers = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %state = getelementptr i8, ptr %pool, i64 {STATE}
  %quitp = getelementptr i8, ptr %pool, i64 {QUIT}
  %spinp = getelementptr i8, ptr %pool, i64 {SPIN}
  %limit = load i32, ptr %spinp, align 4
  call void @settle(ptr %pool, i64 %index)
  br label %idle
idle:
  %seen = phi i32 [0, %entry], [%g, %left]
  br label %spin
spin:
  %n = phi i32 [0, %idle], [%n1, %again]
  %g1 = load atomic i32, ptr %generation acquire, align 4
  %fresh1 = icmp ne i32 %g1, %seen
  br i1 %fresh1, label %join, label %more
more:
  %n1 = add i32 %n, 1
  %spent = icmp uge i32 %n, %limit
  br i1 %spent, label %announce, label %again
again:
  {PAUSE}
  br label %spin
announce:
  %s1 = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %sleep
sleep:
  %g2 = load atomic i32, ptr %generation seq_cst, align 4
  %fresh2 = icmp ne i32 %g2, %seen
  br i1 %fresh2, label %awake, label %wait
wait:
  call void @futex_wait(ptr %generation, i32 %seen)
  br label %sleep
awake:
  %s2 = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %join
join:
  %g = phi i32 [%g1, %spin], [%g2, %awake]
  %q = load atomic i32, ptr %quitp acquire, align 4
  %stop = icmp ne i32 %q, 0
  br i1 %stop, label %out, label %register
register:
  %old = atomicrmw add ptr %state, i32 1 seq_cst
  %openbit = and i32 %old, {OPEN}
  %open = icmp ne i32 %openbit, 0
  br i1 %open, label %work, label %left
work:
  call void @walk(ptr %pool, i64 %index)
  br label %left
left:
  call void @leave(ptr %pool)
  br label %idle
out:
  ret ptr null
}

; Run %count records from %batch on all workers and this thread; returns when all are done.
define void @aril_pool_run(ptr %pool, ptr %batch, i64 %count) {
entry:
  br label %scan
scan:
  %r = phi i64 [0, %entry], [%r1, %scan1]
  %total = phi i64 [0, %entry], [%total1, %scan1]
  %many = phi i1 [false, %entry], [%many1, %scan1]
  %scanned = icmp uge i64 %r, %count
  br i1 %scanned, label %choose, label %scan1
scan1:
  %at = shl i64 %r, 6
  %rec = getelementptr i8, ptr %batch, i64 %at
  %nextp = getelementptr i8, ptr %rec, i64 {R_NEXT}
  store i64 0, ptr %nextp, align 8
  %chunksp = getelementptr i8, ptr %rec, i64 {R_CHUNKS}
  %chunks = load i64, ptr %chunksp, align 8
  %total1 = add i64 %total, %chunks
  %big = icmp ugt i64 %chunks, 1
  %many1 = or i1 %many, %big
  %r1 = add i64 %r, 1
  br label %scan
choose:
  %workersp = getelementptr i8, ptr %pool, i64 {WORKERS}
  %workers = load i32, ptr %workersp, align 4
  %company = icmp ugt i32 %workers, 0
  %shared = and i1 %company, %many
  br i1 %shared, label %publish, label %alone

alone:
  %scratches = getelementptr i8, ptr %pool, i64 {SCRATCH}
  %scratch = load ptr, ptr %scratches, align 8
  br label %arec
arec:
  %ar = phi i64 [0, %alone], [%ar1, %anext]
  %aend = icmp uge i64 %ar, %count
  br i1 %aend, label %out, label %alook
alook:
  %aat = shl i64 %ar, 6
  %arecp = getelementptr i8, ptr %batch, i64 %aat
  %aargsp = getelementptr i8, ptr %arecp, i64 {R_ARGS}
  %achunksp = getelementptr i8, ptr %arecp, i64 {R_CHUNKS}
  %afn = load ptr, ptr %arecp, align 8
  %aargs = load ptr, ptr %aargsp, align 8
  %achunks = load i64, ptr %achunksp, align 8
  br label %achunk
achunk:
  %ac = phi i64 [0, %alook], [%ac1, %arun]
  %amore = icmp ult i64 %ac, %achunks
  br i1 %amore, label %arun, label %anext
arun:
  call void %afn(ptr %aargs, i64 %ac, ptr %scratch)
  %ac1 = add i64 %ac, 1
  br label %achunk
anext:
  %ar1 = add i64 %ar, 1
  br label %arec

publish:
  %batchp = getelementptr i8, ptr %pool, i64 {BATCH}
  store ptr %batch, ptr %batchp, align 8
  %countp = getelementptr i8, ptr %pool, i64 {COUNT}
  store i64 %count, ptr %countp, align 8
  %done = getelementptr i8, ptr %pool, i64 {DONE}
  store atomic i32 0, ptr %done monotonic, align 4
  %wanted = getelementptr i8, ptr %pool, i64 {WAIT_TARGET}
  store atomic i32 -1, ptr %wanted monotonic, align 4
  %state = getelementptr i8, ptr %pool, i64 {STATE}
  %o1 = atomicrmw or ptr %state, i32 {OPEN} seq_cst
  %generation = getelementptr i8, ptr %pool, i64 {GENERATION}
  %o2 = atomicrmw add ptr %generation, i32 1 seq_cst
  %sleepers = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  call void @make_way(ptr %pool)
  call void @futex_wake(ptr %generation)
  br label %work
work:
  call void @walk(ptr %pool, i64 0)
  %total32 = trunc i64 %total to i32
  call void @wait_done(ptr %pool, i32 %total32)

  ; close it, and wait until nobody reads its records any more
  %o3 = atomicrmw and ptr %state, i32 {NOT_OPEN} seq_cst
  %spinp = getelementptr i8, ptr %pool, i64 {SPIN}
  %limit = load i32, ptr %spinp, align 4
  br label %spin
spin:
  %n = phi i32 [0, %work], [%n1, %again]
  %s = load atomic i32, ptr %state acquire, align 4
  %quiet = icmp eq i32 %s, 0
  br i1 %quiet, label %out, label %more
more:
  %n1 = add i32 %n, 1
  %spent = icmp uge i32 %n, %limit
  br i1 %spent, label %announce, label %again
again:
  {PAUSE}
  br label %spin
announce:
  %o4 = atomicrmw or ptr %state, i32 {WAITING} seq_cst
  br label %sleep
sleep:
  %s2 = load atomic i32, ptr %state seq_cst, align 4
  %quiet2 = icmp eq i32 %s2, {WAITING}
  br i1 %quiet2, label %settled, label %wait
wait:
  call void @futex_wait(ptr %state, i32 %s2)
  br label %sleep
settled:
  %o5 = atomicrmw and ptr %state, i32 {NOT_WAITING} seq_cst
  br label %out
out:
  ret void
}

; One kernel of %chunks chunks: a batch of one record on this thread's stack.
define void @aril_pool_run_one(ptr %pool, ptr %fn, ptr %args, i64 %chunks) {
  %rec = alloca [{RECORD_BYTES} x i8], align 64
  store ptr %fn, ptr %rec, align 8
  %argsp = getelementptr i8, ptr %rec, i64 {R_ARGS}
  store ptr %args, ptr %argsp, align 8
  %chunksp = getelementptr i8, ptr %rec, i64 {R_CHUNKS}
  store i64 %chunks, ptr %chunksp, align 8
  %flagsp = getelementptr i8, ptr %rec, i64 {R_FLAGS}
  store i64 0, ptr %flagsp, align 8
  call void @aril_pool_run(ptr %pool, ptr %rec, i64 1)
  ret void
}

; %n polite instructions: their cost differs tenfold between CPUs, so it is measured.
define void @aril_pool_pause(i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %out
body:
  {PAUSE}
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret void
}
"""

_OPEN, _WAITING = 1 << 31, 1 << 30


def pool_ir(arch: str) -> str:
    """The module's text for `arch` ("x86_64" or "aarch64")."""
    if arch not in _ARCH:
        raise NotImplementedError(f"the worker pool knows {', '.join(_ARCH)}, not {arch!r}")
    names = {name: value for name, value in globals().items() if isinstance(value, int) and name.isupper()}
    names |= {
        "TIDS": pool_places.TIDS,
        "CALLER_CPU": pool_places.CALLER_CPU,
        "ALLOWED": pool_places.ALLOWED,
        "ALLOWED_BYTES": pool_places.ALLOWED_BYTES,
        "ALLOWED_BITS": 8 * pool_places.ALLOWED_BYTES,
        "ALLOWED_WORDS": pool_places.ALLOWED_BYTES // 8,
        "OPEN": _OPEN - (1 << 32),  # IR literals of i32 are signed
        "NOT_OPEN": _OPEN - 1,
        "WAITING": _WAITING,
        "WAITING_1": _WAITING + 1,
        "NOT_WAITING": ~_WAITING,
    }
    text = _TEXT + pool_places.PLACES
    for name, value in {**names, **_ARCH[arch], **pool_places.NUMBERS[arch]}.items():
        text = text.replace("{" + name + "}", str(value))
    return text
