"""The name of the kernel when native code crashes: a signal handler, itself LLVM IR, that looks up the address.

In come the address ranges of loaded kernels; out goes a line on stderr before the process dies as it would have anyway
(the handler of before, `faulthandler` say, takes over).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct

from aril.forks import renewed_in_child
from aril.runtime.elf import LoadedObject, ObjectError, load_object
from aril.runtime.llvm import compile_cached
from aril.runtime.target import generic_target, host_target

SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
ENTRY = struct.Struct("<QQQQ")  # first byte, end, the message's address and length
CAPACITY = 1 << 14  # kernels loaded at once; further ones crash without their name
_SIGACTION = 152  # bytes of glibc's struct sigaction: handler, 128 bytes of mask, flags, restorer
_SA_SIGINFO = 4

# Where the interrupted instruction's address, the stack pointer and (AArch64) the link register lie in ucontext_t:
# gregs[REG_RIP] and gregs[REG_RSP] on x86-64; mcontext.pc, .sp and .regs[30] on AArch64.
_PLACES = {"x86_64": (168, 160, 168), "aarch64": (440, 432, 424)}

_TEXT = """
@aril_fault_table = global ptr null
@aril_fault_count = global i64 0
@aril_fault_before = global ptr null
@called = internal constant [44 x i8] c"aril: in a function that this kernel called\\0A"
declare i64 @write(i32, ptr, i64)
declare i32 @sigaction(i32, ptr, ptr)
declare i32 @getpid()
declare i64 @process_vm_readv(i32, ptr, i64, ptr, i64, i64)

; the entry of the kernel that an address lies in, or null
define internal ptr @find(i64 %address) {
entry:
  %table = load ptr, ptr @aril_fault_table
  %count = load i64, ptr @aril_fault_count
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %none
look:
  %at = shl i64 %i, 5
  %e = getelementptr i8, ptr %table, i64 %at
  %ep = getelementptr i8, ptr %e, i64 8
  %low = load i64, ptr %e
  %high = load i64, ptr %ep
  %above = icmp uge i64 %address, %low
  %below = icmp ult i64 %address, %high
  %hit = and i1 %above, %below
  br i1 %hit, label %found, label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
found:
  ret ptr %e
none:
  ret ptr null
}

define internal void @tell(ptr %e) {
  %np = getelementptr i8, ptr %e, i64 16
  %lp = getelementptr i8, ptr %e, i64 24
  %message = load ptr, ptr %np
  %length = load i64, ptr %lp
  %w = call i64 @write(i32 2, ptr %message, i64 %length)  ; at once: several threads may crash together
  ret void
}

