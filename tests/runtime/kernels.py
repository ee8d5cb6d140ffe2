"""Small kernels in LLVM IR, with the ABI of the CPU device, that the runtime's tests share."""

from aril.device import CompiledKernel
from aril.runtime.llvm import compile_cached

# data[chunk] += value
ADD = """
define void @add(ptr noalias %args, i64 %chunk, ptr %scratch) {
  %data = load ptr, ptr %args
  %p1 = getelementptr i64, ptr %args, i64 1
  %value = load i64, ptr %p1
  %p = getelementptr i64, ptr %data, i64 %chunk
  %old = load i64, ptr %p
  %new = add i64 %old, %value
  store i64 %new, ptr %p
  ret void
}
"""

# out[chunk] = sum(data[0..n)), so it sees whether all of an earlier record was done
TOTAL = """
define void @total(ptr noalias %args, i64 %chunk, ptr %scratch) {
entry:
  %data = load ptr, ptr %args
  %p1 = getelementptr ptr, ptr %args, i64 1
  %out = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %p2
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %sum = phi i64 [0, %entry], [%sum1, %loop]
  %p = getelementptr i64, ptr %data, i64 %i
  %v = load i64, ptr %p
  %sum1 = add i64 %sum, %v
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %loop, label %done
done:
  %to = getelementptr i64, ptr %out, i64 %chunk
  store i64 %sum1, ptr %to
  ret void
}
"""

# fills its scratch with its chunk number, reads it back, and notes the address
SCRATCH = """
define void @scratch(ptr noalias %args, i64 %chunk, ptr %scratch) {
entry:
  %out = load ptr, ptr %args
  br label %fill
fill:
  %i = phi i64 [0, %entry], [%i1, %fill]
  %p = getelementptr i64, ptr %scratch, i64 %i
  store volatile i64 %chunk, ptr %p
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 1024
  br i1 %more, label %fill, label %read
read:
  %j = phi i64 [0, %fill], [%j1, %read]
  %sum = phi i64 [0, %fill], [%sum1, %read]
  %q = getelementptr i64, ptr %scratch, i64 %j
  %v = load volatile i64, ptr %q
  %sum1 = add i64 %sum, %v
  %j1 = add i64 %j, 1
  %again = icmp ult i64 %j1, 1024
  br i1 %again, label %read, label %done
done:
  %where = ptrtoint ptr %scratch to i64
  %low = and i64 %where, 63
  %result = add i64 %sum1, %low
  %to = getelementptr i64, ptr %out, i64 %chunk
  store i64 %result, ptr %to
  ret void
}
"""

# out[chunk] = the address of the scratch, which tells who ran it, after some microseconds
OWNER = """
define void @owner(ptr noalias %args, i64 %chunk, ptr %scratch) {
entry:
  %out = load ptr, ptr %args
  br label %wait
wait:
  %i = phi i64 [0, %entry], [%i1, %wait]
  store volatile i64 %i, ptr %scratch
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, 10000
  br i1 %more, label %wait, label %done
done:
  %where = ptrtoint ptr %scratch to i64
  %to = getelementptr i64, ptr %out, i64 %chunk
  store i64 %where, ptr %to
  ret void
}
"""


def kernel(text: str, name: str, nbufs: int, nvars: int = 0, scratch_bytes: int = 0, chunks: int = 1) -> CompiledKernel:
    return CompiledKernel(name, compile_cached(text), nbufs, nvars, scratch_bytes, chunks)
