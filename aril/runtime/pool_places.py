"""Where the pool's workers may run: on every CPU but the caller's. A part of the worker loop's LLVM IR (`pool_ir`).

The kernel wakes a thread on the waker's own CPU where all others look busy, and another library's threads that spin
for work make them look so. A worker there waits until the caller sleeps: all chunks are done by one thread. So the
caller, before it shares a batch, takes its CPU from the workers' affinity, if it moved since the last time. That holds
of workers that spin, too: the kernel takes tens of milliseconds to part a caller that it moved to a worker's CPU.
"""

from __future__ import annotations

# Bytes from the start of the pool's memory.
CALLER_CPU = 320  # i32: the CPU that the workers leave alone, -1 at first
TIDS = 328  # ptr: i32 a participant, the numbers of the workers' threads; 0 of one that has not started
ALLOWED = 336  # the CPUs of the pool, a bit each; none where they are not enough to choose from
ALLOWED_BYTES = 128
PLACES_END = ALLOWED + ALLOWED_BYTES

# Numbers of the system calls gettid and sched_setaffinity.
NUMBERS = {"x86_64": {"GETTID": 186, "SETAFFINITY": 203}, "aarch64": {"GETTID": 178, "SETAFFINITY": 122}}

PLACES = """
declare i32 @sched_getcpu()

; Worker %index says which thread it is.
define internal void @settle(ptr %pool, i64 %index) noinline {
  %tidsp = getelementptr i8, ptr %pool, i64 {TIDS}
  %tids = load ptr, ptr %tidsp, align 8
  %place = getelementptr i32, ptr %tids, i64 %index
  %tid = call i64 (i64, ...) @syscall(i64 {GETTID})
  %short = trunc i64 %tid to i32
  store atomic i32 %short, ptr %place release, align 4
  ret void
}

; Keep the workers away from this thread's CPU.
define internal void @make_way(ptr %pool) noinline {
entry:
  %mask = alloca [{ALLOWED_BYTES} x i8], align 8
  %lastp = getelementptr i8, ptr %pool, i64 {CALLER_CPU}
  %last = load i32, ptr %lastp, align 4
  %cpu = call i32 @sched_getcpu()
  %moved = icmp ne i32 %cpu, %last
  %known = icmp ult i32 %cpu, {ALLOWED_BITS}
  %go = and i1 %moved, %known
  br i1 %go, label %prepare, label %out
prepare:
  store i32 %cpu, ptr %lastp, align 4
  %allowed = getelementptr i8, ptr %pool, i64 {ALLOWED}
  %mine = zext i32 %cpu to i64
  br label %word
word:
  %w = phi i64 [0, %prepare], [%w1, %word]
  %any = phi i64 [0, %prepare], [%any1, %word]
  %fromp = getelementptr i64, ptr %allowed, i64 %w
  %top = getelementptr i64, ptr %mask, i64 %w
  %bits = load i64, ptr %fromp, align 8
  %number = lshr i64 %mine, 6
  %here = icmp eq i64 %number, %w
  %shift = and i64 %mine, 63
  %bit = shl i64 1, %shift
  %gone = select i1 %here, i64 %bit, i64 0
  %keep = xor i64 %gone, -1
  %left = and i64 %bits, %keep
  store i64 %left, ptr %top, align 8
  %any1 = or i64 %any, %left
  %w1 = add i64 %w, 1
  %last_word = icmp eq i64 %w1, {ALLOWED_WORDS}
  br i1 %last_word, label %check, label %word
check:
  %none = icmp eq i64 %any1, 0
  br i1 %none, label %out, label %start
start:
  %workersp = getelementptr i8, ptr %pool, i64 {WORKERS}
  %workers32 = load i32, ptr %workersp, align 4
  %workers = zext i32 %workers32 to i64
  %tidsp = getelementptr i8, ptr %pool, i64 {TIDS}
  %tids = load ptr, ptr %tidsp, align 8
  br label %worker
worker:
  %i = phi i64 [1, %start], [%i1, %next]
  %done = icmp ugt i64 %i, %workers
  br i1 %done, label %out, label %one
one:
  %i1 = add i64 %i, 1
  %tidp = getelementptr i32, ptr %tids, i64 %i
  %tid = load atomic i32, ptr %tidp acquire, align 4
  %young = icmp eq i32 %tid, 0
  br i1 %young, label %later, label %set
later:
  store i32 -1, ptr %lastp, align 4  ; it is told at the next batch
  br label %next
set:
  %r = call i64 (i64, ...) @syscall(i64 {SETAFFINITY}, i32 %tid, i64 {ALLOWED_BYTES}, ptr %mask)
  br label %next
next:
  br label %worker
out:
  ret void
}
"""
