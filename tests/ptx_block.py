"""Runs a block of a kernel from its PTX as far as its warps wait for one another: mbarriers, barriers, registers, TMA.
Blocks of a cluster are run together.

What only computes elements of C is left out: a register that depends on it is unknown, and no branch may. Lanes of a
warp run together. Which warp goes on, and which copy lands, is drawn at every point where others could tell. When
a store of C has read its piece is not: see ``ptx_staging``.
"""

import functools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from ptx_staging import Race, Staging

from hgemm.config import Config
from hgemm.triton_kernels.specialized_configs import blocks

A, B, C = 0, 5, 10  # the parameters that are their descriptors: of what is passed for one, it is the first of five
LANES, ALL = np.arange(32), np.full(32, True)
SHARED, PARAMETERS = 0, 1 << 30  # addresses: of shared memory, and of a parameter at its index from here on
STATIC = 1 << 20  # of what is declared in shared memory
WINDOW = 1 << 24  # of shared memory; that of the block of rank r in a cluster is also at r + 1 of them
COMPARED = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip
COMPUTED: dict[str, Callable[..., np.ndarray]] = {
    "mov": lambda a, high=0: high << 16 | a, "cvt": lambda a: a, "cvta": lambda a: a, "add": np.add, "sub": np.subtract,
    "mul.lo": np.multiply, "mul.hi": lambda a, b: a * b >> 32, "mad.lo": lambda a, b, c: a * b + c,
    "min": np.minimum, "max": np.maximum,
    "div": lambda a, b: np.sign(a) * np.sign(b) * (abs(a) // abs(b)), "shl": np.left_shift, "shr": np.right_shift,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "bfe": lambda a, first, bits: (a >> first) & ((1 << bits) - 1), "selp": lambda a, b, p: np.where(p, a, b),
    "not.b32": np.invert, "not.pred": np.logical_not,
    "shfl.sync": lambda a, lane, *_: a[lane], "mapa": lambda a, rank: a + (rank + 1) * WINDOW,
}  # fmt: skip


@functools.cache
def in_all_lanes(number: int) -> np.ndarray:
    """Not to be changed, as no register is."""
    return np.full(32, number)


class Hang(Exception):
    """No warp can go on."""


def box_shapes(config: str, layout: str) -> dict[int, tuple[int, int]]:
    """Rows of what one copy moves to or from a block, and the bytes of each: 128 of a stored row, or all there are."""
    (a, b, c), (down, across) = blocks(config, *layout), Config.parse(config).cluster_shape
    a = (a[0] // down, a[1]) if layout[0] == "n" else (a[0], a[1] // down)
    b = (b[0], b[1] // across) if layout[1] == "n" else (b[0] // across, b[1])
    boxes = {A: a, B: b, C: (c[0] // down, c[1] // across)}
    return {matrix: (rows, min(128, 2 * columns)) for matrix, (rows, columns) in boxes.items()}


@dataclass
class Mbarrier:
    count: int
    phase: int = 0
    arrived: int = 0
    bytes: int = 0

    def change(self, arrivals: int, bytes: int) -> None:
        self.arrived += arrivals
        self.bytes += bytes
        if self.arrived > self.count:
            raise Race("more arrivals at an mbarrier than it counts")
        if self.arrived == self.count and not self.bytes:
            self.phase, self.arrived = self.phase + 1, 0


@dataclass
class Box:
    """What a copy wrote, or is writing, to shared memory."""

    turn: int  # of the ring: the steps that the copying warp had begun, this one among them
    matrix: int  # the index of the descriptor's parameter
    corner: tuple[int, int]
    landed: bool = False


@dataclass
class Warp:
    index: int
    registers: dict[str, np.ndarray] = field(default_factory=dict)
    allowed: int = 0  # registers a thread
    reading: list[set[int]] = field(default_factory=list)  # boxes' addresses, by group of wgmma in flight
    open: set[int] = field(default_factory=set)
    # What the wgmma of each turn of the ring read, every 64 rows of A and columns of B: the turn, the matrix, the
    # column and the row of what is stored of it.
    products: list[set[tuple[int, ...]]] = field(default_factory=list)
    operands: set[tuple[int, ...]] = field(default_factory=set)  # of the group that is open
    stores: list[tuple[int, int]] = field(default_factory=list)  # corners of the pieces of C
    order: str = ""  # of what it began: M a wgmma that overwrites its sums, m one that adds to them, S a store
    waits: str = ""
    alone: bool = False  # the kernel in front is over
    met: int = 0  # how often it arrived where the cluster meets


class Block:
    """``numbers``: the last 32-bit parameters. ``boxes``: see ``box_shapes``."""

    def __init__(
        self,
        ptx: str,
        numbers: list[int],
        boxes: dict[int, tuple[int, int]],
        program: int,
        programs: int,
        seed: int,
        rank: int = 0,
        blocks: int = 1,
    ):
        head, body = ptx[ptx.index(".entry") :].split("\n{", 1)
        declared = re.findall(r"\.param\b[^,)]*?(\.\w+) (\w+_param_\d+)(?:\[\d+\])?[,)\s]", head)
        narrow = [name for kind, name in declared if kind == ".u32"]
        self.parameters = dict(zip(narrow[-len(numbers) :], numbers, strict=True))
        self.box_shapes, self.random = boxes, random.Random(seed)
        self.special = {"%clusterid.x": program, "%nclusterid.x": programs, "%cluster_ctarank": rank}
        self.special |= {"%ctaid.x": blocks * program + rank, "%nctaid.x": blocks * programs, "global_smem": SHARED}
        self.special |= dict.fromkeys(re.findall(r"\.shared \.align \d+ \.b8 (\w+)\[", body), STATIC)
        self.cluster, self.rank = [self], rank
        threads, maxnreg = (int(re.findall(rf"\.{name} (\d+)", head)[0]) for name in ("reqntid", "maxnreg"))
        self.warps = [Warp(index, allowed=maxnreg) for index in range(threads // 32)]
        # Each warp, and last the copy engine, is quick or slow: the ring is full at times, and empty at others. So is
        # each block of a cluster.
        pace = self.random.choice((1, 100)) if blocks > 1 else 1
        self.paces = [pace * self.random.choice((1, 10, 100)) for _ in range(len(self.warps) + 1)]
        self.free_registers = 0  # of those that the block was launched with
        self.mbarriers: dict[int, Mbarrier] = {}
        self.memory: dict[int, int] = {}
        self.boxes: dict[int, Box] = {}
        self.staging = Staging()
        self.flying: list[tuple[Box, Mbarrier, int]] = []
        self.turn = 0
        self.running: dict[int, Iterator[Callable[[], bool]]] = {}  # warps that have not returned
        self.copies: list[Box] = []
        self.barriers: dict[int, tuple[int, int]] = {}  # warps that have come, and how often it opened
        body = re.sub(r"//.*", "", body[: body.index("$L__func_end0")])
        tables = r"^\s*(\S+):\s*\.branchtargets([^;]*);"
        self.tables = {name: re.findall(r"\$\w+", text) for name, text in re.findall(tables, body, re.MULTILINE)}
        # Without tables, directives, and the labels of loops that wait: a wait is one step here.
        body = re.sub(rf"{tables}|^\s*\.\w.*|^\s*\w+:\s*$", "", body, flags=re.MULTILINE)
        self.code: list[tuple[str, str, list[str]]] = []  # guard, instruction, operands
        self.labels: dict[str, int] = {}
        for part in re.findall(r"\$L\w+(?=:)|[@a-z][^;]*;", body):
            if part.startswith("$"):
                self.labels[part] = len(self.code)
            elif match := re.fullmatch(r"(?:@(!?%\w+)\s+)?([a-z][\w.:]*)\s*([^;]*);", part, re.DOTALL):
                self.code.append((match[1] or "", match[2], re.findall(r"[^\s,|{}\[\]]+", match[3])))

    def value(self, warp: Warp, text: str, kind: str) -> np.ndarray:
        """KeyError or ValueError if it is not known."""
        base, _, offset = text.partition("+")
        if base == "%tid.x":
            number = 32 * warp.index + LANES
        elif base.startswith("%") and base not in self.special:
            number = warp.registers[base]
        elif base in self.special:
            number = in_all_lanes(self.special[base])
        elif "_param_" in base:
            number = in_all_lanes(PARAMETERS + int(base.rpartition("_")[2]))
        else:
            number = in_all_lanes(int(base))
        if offset:
            number = number + int(offset)
        bits = int(kind[1:]) if kind[1:] in ("16", "32") else 0
        if bits and kind[0] == "s":
            return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        return number % (1 << bits) if bits else number

    def run(self) -> None:
        """Until all warps have returned. Raises Hang or Race."""
        run_cluster([self])

    def steps(self, warp: Warp) -> Iterator[Callable[[], bool]]:
        """Runs a warp; yields, where it may have to wait, whether it can go on."""
        at = 0
        while True:
            guard, name, operands = self.code[at]
            at += 1
            lanes = ALL
            if guard:
                lanes = warp.registers[guard.lstrip("!")].astype(bool) ^ guard.startswith("!")
                if not lanes.any():
                    continue
            stem, kind = name.split(".")[0], name.split(".")[-1]
            if stem in ("bra", "brx"):
                assert lanes.all(), "lanes of a warp part"
                table = self.tables.get(operands[-1])
                at = self.labels[table[int(self.value(warp, operands[0], "u32")[0])] if table else operands[0]]
            elif stem == "ret":
                self.staging.leave(warp.index)
                return
            elif stem in ("mbarrier", "bar", "barrier", "setmaxnreg") or name.startswith("cp.async.bulk.tensor"):
                warp.waits = f"{name} {operands}"
                yield lambda: True
                yield self.synchronise(warp, name, operands, lanes)
            elif stem == "wgmma":
                self.multiply(warp, name, operands)
            elif name == "griddepcontrol.wait":
                warp.alone = True
            elif stem == "elect":
                warp.registers[operands[1]] = LANES == 0
            elif stem in ("cp", "fence"):
                self.stage(warp, name, operands)
            else:
                self.compute(warp, stem, name, kind, operands)

    def compute(self, warp: Warp, stem: str, name: str, kind: str, operands: list[str]) -> None:
        if stem == "stmatrix":
            assert ".x4." in name
            self.staging.write(warp.index, self.value(warp, operands[0], "u32"), 16)  # a row of eight elements a lane
            return
        try:
            if name == "ld.param.b32":
                result = np.full(32, self.parameters[operands[1]])
            elif name == "ld.shared.b8":
                result = np.array([self.memory[int(byte)] for byte in self.value(warp, operands[1], "u32")])
            elif name == "ld.shared.b32":
                (first,) = set(map(int, self.value(warp, operands[1], "u32")))
                result = np.full(32, int.from_bytes(bytes(self.memory[first + i] for i in range(4)), "little"))
            elif name.startswith("st.shared") and kind == "b32":
                first = int(self.value(warp, operands[0], "u32")[0])
                self.staging.write(warp.index, np.array([first]), 4 * len(operands[1:]))
                values = np.array([self.value(warp, text, "u32")[0] for text in operands[1:]], "<u4")
                self.memory |= {first + i: byte for i, byte in enumerate(values.tobytes())}
                return
            else:
                values = [self.value(warp, text, kind) for text in operands[1:]]
                if stem == "setp":
                    result = COMPARED[name.split(".")[1]](*values)
                else:
                    result = COMPUTED[".".join(name.split(".")[:2]) if stem in ("mul", "mad", "shfl", "not") else stem](
                        *values
                    )
            warp.registers[operands[0]] = result
        except (KeyError, ValueError):
            for text in operands[:1]:
                warp.registers.pop(text, None)

    def synchronise(self, warp: Warp, name: str, operands: list[str], active: np.ndarray) -> Callable[[], bool]:
        if name == "bar.warp.sync":
            return lambda: True
        if name.startswith("barrier.cluster"):
            return self.meet_cluster(warp, name)
        if name.startswith("mbarrier.arrive.shared::cluster"):
            for address in self.value(warp, operands[-1], "u32")[active]:
                self.of_cluster(int(address) // WINDOW - 1).mbarrier(int(address) % WINDOW).change(1, 0)
            return lambda: True
        lanes = int(active.sum())
        numbers = [int(self.value(warp, text, "u64")[0]) for text in operands if text not in ("_", "complete")]
        if name.startswith("mbarrier.init"):
            self.mbarriers[numbers[0]] = Mbarrier(numbers[1])
        elif name.startswith("mbarrier.arrive.expect_tx"):
            self.turn += 1
            self.mbarrier(numbers[0]).change(lanes, numbers[1])
        elif name.startswith("mbarrier.arrive"):
            self.mbarrier(numbers[0]).change(lanes * [*numbers, 1][1], 0)
        elif name.startswith("mbarrier.try_wait.parity"):
            mbarrier, parity = self.mbarrier(numbers[0]), numbers[1]
            return lambda: mbarrier.phase % 2 != parity
        elif name.startswith("setmaxnreg"):
            return self.change_registers(warp, numbers[0])
        elif name.startswith("cp.async.bulk.tensor.2d.global"):
            warp.stores.append((numbers[1], numbers[2]))
            self.staging.store(warp.index, numbers[3], self.size_of(numbers[0] - PARAMETERS))
            warp.order += "S"
        elif name.startswith("cp.async.bulk.tensor"):
            if not warp.alone:
                raise Race("a tile is copied that the kernel in front may yet write")
            ranks = [self.rank]
            if "multicast::cluster" in name:
                mask = numbers.pop()
                ranks = [rank for rank in range(len(self.cluster)) if mask >> rank & 1]
                assert mask >> len(self.cluster) == 0
            for rank in ranks:
                self.of_cluster(rank).receive(self.turn, numbers)
        else:
            barrier, warps = numbers[0], [*numbers, 32 * len(self.warps)][1] // 32
            come, opened = self.barriers.get(barrier, (0, 0))
            self.barriers[barrier] = (0, opened + 1) if come + 1 == warps else (come + 1, opened)
            return lambda: self.barriers[barrier][1] > opened
        return lambda: True

    def stage(self, warp: Warp, name: str, operands: list[str]) -> None:
        if name.startswith("cp.async.bulk.commit_group"):
            self.staging.commit(warp.index)
        elif name.startswith("cp.async.bulk.wait_group"):
            self.staging.wait(warp.index, int(operands[0]))
        elif name.startswith("fence.proxy.async"):
            self.staging.fence(warp.index)

    def change_registers(self, warp: Warp, wanted: int) -> Callable[[], bool]:
        def ready() -> bool:
            more = 32 * (wanted - warp.allowed)
            if more > self.free_registers:
                return False
            self.free_registers -= more
            warp.allowed = wanted
            return True

        return ready

    def mbarrier(self, address: int) -> Mbarrier:
        if address not in self.mbarriers:
            raise Race(f"no mbarrier at {address} of block {self.rank}")
        return self.mbarriers[address]

    def size_of(self, matrix: int) -> int:
        """Bytes that a copy of the matrix moves."""
        rows, row_bytes = self.box_shapes[matrix]
        return rows * row_bytes

    def of_cluster(self, rank: int) -> "Block":
        """The block of a rank, which has to be there to be sent something."""
        if not self.cluster[rank].running:
            raise Race(f"block {rank} has gone")
        return self.cluster[rank]

    def meet_cluster(self, warp: Warp, name: str) -> Callable[[], bool]:
        """All warps of the cluster arrive, and each then waits until the others have, once more each time."""
        warps = [other for block in self.cluster for other in block.warps]
        if "arrive" in name:
            warp.met += 1
            return lambda: True
        return lambda: all(other.met >= warp.met for other in warps)

    def receive(self, turn: int, numbers: list[int]) -> None:
        destination, matrix, *corner, mbarrier = numbers
        matrix -= PARAMETERS
        if any(destination in group for warp in self.warps for group in [*warp.reading, warp.open]):
            raise Race(f"turn {turn} overwrites what a warpgroup still reads")
        self.staging.overwrite(np.array([destination]), self.size_of(matrix))
        self.boxes[destination] = Box(turn, matrix, (corner[0], corner[1]))
        self.copies.append(self.boxes[destination])
        self.flying.append((self.boxes[destination], self.mbarrier(mbarrier), self.size_of(matrix)))

    def multiply(self, warp: Warp, name: str, operands: list[str]) -> None:
        if name.startswith("wgmma.mma_async"):
            descriptors = [int(self.value(warp, text, "u64")[0]) for text in operands if text.startswith("%rd")]
            extents = 64, int(re.findall(r"m64n(\d+)k16", name)[0])
            warp.order += "m" if self.value(warp, operands[extents[1] // 2 + 2], "pred")[0] else "M"
            for descriptor, extent, across_k in zip(descriptors, extents, operands[-2:], strict=True):
                # Each 14 bits in units of 16 bytes: the address; from 64 elements to the next, of an operand that is
                # contiguous across K; from 8 rows to the next, of another.
                address, apart, apart_8 = ((descriptor >> bit & 0x3FFF) * 16 for bit in (0, 16, 32))
                for index in range(-(-extent // 64)):
                    self.read(warp, address + index * (apart if across_k == "1" else 8 * apart_8))
        elif name.startswith("wgmma.commit_group"):
            if warp.products and min(warp.products[-1])[0] == min(warp.operands)[0]:
                warp.products[-1] |= warp.operands
            else:
                warp.products.append(warp.operands)
            warp.reading.append(warp.open)
            warp.open, warp.operands = set(), set()
        elif name.startswith("wgmma.wait_group"):
            left = int(operands[0])
            warp.reading = warp.reading[len(warp.reading) - left :] if left else []

    def read(self, warp: Warp, address: int) -> None:
        start = max((start for start in self.boxes if start <= address), default=-1)
        box = self.boxes.get(start)
        if not box or not box.landed or address >= start + self.size_of(box.matrix):
            raise Race("a tile is read that has not arrived")
        warp.open.add(start)
        column, row = box.corner
        _, row_bytes = self.box_shapes[box.matrix]
        warp.operands.add((box.turn, box.matrix, column, row + (address - start) // row_bytes))


def run_cluster(blocks: list[Block]) -> None:
    """Until all warps have returned. Raises Hang or Race."""
    draw = blocks[0].random
    ready: dict[tuple[int, int], Callable[[], bool]] = {}
    for block in blocks:
        block.cluster = blocks
        block.running = {warp.index: block.steps(warp) for warp in block.warps}
    for block in blocks:
        ready |= {(block.rank, index): next(steps) for index, steps in block.running.items()}
    while ready:
        able = [place for place, can in ready.items() if can()]
        able += [(block.rank, -1) for block in blocks if block.flying]
        if not able:
            raise Hang("; ".join(f"block {rank} warp {i} at {blocks[rank].warps[i].waits}" for rank, i in ready))
        ((rank, chosen),) = draw.choices(able, [blocks[rank].paces[index] for rank, index in able])
        block = blocks[rank]
        if chosen < 0:
            box, mbarrier, size = block.flying.pop(draw.randrange(len(block.flying)))
            box.landed = True
            mbarrier.change(0, -size)
            continue
        try:
            ready[rank, chosen] = next(block.running[chosen])
        except StopIteration:
            del ready[rank, chosen], block.running[chosen]
