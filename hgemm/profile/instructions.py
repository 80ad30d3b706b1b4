"""The instruction mix of machine code: what one step of the main loop issues, and what a kernel's PTX asks for.

The main loop is found in the control flow and not by pattern: compilers move waiting loops behind the last EXIT, so
that a jump backwards need not be a loop. A loop is what dominance makes one: its head is on every way to its end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TENSOR = ("HMMA", "HGMMA")
"""Tensor-core products of 16-bit floats: mma.sync of a warp, wgmma of four warps."""

COUNTED = ("HMMA", "HGMMA", "LDSM", "LDS", "STS", "LDGSTS", "UTMALDG", "UTMASTG", "SYNCS", "BAR", "LDL", "STL")
"""Opcodes that are counted by name; the rest is in the total."""

PTX_PATTERNS = {
    "wgmma": r"\bwgmma\.mma_async\b",
    "mma.sync": r"\bmma\.sync\b",
    "ldmatrix": r"\bldmatrix\b",
    "cp.async": r"\bcp\.async\.c[ag]\b",
    "TMA load": r"\bcp\.async\.bulk\.tensor\.\dd\.shared",
    "TMA store": r"\bcp\.async\.bulk\.tensor\.\dd\.global",
    "mbarrier": r"\bmbarrier\.",
    "bar.sync": r"\b(?:bar|barrier)\.(?:cta\.)?sync\b",
    "setmaxnreg": r"\bsetmaxnreg\b",
}


@dataclass(frozen=True)
class Loop:
    """Instructions of one pass through the main loop, loops inside it (waiting) left out. Where the compiler has put an
    epilogue inside the loop, behind a branch, it is counted too."""

    counts: Mapping[str, int]
    """Of ``COUNTED``, those that are there."""
    total: int

    @property
    def products(self) -> int:
        """Tensor-core instructions."""
        return sum(self.counts.get(opcode, 0) for opcode in TENSOR)

    @property
    def products_per_ldmatrix(self) -> float | None:
        """None where nothing is loaded by ldmatrix, as by wgmma, which reads shared memory itself."""
        loads = self.counts.get("LDSM", 0)
        return self.products / loads if loads else None


@dataclass(frozen=True)
class _Instruction:
    address: int
    guarded: bool
    opcode: str  # with its modifiers
    operands: str

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class _Block:
    instructions: list[_Instruction]
    successors: tuple[int, ...] = ()


def main_loop(sass: str) -> Loop | None:
    """The innermost loop with the most tensor-core products in one function's listing by ``cuobjdump -sass``.

    None if no loop has any, as in code that is unrolled whole.
    """
    instructions = _parse(sass)
    if not instructions:
        return None
    blocks = _blocks(instructions)
    loops = _loops(blocks)
    products = {head: _products(blocks, body) for head, body in loops.items()}
    holding = [head for head in loops if products[head]]
    innermost = [h for h in holding if not any(other != h and loops[other] < loops[h] for other in holding)]
    if not innermost:
        return None
    head = max(innermost, key=lambda h: products[h])
    body = set(loops[head])
    for other, inner in loops.items():
        if inner < loops[head] and other != head:
            body -= inner
    names = [instruction.name for index in body for instruction in blocks[index].instructions]
    counts = Counter(name for name in names if name in COUNTED)
    return Loop({name: counts[name] for name in COUNTED if counts[name]}, len(names))


def ptx_mix(ptx: str) -> dict[str, int]:
    """How often each kind of instruction of ``PTX_PATTERNS`` stands in a kernel's PTX, prologue and epilogue included;
    those that do not are left out."""
    code = re.sub(r"//[^\n]*", "", ptx)
    counts = {name: len(re.findall(pattern, code)) for name, pattern in PTX_PATTERNS.items()}
    return {name: count for name, count in counts.items() if count}


def _parse(sass: str) -> list[_Instruction]:
    found = []
    for address, guard, opcode, operands in re.findall(
        r"/\*([0-9a-f]{4,6})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", sass
    ):
        found.append(_Instruction(int(address, 16), bool(guard), opcode, operands.strip()))
    return found


def _blocks(instructions: list[_Instruction]) -> list[_Block]:
    """Basic blocks in the order of their addresses, with the numbers of the blocks that may follow each."""
    places = {instruction.address: number for number, instruction in enumerate(instructions)}
    targets = _targets(instructions)
    starts = {0}
    for number, instruction in enumerate(instructions):
        if number in targets:
            starts.update(place for address in targets[number] if (place := places.get(address)) is not None)
        if number in targets or instruction.name in ("EXIT", "RET"):
            starts.add(number + 1)
    ordered = sorted(start for start in starts if start < len(instructions))
    index = {start: number for number, start in enumerate(ordered)}
    blocks = []
    for start, end in zip(ordered, [*ordered[1:], len(instructions)], strict=True):
        last = instructions[end - 1]
        follow = [place for address in targets.get(end - 1, ()) if (place := places.get(address)) is not None]
        if end < len(instructions) and not _leaves(last):
            follow.append(end)
        blocks.append(_Block(instructions[start:end], tuple(index[place] for place in dict.fromkeys(follow))))
    return blocks


def _targets(instructions: list[_Instruction]) -> dict[int, tuple[int, ...]]:
    """Addresses that a jump may lead to, by the jump's number. BSYNC leads to what the BSSY of its barrier names."""
    found: dict[int, tuple[int, ...]] = {}
    joins: dict[str, int] = {}
    for number, instruction in enumerate(instructions):
        address = re.search(r"\b0x([0-9a-f]+)\s*$", instruction.operands)
        barrier = re.match(r"B\d+", instruction.operands)
        if instruction.name == "BRA" and address:
            found[number] = (int(address[1], 16),)
        elif instruction.name == "BSSY" and address and barrier:
            joins[barrier[0]] = int(address[1], 16)
        elif instruction.name == "BSYNC" and barrier and barrier[0] in joins:
            found[number] = (joins[barrier[0]],)
    return found


