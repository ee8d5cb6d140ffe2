"""The compiler: LLVM IR text in, an object file (or assembly text) out, through llvmlite. No system compiler is needed.

Importing llvmlite costs 0.16 s, so it happens at the first compilation, never when a cached object answers.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any

from aril.forks import renewed_in_child
from aril.runtime import cache
from aril.runtime.target import HostTarget, beyond, host_target

# A change of passes or options below changes this: it is part of the key of cached objects.
COMPILER = "llvm22-passes4"

# Level 1 are these function passes, level 2 LLVM's own O2 without its vectorisers and unrollers (our code is already in
# shape, and done again it spills). Measured on generated kernels (softmax, matmul, convolution and its gradients): the
# same run times within 5%, in 60% of the compile time; loop-invariant code is moved by the code generator as well.
QUICK = ("sroa", "simplify_cfg", "instruction_combine", "simplify_cfg")
LEVEL = 1


class CompileError(RuntimeError):
    """LLVM refused some IR: names the kernel, the line, and what LLVM said."""


def compile_ir(text: str, target: HostTarget | None = None, level: int = LEVEL) -> bytes:
    """Compile one module to an object file for `target` (default: this machine).

    `level` chooses the IR passes: 0 none, 1 the quick ones, 2 all of LLVM's. CompileError for text that is not valid
    IR, or not of this target.
    """
    machine, module = _optimised(text, target or host_target(), level)
    return bytes(_emit(machine, module, text, True))


def compile_ir_to_asm(text: str, target: HostTarget | None = None, level: int = LEVEL) -> str:
    """The same as assembly text, for people to read."""
    machine, module = _optimised(text, target or host_target(), level)
    return str(_emit(machine, module, text, False))


def optimise_ir(text: str, target: HostTarget | None = None, level: int = LEVEL) -> str:
    """The IR after LLVM's passes, for people to read."""
    return str(_optimised(text, target or host_target(), level)[1])


def compile_cached(text: str, target: HostTarget | None = None, level: int = LEVEL) -> bytes:
    """`compile_ir` through the disk cache: a hit imports no LLVM."""
    target = target or host_target()
    key = f"{COMPILER}|{target.key}|{level}|{text}"
    found = cache.get("object", key)
    if found is None:
        found = compile_ir(text, target, level)
        cache.put("object", key, found)
    return found


def host_features(level: str = "") -> tuple[str, str]:
    """LLVM's names of this machine's CPU and features, those beyond CPU_TARGET=`level` turned off."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features().items()
    signs = (f"{'+' if has and not beyond(level, name) else '-'}{name}" for name, has in features)
    return llvm.get_host_cpu_name(), ",".join(signs)


_lock = renewed_in_child(sys.modules[__name__], "_lock")


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    with _lock:
        # Neighbouring stores are vectors before LLVM sees them. It would look for more among all pairs of stores: of a
        # tile that is stored element by element that took five sixths of the kernel's compile time, and found none.
        llvm.set_option("", "-combiner-store-merging=false")
        # Both schedulers of the code generator compare every load and store of a block with those before it that may
        # touch the same memory, and keep up to 1000 of them in mind; past this number all of them are one barrier. A
        # block of a tile has hundreds: they took half of the time of such a kernel, and its code is nearly the same.
        llvm.set_option("", "-dag-maps-huge-region=64")
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        llvm.initialize_native_asmparser()
    return llvm


@lru_cache(maxsize=8)
def _machine(target: HostTarget) -> Any:
    llvm = _llvm()
    cpu, features = target.cpu, target.features
    if target.is_host:
        cpu, features = host_features(target.level)
    if target.vector_bytes == 64:
        features += ",-prefer-256-bit"  # else LLVM halves what we made 512 bits wide on purpose
    try:
        factory = llvm.Target.from_triple(target.triple)
        return factory.create_target_machine(
            cpu=cpu, features=features.strip(","), opt=2, reloc="pic", codemodel="small"
        )
    except RuntimeError as error:
        raise CompileError(f"LLVM has no target {target.triple} with CPU {cpu!r}: {error}") from error


def _optimised(text: str, target: HostTarget, level: int) -> tuple[Any, Any]:
    llvm = _llvm()
    machine = _machine(target)
    try:
        # A context of its own: what a module names does not pile up in the process.
        module = llvm.parse_assembly(text, context=llvm.create_context())
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise _explained(error, text, "is not valid LLVM IR") from error
    if level:
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = False
        options.loop_unrolling = options.loop_interleaving = False
        builder = llvm.create_pass_builder(machine, options)
        if level == 1:
            manager = llvm.create_new_function_pass_manager()
            for name in QUICK:
                getattr(manager, f"add_{name}_pass")()
            for function in module.functions:
                if not function.is_declaration:
                    manager.run(function, builder)
        else:
            builder.getModulePassManager().run(module, builder)
    return machine, module


def _emit(machine: Any, module: Any, text: str, as_object: bool) -> Any:
    try:
        return machine.emit_object(module) if as_object else machine.emit_assembly(module)
    except RuntimeError as error:
        raise _explained(error, text, "was not accepted by LLVM's code generator") from error


def _explained(error: RuntimeError, text: str, what: str) -> CompileError:
    """LLVM's message, which shows the offending line, with the kernel's name."""
    name = re.search(r"define[^@\n]*@\"?([\w.$-]+)", text)
    message = str(error).strip()
    return CompileError(f"kernel {name[1] if name else '?'!r} {what}: {message}")
