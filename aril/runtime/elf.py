"""A loader of relocatable ELF64 objects (x86-64, AArch64), so that cached kernels run without importing LLVM.

In come an object file's bytes; out goes executable memory and the addresses of its symbols. Sources: the ELF-64 object
file format, the System V psABI for x86-64 (relocations, section 4.4), ELF for the Arm 64-bit Architecture (AAELF64).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from aril.runtime.libc import libc

PAGE = mmap.PAGESIZE
SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 4, 8
SHF_WRITE, SHF_ALLOC = 1, 2
SHN_UNDEF, SHN_ABS, SHN_LORESERVE = 0, 0xFFF1, 0xFF00
EM_X86_64, EM_AARCH64 = 62, 183
MACHINE = {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}
LARGEST = 1 << 28  # a kernel's object is kilobytes; more means a damaged size field

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")


class ObjectError(ValueError):
    """Bytes that are not an object file we can load; the message says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int


class LoadedObject:
    """Code in memory, readable and executable but not writable. `symbols` maps its function names to addresses.

    The memory goes back when this object is collected: whoever keeps an address keeps the object.
    """

    __slots__ = ("_base", "_size", "symbols")

    def __init__(self, base: int, size: int, symbols: dict[str, int]) -> None:
        self._base, self._size, self.symbols = base, size, symbols

    @property
    def extent(self) -> tuple[int, int]:
        """Address and number of bytes."""
        return self._base, self._size

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter a daemon thread may still run this code, and the system unmaps it anyway.
        if self._base and not finalizing():
            _munmap(self._base, self._size)


def load_object(data: bytes, machine: int | None = None) -> LoadedObject:
    """Load a relocatable object. ObjectError says what is wrong with `data`, or which symbol nobody defines."""
    machine = MACHINE.get(platform.machine()) if machine is None else machine
    try:
        return _load(data, machine)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise ObjectError(f"damaged object file of {len(data)} bytes: {error}") from error


