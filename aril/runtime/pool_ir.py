"""The worker loop of the CPU runtime as LLVM IR: compiled like any kernel, once, and kept in the disk cache.

In comes an architecture's name; out goes the module's text. `pool.py` explains the protocol and owns the memory,
`pool_ring.py` writes batches.
"""

from __future__ import annotations

from aril.runtime import pool_places
from aril.runtime.pool_walk import WALK

# Bytes from the start of the pool's memory. Words that different threads write lie on lines of their own.
GENERATION = 0  # i32, futex: a new batch was published
STATE = 64  # i32, futex: OPEN, WAITING, and how many workers are inside the batch
PROGRESS = 128  # i32, futex: changes when a record is done for which somebody sleeps
SLEEPERS = 192  # i32: workers that sleep on GENERATION
BATCH, QUIT, SPIN, WORKERS, LINGER = 256, 264, 268, 272, 276  # ptr, then i32: read by all, written seldom
SCRATCH = 512  # ptr a participant; number 0 is the calling thread

# A batch: the number of queues, then from QUEUES on a row for each: its first record, the end of its records, and
# the number of the participant (modulo their count) that walks it first and runs its small kernels.
QUEUES, QUEUE_BYTES = 32, 32
Q_FIRST, Q_END, Q_HOME = 0, 8, 16

# A record, 64 bytes. It may start when the R_LEFT of all records in its list of waits (addresses) are 0.
RECORD_BYTES = 64
R_FN, R_ARGS, R_CHUNKS, R_WAITS, R_WAIT_COUNT = 0, 8, 16, 24, 32
R_NEXT = 40  # i64: how many chunks were handed out from the front; in its upper half, how many from the back
R_LEFT = (
    48  # i64: chunks not done yet (1 where there are none to do), and ASLEEP where somebody sleeps until there are none
)
_ASLEEP = 1 << 62
BACK_SHIFT = 32  # bits of R_NEXT that count from the front

# A worker that fell asleep this often in a row before it was called stops lingering, but tries again now and then: a
# process that calls seldom burns no time, and one that calls in a loop is found out.
MISSES, RETRY = 8, 32
_YIELD = 1024  # pauses between two looks at whether the CPU has other work

COPY_BYTES = 256 << 10  # a chunk of a copy

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
declare ptr @memcpy(ptr, ptr, i64)
declare i32 @sched_yield()
{DECL}