define void @aril_fault(i32 %signal, ptr %info, ptr %context) {
entry:
  %words = alloca [64 x i64]
  %here = alloca [2 x i64]
  %there = alloca [2 x i64]
  %pcp = getelementptr i8, ptr %context, i64 {PC}
  %pc = load i64, ptr %pcp
  %inside = call ptr @find(i64 %pc)
  %own = icmp ne ptr %inside, null
  br i1 %own, label %itself, label %link
itself:
  call void @tell(ptr %inside)
  br label %out
link:
  ; a function that the kernel called: where it returns to is in a register or on the stack
  %lrp = getelementptr i8, ptr %context, i64 {LR}
  %lr = load i64, ptr %lrp
  %spp = getelementptr i8, ptr %context, i64 {SP}
  %sp = load i64, ptr %spp
  %wordsaddress = ptrtoint ptr %words to i64
  store i64 %wordsaddress, ptr %here
  %herelength = getelementptr i64, ptr %here, i64 1
  store i64 512, ptr %herelength
  %therelength = getelementptr i64, ptr %there, i64 1
  store i64 512, ptr %therelength
  %pid = call i32 @getpid()
  %returns = call ptr @find(i64 %lr)
  %linked = icmp ne ptr %returns, null
  br i1 %linked, label %caller, label %block
block:
  ; read by the system, which refuses what is not there: the stack may end soon
  %k = phi i64 [0, %link], [%k1, %nextblock]
  %offset = shl i64 %k, 9
  %from = add i64 %sp, %offset
  store i64 %from, ptr %there
  %got = call i64 @process_vm_readv(i32 %pid, ptr %here, i64 1, ptr %there, i64 1, i64 0)
  %whole = icmp eq i64 %got, 512
  br i1 %whole, label %word, label %out
word:
  %j = phi i64 [0, %block], [%j1, %nextword]
  %wp = getelementptr i64, ptr %words, i64 %j
  %address = load i64, ptr %wp
  %e = call ptr @find(i64 %address)
  %hit = icmp ne ptr %e, null
  br i1 %hit, label %check, label %nextword
check:
  %start = load i64, ptr %e
  %later = icmp ne i64 %start, %address  ; a pointer to a kernel is no place to return to
  br i1 %later, label %caller, label %nextword
nextword:
  %j1 = add i64 %j, 1
  %morewords = icmp ult i64 %j1, 64
  br i1 %morewords, label %word, label %nextblock
nextblock:
  %k1 = add i64 %k, 1
  %moreblocks = icmp ult i64 %k1, 16
  br i1 %moreblocks, label %block, label %out
caller:
  %who = phi ptr [%returns, %link], [%e, %check]
  call void @tell(ptr %who)
  %w = call i64 @write(i32 2, ptr @called, i64 44)
  br label %out
out:
  ; the handler of before sees the same fault again when we return
  %before = load ptr, ptr @aril_fault_before
  %s = zext i32 %signal to i64
  %b = mul i64 %s, 152
  %old = getelementptr i8, ptr %before, i64 %b
  %r = call i32 @sigaction(i32 %signal, ptr %old, ptr null)
  ret void
}
"""


class _Table:
    """The ranges of loaded kernels, where the handler finds them."""

    def __init__(self, code: LoadedObject) -> None:
        self._code = code
        self._entries = mmap.mmap(-1, CAPACITY * ENTRY.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._before = (ctypes.c_ubyte * (_SIGACTION * 65))()
        self._messages: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._unused: list[int] = []
        self._used = 0
        self._lock = renewed_in_child(self, "_lock")
        entries = ctypes.addressof(ctypes.c_char.from_buffer(self._entries))
        symbols = code.symbols
        for name, value in (("table", entries), ("before", ctypes.addressof(self._before))):
            ctypes.c_uint64.from_address(symbols[f"aril_fault_{name}"]).value = value
        self._count = ctypes.c_uint64.from_address(symbols["aril_fault_count"])
        action = struct.pack("<Q128xi4xQ", symbols["aril_fault"], _SA_SIGINFO, 0)
        sigaction = ctypes.CDLL(None).sigaction
        sigaction.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        for number in SIGNALS:
            sigaction(number, action, ctypes.addressof(self._before) + _SIGACTION * number)

    def add(self, start: int, size: int, name: str) -> int:
        with self._lock:
            slot = self._unused.pop() if self._unused else self._used
            if slot >= CAPACITY:
                return -1
            self._used = max(self._used, slot + 1)
            text = ctypes.create_string_buffer(f"\naril: kernel crashed: {name}\n".encode())
            self._messages[slot] = text
            ENTRY.pack_into(
                self._entries, slot * ENTRY.size, start, start + size, ctypes.addressof(text), len(text) - 1
            )
            self._count.value = self._used
            return slot

    def remove(self, slot: int) -> None:
        with self._lock:
            ENTRY.pack_into(self._entries, slot * ENTRY.size, 0, 0, 0, 0)
            del self._messages[slot]
            self._unused.append(slot)


_table: _Table | None = None


def install() -> None:
    """Have crashes in kernels end with the kernel's name. Once a process; nothing where that is not possible."""
    global _table
    arch = host_target().arch
    if _table is None and arch in _PLACES and os.name == "posix":
        try:
            text = _TEXT
            for name, place in zip(("PC", "SP", "LR"), _PLACES[arch], strict=True):
                text = text.replace(f"{{{name}}}", str(place))
            _table = _Table(load_object(compile_cached(text, generic_target(arch))))
        except (ObjectError, OSError):
            return  # a comfort only


def register(code: LoadedObject, name: str) -> int:
    """Note that `code` is the kernel `name`; the number that `forget` takes, -1 if nothing was noted."""
    return _table.add(*code.extent, name) if _table is not None else -1


def forget(slot: int) -> None:
    """The code of `register` is about to go."""
    if slot >= 0 and _table is not None:
        _table.remove(slot)