def _load(data: bytes, machine: int | None) -> LoadedObject:
    sections = _sections(data, machine)
    symbols = _symbols(data, sections)
    relocations = _relocations(data, sections, symbols)

    # Read-only and executable sections first, then the linkage table (a slot and a jump a symbol), then writable ones.
    places: dict[int, int] = {}
    at = 0
    groups: list[list[int]] = [[], []]
    for index, section in enumerate(sections):
        if section.flags & SHF_ALLOC:
            groups[bool(section.flags & SHF_WRITE)].append(index)
    for index in groups[0]:
        at = _place(sections, index, at, places)
    table = -(-at // 16) * 16
    slots = {number: place for place, number in enumerate(sorted({one[3] for one in relocations}))}
    at = table + 24 * len(slots)
    readonly = -(-at // PAGE) * PAGE
    at = readonly
    for index in groups[1]:
        at = _place(sections, index, at, places)
    total = max(PAGE, -(-at // PAGE) * PAGE)
    if total > LARGEST:
        raise ObjectError(f"the object asks for {total} bytes of memory; a kernel has far fewer")

    base = _mmap(total)
    loaded = LoadedObject(base, total, {})
    try:
        image = memoryview((ctypes.c_ubyte * total).from_address(base)).cast("B")
        for index, place in places.items():
            section = sections[index]
            if section.kind != SHT_NOBITS:
                image[place : place + section.size] = data[section.offset : section.offset + section.size]
        addresses = [_address(symbol, places, sections, base) for symbol in symbols]
        for number, slot in slots.items():
            if addresses[number] is None:
                addresses[number] = external_symbol(symbols[number].name)
            _write_slot(image, table + 24 * slot, addresses[number] or 0, machine)
        relocate = _relocate_x86_64 if machine == EM_X86_64 else _relocate_aarch64
        for where, kind, target, number, addend in relocations:
            slot_at = base + table + 24 * slots[number]
            relocate(image, places[target] + where, base, kind, addresses[number] or 0, addend, slot_at)
        _protect(base, readonly, mmap.PROT_READ | mmap.PROT_EXEC)
        _clear_instruction_cache(base, readonly, machine)
    except BaseException:
        del loaded
        raise
    for number, symbol in enumerate(symbols):
        if symbol.name and symbol.section not in (SHN_UNDEF,) and addresses[number] is not None:
            loaded.symbols[symbol.name] = addresses[number] or 0
    return loaded


def _place(sections: list[_Section], index: int, at: int, places: dict[int, int]) -> int:
    align = max(1, sections[index].align)
    if align & (align - 1) or align > PAGE:
        raise ObjectError(f"section {index} wants an alignment of {align} bytes")
    places[index] = -(-at // align) * align
    return places[index] + sections[index].size


def _sections(data: bytes, machine: int | None) -> list[_Section]:
    if len(data) < _HEADER.size:
        raise ObjectError(f"an object file has at least {_HEADER.size} bytes, this one {len(data)}")
    ident, kind, found, _, _, _, offset, _, _, _, _, entry, count, _ = _HEADER.unpack_from(data)
    if ident[:7] != b"\x7fELF\x02\x01\x01" or kind != 1:
        raise ObjectError("not a relocatable little-endian ELF64 object")
    if found != machine:
        raise ObjectError(f"the object is for machine {found} (62 x86-64, 183 AArch64), this machine is {machine}")
    if entry != _SECTION.size or offset + count * entry > len(data):
        raise ObjectError(f"the table of {count} sections lies outside of the {len(data)} bytes")
    sections = []
    for index in range(count):
        _, kind, flags, _, at, size, link, info, align, _ = _SECTION.unpack_from(data, offset + index * entry)
        if kind != SHT_NOBITS and at + size > len(data):
            raise ObjectError(f"section {index} ends at byte {at + size} of {len(data)}")
        if size > LARGEST:
            raise ObjectError(f"section {index} has {size} bytes; a kernel has far fewer")
        sections.append(_Section(kind, flags, at, size, link, info, align))
    return sections


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    tables = [one for one in sections if one.kind == SHT_SYMTAB]
    if len(tables) != 1:
        raise ObjectError(f"an object has one symbol table, this one {len(tables)}")
    table = tables[0]
    if table.link >= len(sections):
        raise ObjectError("the symbol table names a string table that does not exist")
    names = sections[table.link]
    if names.kind == SHT_NOBITS:
        raise ObjectError("the string table has no content")
    text = data[names.offset : names.offset + names.size]
    symbols = []
    for at in range(table.offset, table.offset + table.size - _SYMBOL.size + 1, _SYMBOL.size):
        name, _, _, section, value, _ = _SYMBOL.unpack_from(data, at)
        if name >= max(1, len(text)):
            raise ObjectError(f"a symbol's name starts at byte {name} of {len(text)}")
        end = text.find(b"\0", name)
        if end < 0:
            raise ObjectError("a symbol's name does not end")
        symbols.append(_Symbol(text[name:end].decode(), section, value))
    return symbols


def _relocations(data: bytes, sections: list[_Section], symbols: list[_Symbol]) -> list[tuple[int, int, int, int, int]]:
    """(offset, type, section patched, symbol, addend) of all relocations of loaded sections."""
    found = []
    for section in sections:
        if section.kind != SHT_RELA:
            continue
        if section.info >= len(sections):
            raise ObjectError("relocations for a section that does not exist")
        target = sections[section.info]
        if not target.flags & SHF_ALLOC:
            continue
        if target.kind == SHT_NOBITS:
            raise ObjectError("relocations for a section without content")
        for at in range(section.offset, section.offset + section.size - _RELA.size + 1, _RELA.size):
            where, info, addend = _RELA.unpack_from(data, at)
            number, kind = info >> 32, info & 0xFFFFFFFF
            if number >= len(symbols) or where + 4 > target.size:
                raise ObjectError(f"a relocation at byte {where} of {target.size} for symbol {number}")
            found.append((where, kind, section.info, number, addend))
    return found


def _address(symbol: _Symbol, places: dict[int, int], sections: list[_Section], base: int) -> int | None:
    """Where a symbol is; None if it is defined elsewhere, or in a section that is not loaded."""
    if symbol.section == SHN_ABS:
        return symbol.value
    if symbol.section == SHN_UNDEF or symbol.section >= SHN_LORESERVE or symbol.section not in places:
        return None
    if symbol.value > sections[symbol.section].size:
        raise ObjectError(f"symbol {symbol.name!r} lies outside of its section")
    return base + places[symbol.section] + symbol.value


def _write_slot(image: memoryview, at: int, address: int, machine: int | None) -> None:
    """A linkage table entry: the address, and 16 bytes of code that jump there (functions may be 2 GiB away)."""
    image[at : at + 8] = struct.pack("<Q", address)
    if machine == EM_X86_64:
        image[at + 8 : at + 14] = b"\xff\x25" + struct.pack("<i", -14)  # jmp [rip - 14]
    else:
        image[at + 8 : at + 16] = struct.pack("<II", 0x58FFFFD0, 0xD61F0200)  # ldr x16, -8; br x16


def _patch(image: memoryview, at: int, form: str, value: int) -> None:
    size = struct.calcsize(form)
    if at + size > len(image):
        raise ObjectError("a relocation ends outside of the object")
    try:
        image[at : at + size] = struct.pack(form, value)
    except struct.error as error:
        raise ObjectError(f"a relocation's value {value:#x} does not fit its field") from error


def _relocate_x86_64(image: memoryview, at: int, base: int, kind: int, symbol: int, addend: int, slot: int) -> None:
    place = base + at
    if kind == 1:  # R_X86_64_64
        _patch(image, at, "<Q", (symbol + addend) % 2**64)
    elif kind in (2, 4):  # PC32, PLT32; through the table when too far
        value = symbol + addend - place
        if not -(2**31) <= value < 2**31:
            if kind == 2:
                raise ObjectError("a PC32 relocation names data more than 2 GiB away; compile position-independent")
            value = slot + 8 + addend - place
        _patch(image, at, "<i", value)
    elif kind in (9, 41, 42):  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
        _patch(image, at, "<i", slot + addend - place)
    elif kind == 10:  # 32
        _patch(image, at, "<I", symbol + addend)
    elif kind == 11:  # 32S
        _patch(image, at, "<i", symbol + addend)
    elif kind == 24:  # PC64
        _patch(image, at, "<q", symbol + addend - place)
    elif kind != 0:
        raise ObjectError(f"relocation type {kind} of x86-64 is not supported")


# AArch64: bits of the offset field that the access size shifts out, LDST8/16/32/64/128_ABS_LO12_NC.
_LDST_SHIFT = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _relocate_aarch64(image: memoryview, at: int, base: int, kind: int, symbol: int, addend: int, slot: int) -> None:
    place, value = base + at, symbol + addend
    if kind == 257:  # ABS64
        _patch(image, at, "<Q", value % 2**64)
        return
    if kind == 258:  # ABS32
        _patch(image, at, "<I", value)
        return
    if kind == 260:  # PREL64
        _patch(image, at, "<q", value - place)
        return
    if kind == 261:  # PREL32
        _patch(image, at, "<i", value - place)
        return
    if kind in (0, 256):
        return
    (word,) = struct.unpack("<I", bytes(image[at : at + 4]))
    if kind in (282, 283):  # JUMP26, CALL26
        offset = value - place
        if not -(2**27) <= offset < 2**27:
            offset = slot + 8 - place
        word = word & ~0x3FFFFFF | offset >> 2 & 0x3FFFFFF
    elif kind in (275, 276, 311):  # ADR_PREL_PG_HI21, its unchecked form, ADR_GOT_PAGE
        pages = ((slot if kind == 311 else value) >> 12) - (place >> 12)
        if not -(2**20) <= pages < 2**20:
            raise ObjectError("an ADRP relocation names data more than 4 GiB away; compile position-independent")
        word = word & ~0x60FFFFE0 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == 277:  # ADD_ABS_LO12_NC
        word = word & ~0x3FFC00 | (value & 0xFFF) << 10
    elif kind in _LDST_SHIFT:
        word = word & ~0x3FFC00 | (value & 0xFFF) >> _LDST_SHIFT[kind] << 10
    elif kind == 312:  # LD64_GOT_LO12_NC
        word = word & ~0x3FFC00 | (slot & 0xFFF) >> 3 << 10
    else:
        raise ObjectError(f"relocation type {kind} of AArch64 is not supported")
    _patch(image, at, "<I", word & 0xFFFFFFFF)


# ------------------------------------------------------------------------------------------------------- the system

_LIBRARIES = (None, "libc.so.6", "libm.so.6", "libgcc_s.so.1")


@lru_cache(maxsize=256)
def external_symbol(name: str) -> int:
    """The address of a function of the C library, its mathematics or the compiler's support library."""
    for library in _LIBRARIES:
        try:
            return ctypes.cast(_library(library)[name], ctypes.c_void_p).value or 0
        except (OSError, AttributeError, ValueError):
            continue
    raise ObjectError(f"the object calls {name!r}, which neither it nor libc, libm or libgcc defines")


@lru_cache(maxsize=8)
def _library(name: str | None) -> ctypes.CDLL:
    return ctypes.CDLL(name, use_errno=True)


def _mmap(size: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"no memory for {size} bytes of code (errno {ctypes.get_errno()})")
    return int(address)


def _munmap(base: int, size: int) -> None:
    libc().munmap(base, size)


def _protect(base: int, size: int, protection: int) -> None:
    if size and libc().mprotect(base, size, protection) != 0:
        raise OSError(ctypes.get_errno(), "the system refuses executable memory (mprotect)")


def _clear_instruction_cache(base: int, size: int, machine: int | None) -> None:
    """AArch64 does not see new code until told so; x86-64 does."""
    if machine == EM_AARCH64 and platform.machine() == "aarch64":
        clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
        clear.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        clear(base, base + size)