define internal void @futex_wait(ptr %word, i32 %value) noinline {
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

define internal void @futex_wake(ptr %word) noinline {
  %r = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr %word, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}

; The %n-th pause of a wait. From time to time whatever else wants this CPU goes first.
define internal void @rest(i32 %n) alwaysinline {
entry:
  {PAUSE}
  %low = and i32 %n, {YIELD_MASK}
  %turn = icmp eq i32 %low, {YIELD_MASK}
  br i1 %turn, label %yield, label %out
yield:
  %r = call i32 @sched_yield()
  br label %out
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
  %short = load i32, ptr %spinp, align 4
  %lingerp = getelementptr i8, ptr %pool, i64 {LINGER}
  %long = load i32, ptr %lingerp, align 4
  %workersp = getelementptr i8, ptr %pool, i64 {WORKERS}
  call void @settle(ptr %pool, i64 %index)
  br label %idle
idle:
  %seen = phi i32 [0, %entry], [%g, %left]
  %misses = phi i32 [0, %entry], [%missed, %left]
  %hopeful = icmp ult i32 %misses, {MISSES}
  %turn = urem i32 %misses, {RETRY}
  %retry = icmp eq i32 %turn, 0
  %lingers = or i1 %hopeful, %retry
  %limit = select i1 %lingers, i32 %long, i32 %short
  br label %spin
spin:
  %n = phi i32 [0, %idle], [%n1, %again]
  %g1 = load atomic i32, ptr %generation acquire, align 4
  %fresh1 = icmp ne i32 %g1, %seen
  br i1 %fresh1, label %join, label %more
{PAUSE_OR_ANNOUNCE}
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
  %misses1 = add i32 %misses, 1
  br label %join
join:
  %g = phi i32 [%g1, %spin], [%g2, %awake]
  %missed = phi i32 [0, %spin], [%misses1, %awake]
  %q = load atomic i32, ptr %quitp acquire, align 4
  %stop = icmp ne i32 %q, 0
  br i1 %stop, label %out, label %register
register:
  %old = atomicrmw add ptr %state, i32 1 seq_cst
  %openbit = and i32 %old, {OPEN}
  %open = icmp ne i32 %openbit, 0
  br i1 %open, label %work, label %left
work:
  %workers = load i32, ptr %workersp, align 4
  %wide = zext i32 %workers to i64
  %members = add i64 %wide, 1
  call void @walk(ptr %pool, i64 %index, i64 %members)
  br label %left
left:
  call void @leave(ptr %pool)
  br label %idle
out:
  ret ptr null
}

; Run the batch on all workers and this thread; returns when all of its records are done.
define void @aril_pool_run(ptr %pool, ptr %batch) {
entry:
  %queues = load i64, ptr %batch, align 8
  %rows = getelementptr i8, ptr %batch, i64 {QUEUES}
  %first = load ptr, ptr %rows, align 8
  %endp = getelementptr i8, ptr %rows, i64 {Q_END}
  %end = load ptr, ptr %endp, align 8
  %batchp = getelementptr i8, ptr %pool, i64 {BATCH}
  store ptr %batch, ptr %batchp, align 8
  %workersp = getelementptr i8, ptr %pool, i64 {WORKERS}
  %workers = load i32, ptr %workersp, align 4
  %company = icmp ugt i32 %workers, 0
  %wide = zext i32 %workers to i64
  %members = add i64 %wide, 1
  %several = icmp ugt i64 %queues, 1
  br i1 %several, label %choose, label %scan
choose:
  br i1 %company, label %publish, label %walkalone
walkalone:
  call void @walk(ptr %pool, i64 0, i64 1)
  br label %out

; one queue: is there anything to share?
scan:
  %r = phi ptr [%first, %entry], [%r1, %scanned]
  %scanend = icmp eq ptr %r, %end
  br i1 %scanend, label %alone, label %scan1
scan1:
  %chunksp = getelementptr i8, ptr %r, i64 {R_CHUNKS}
  %chunks = load i64, ptr %chunksp, align 8
  %big = icmp ugt i64 %chunks, 1
  %share = and i1 %big, %company
  br i1 %share, label %publish, label %scanned
scanned:
  %r1 = getelementptr i8, ptr %r, i64 {RECORD_BYTES}
  br label %scan

; nothing: in order on this thread
alone:
  %scratches = getelementptr i8, ptr %pool, i64 {SCRATCH}
  %scratch = load ptr, ptr %scratches, align 8
  br label %arec
arec:
  %ar = phi ptr [%first, %alone], [%ar1, %anext]
  %aend = icmp eq ptr %ar, %end
  br i1 %aend, label %out, label %alook
alook:
  %aargsp = getelementptr i8, ptr %ar, i64 {R_ARGS}
  %achunksp = getelementptr i8, ptr %ar, i64 {R_CHUNKS}
  %afn = load ptr, ptr %ar, align 8
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
  %ar1 = getelementptr i8, ptr %ar, i64 {RECORD_BYTES}
  br label %arec

publish:
  call void @make_way(ptr %pool)
  %state = getelementptr i8, ptr %pool, i64 {STATE}
  %o1 = atomicrmw or ptr %state, i32 {OPEN} seq_cst
  %generation = getelementptr i8, ptr %pool, i64 {GENERATION}
  %o2 = atomicrmw add ptr %generation, i32 1 seq_cst
  %sleepers = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %wake, label %work
wake:
  call void @futex_wake(ptr %generation)
  br label %work
work:
  call void @walk(ptr %pool, i64 0, i64 %members)
  br label %fqueue

; chunks of the last records may still be in others' hands
fqueue:
  %fq = phi i64 [0, %work], [%fq1, %fnext]
  %fall = icmp uge i64 %fq, %queues
  br i1 %fall, label %close, label %fenter
fenter:
  %fat = shl i64 %fq, 5
  %frow = getelementptr i8, ptr %rows, i64 %fat
  %ffirst = load ptr, ptr %frow, align 8
  %fendp = getelementptr i8, ptr %frow, i64 {Q_END}
  %fend = load ptr, ptr %fendp, align 8
  br label %frec
frec:
  %fr = phi ptr [%ffirst, %fenter], [%fr1, %fgo]
  %fdone = icmp eq ptr %fr, %fend
  br i1 %fdone, label %fnext, label %fgo
fgo:
  call void @wait_for(ptr %pool, ptr %fr)
  %fr1 = getelementptr i8, ptr %fr, i64 {RECORD_BYTES}
  br label %frec
fnext:
  %fq1 = add i64 %fq, 1
  br label %fqueue

; close it, and wait until nobody reads its records any more
close:
  %o3 = atomicrmw and ptr %state, i32 {NOT_OPEN} seq_cst
  %lingerp = getelementptr i8, ptr %pool, i64 {LINGER}
  %limit = load i32, ptr %lingerp, align 4
  br label %spin
spin:
  %n = phi i32 [0, %close], [%n1, %again]
  %s = load atomic i32, ptr %state acquire, align 4
  %quiet = icmp eq i32 %s, 0
  br i1 %quiet, label %out, label %more
{PAUSE_OR_ANNOUNCE}
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
  %batch = alloca [{ONE_QUEUE} x i8], align 64
  store ptr %fn, ptr %rec, align 8
  %argsp = getelementptr i8, ptr %rec, i64 {R_ARGS}
  store ptr %args, ptr %argsp, align 8
  %chunksp = getelementptr i8, ptr %rec, i64 {R_CHUNKS}
  store i64 %chunks, ptr %chunksp, align 8
  %waitsp = getelementptr i8, ptr %rec, i64 {R_WAIT_COUNT}
  store i64 0, ptr %waitsp, align 8
  %nextp = getelementptr i8, ptr %rec, i64 {R_NEXT}
  store i64 0, ptr %nextp, align 8
  %leftp = getelementptr i8, ptr %rec, i64 {R_LEFT}
  store i64 %chunks, ptr %leftp, align 8
  store i64 1, ptr %batch, align 8
  %row = getelementptr i8, ptr %batch, i64 {QUEUES}
  store ptr %rec, ptr %row, align 8
  %endp = getelementptr i8, ptr %row, i64 {Q_END}
  %end = getelementptr i8, ptr %rec, i64 {RECORD_BYTES}
  store ptr %end, ptr %endp, align 8
  %homep = getelementptr i8, ptr %row, i64 {Q_HOME}
  store i64 0, ptr %homep, align 8
  call void @aril_pool_run(ptr %pool, ptr %batch)
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


def _pause_or(then: str) -> str:
    """The end of a waiting loop `spin`, from `more` on: pause and look again, or after %limit pauses go to `then`."""
    return f"""more:
  %n1 = add i32 %n, 1
  %spent = icmp uge i32 %n, %limit
  br i1 %spent, label %{then}, label %again
again:
  call void @rest(i32 %n)
  br label %spin"""


def pool_ir(arch: str) -> str:
    """The module's text for `arch` ("x86_64" or "aarch64")."""
    if arch not in _ARCH:
        raise NotImplementedError(f"the worker pool knows {', '.join(_ARCH)}, not {arch!r}")
    names: dict[str, int | str] = {
        name: value for name, value in globals().items() if isinstance(value, int) and name.isupper()
    }
    names |= {
        "TIDS": pool_places.TIDS,
        "CALLER_CPU": pool_places.CALLER_CPU,
        "ALLOWED": pool_places.ALLOWED,
        "ALLOWED_BYTES": pool_places.ALLOWED_BYTES,
        "ALLOWED_BITS": 8 * pool_places.ALLOWED_BYTES,
        "ALLOWED_WORDS": pool_places.ALLOWED_BYTES // 8,
        "ASLEEP": _ASLEEP,
        "BACK_UNIT": 1 << BACK_SHIFT,
        "FRONT_MASK": (1 << BACK_SHIFT) - 1,
        "YIELD_MASK": _YIELD - 1,
        "PAUSE_OR_ANNOUNCE": _pause_or("announce"),
        "PAUSE_OR_SLEEP": _pause_or("sleep"),
        "COUNT_MASK": _ASLEEP - 1,
        "ONE_QUEUE": QUEUES + QUEUE_BYTES,
        "OPEN": _OPEN - (1 << 32),  # IR literals of i32 are signed
        "NOT_OPEN": _OPEN - 1,
        "WAITING": _WAITING,
        "WAITING_1": _WAITING + 1,
        "NOT_WAITING": ~_WAITING,
    }
    text = WALK + _TEXT + pool_places.PLACES
    for name, value in {**names, **_ARCH[arch], **pool_places.NUMBERS[arch]}.items():
        text = text.replace("{" + name + "}", str(value))
    return text