def _leaves(instruction: _Instruction) -> bool:
    """Whether what stands behind the instruction is not reached from it: a jump that depends on nothing."""
    if instruction.guarded or instruction.name not in ("BRA", "BSYNC", "EXIT", "RET"):
        return False
    return instruction.name != "BRA" or re.fullmatch(r"0x[0-9a-f]+", instruction.operands) is not None


def _loops(blocks: list[_Block]) -> dict[int, frozenset[int]]:
    """Natural loops: head -> blocks of the body, head included. Loops of one head are one."""
    dominators = _dominators(blocks)
    predecessors: dict[int, list[int]] = {number: [] for number in range(len(blocks))}
    for number, block in enumerate(blocks):
        for successor in block.successors:
            predecessors[successor].append(number)
    loops: dict[int, frozenset[int]] = {}
    for number in dominators:
        for head in blocks[number].successors:
            if head not in dominators[number]:
                continue
            body, waiting = {head}, [number]
            while waiting:
                inner = waiting.pop()
                if inner not in body:
                    body.add(inner)
                    waiting += [before for before in predecessors[inner] if before in dominators]
            loops[head] = loops.get(head, frozenset()) | body
    return loops


def _dominators(blocks: list[_Block]) -> dict[int, set[int]]:
    """For each block that can be reached, the blocks on every way to it, itself included."""
    reached, waiting = {0: 0}, [0]
    while waiting:
        for successor in blocks[waiting.pop()].successors:
            if successor not in reached:
                reached[successor] = len(reached)
                waiting.append(successor)
    predecessors: dict[int, list[int]] = {number: [] for number in reached}
    for number in reached:
        for successor in blocks[number].successors:
            predecessors[successor].append(number)
    dominators = {number: set(reached) for number in reached}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for number in reached:
            if number == 0:
                continue
            common = set.intersection(*(dominators[p] for p in predecessors[number])) | {number}
            if common != dominators[number]:
                dominators[number], changed = common, True
    return dominators


def _products(blocks: list[_Block], body: Iterable[int]) -> int:
    return sum(instruction.name in TENSOR for index in body for instruction in blocks[index].instructions)
