"""What nvcc makes of every CUDA kernel, for Hopper and for GeForce Blackwell: resources, and the instructions claimed.

Nothing here needs a GPU: the cubins are read with cuobjdump.
"""

from __future__ import annotations

import functools
import itertools
import re

import pytest

from hgemm.config import Config
from hgemm.cuda_kernels import build
from hgemm.cuda_kernels.configs import DTYPES, FAMILIES, GEFORCE_SHARED_BYTES, LAYOUTS, Unit
from hgemm.cuda_kernels.inspect_code import _cuobjdump as cuobjdump
from hgemm.cuda_kernels.inspect_code import machine_code as disassembled
from hgemm.cuda_kernels.inspect_code import resource_usage

pytestmark = pytest.mark.nvcc

ARCHITECTURES = ("90a", "120f")
HOPPER_SHARED_BYTES = 232_448
# What is compiled: of each family each layout for each architecture, for one of the two types, which differ in the name
# of the product and of the rounding alone. Each type is compiled for each architecture and in each layout.
COMPILED = [
    (Unit(family, DTYPES[(number + (arch == "120f")) % 2], layout), arch)
    for family in FAMILIES
    for number, layout in enumerate(LAYOUTS)
    for arch in ARCHITECTURES
]
# All tests of a unit come one after the other: its listing has 16 MB and is made once.
EVERY_UNIT, TMA_UNITS = (
    pytest.mark.parametrize(
        ("unit", "arch"),
        [(unit, arch) for unit, arch in COMPILED if unit.family in families],
        ids=lambda value: value if isinstance(value, str) else value.name,
        scope="module",
    )
    for families in (FAMILIES, ("tma",))
)


@functools.lru_cache(maxsize=2)
def listing(unit: Unit, arch: str) -> dict[str, str]:
    return disassembled(unit, arch)


def machine_code(unit: Unit, arch: str) -> dict[str, str]:
    return {name: code for name, code in listing(unit, arch).items() if has_room(name, arch)}


def has_room(name: str, arch: str) -> bool:
    """Whether it may run there. What needs more shared memory than sm_120 has is not compiled for it."""
    return arch != "120f" or any(k.geforce for family in FAMILIES.values() for k in family.configs if k.name == name)


def test_every_pair_of_type_layout_and_architecture_is_compiled() -> None:
    for family in FAMILIES:
        cases = [(unit.dtype, unit.layout, arch) for unit, arch in COMPILED if unit.family == family]
        for chosen, axes in (
            ((0, 1), (DTYPES, LAYOUTS)),
            ((0, 2), (DTYPES, ARCHITECTURES)),
            ((1, 2), (LAYOUTS, ARCHITECTURES)),
        ):
            assert {tuple(case[axis] for axis in chosen) for case in cases} == set(itertools.product(*axes))


@EVERY_UNIT
def test_no_kernel_spills(unit: Unit, arch: str) -> None:
    for name, resources in resource_usage(unit, arch).items():
        assert resources.spill_bytes == 0 or not has_room(name, arch), name


@TMA_UNITS
def test_what_has_no_room_is_empty(unit: Unit, arch: str) -> None:
    for name, code in listing(unit, arch).items():
        assert ("HMMA" in code) == has_room(name, arch), name
        assert has_room(name, arch) or len(instructions_of(code)) <= 16, name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_kernel_that_adds_parts_reads_vectors_and_does_not_spill(arch: str) -> None:
    cubin = build.compile_cubin(nn(arch), arch)
    usage = re.findall(r"Function (\S*add_parts\S*?):\s*(REG:[^\n]*)", cuobjdump("-res-usage", cubin))
    assert usage
    for name, numbers in usage:
        assert "STACK:0 " in numbers and "LOCAL:0 " in numbers, name
    for part in cuobjdump("-sass", cubin).split("Function : ")[1:]:
        if "add_parts" in part:
            loads = re.findall(r"\bLDG\.E\.(\d+)", part)
            assert len(loads) >= 16 and set(loads) == {"128"}
            # All of them are asked for before the first sum, behind the wait for the kernel before.
            instructions = instructions_of(part)
            (wait,) = [n for n, text in enumerate(instructions) if "ACQBULK" in text]
            assert wait < min(n for n, text in enumerate(instructions) if "LDG" in text)


@TMA_UNITS
def test_a_block_asks_for_its_descriptors_first(unit: Unit, arch: str) -> None:
    """Which tile is a block's takes divisions one behind the other, and a descriptor comes from memory: at the same
    time. What adds the parts of tiles is asked for ahead of the first sum that is left."""
    for name, code in machine_code(unit, arch).items():
        tile, instructions = Config.parse(name), instructions_of(code)
        first = {
            pattern: min((n for n, text in enumerate(instructions) if pattern in text), default=None)
            for pattern in ("UTMACCTL.PF", "MUFU.RCP", "UTMALDG", "HMMA", "PREEXIT")
        }
        if "producer" not in tile.flags:
            assert first["UTMACCTL.PF"] < first["MUFU.RCP"] < first["UTMALDG"], name
        assert (first["PREEXIT"] is not None) == ("tail" in tile.flags), name
        if first["PREEXIT"]:
            assert first["HMMA"] < first["PREEXIT"], name


@TMA_UNITS
def test_the_blocks_of_a_cluster_meet_twice_and_read_vectors_in_between(unit: Unit, arch: str) -> None:
    """What splits K leaves its sums in shared memory, arrives, waits, reads a slice of every part, arrives, stores C,
    and waits before it ends. The first arrival shows others those sums, behind a fence of the block; the second tells
    that all has been read, and none of the loads may be in flight. A fence of the device takes most of a microsecond.
    """
    for name, code in machine_code(unit, arch).items():
        instructions = instructions_of(code)
        found = {
            what: [n for n, text in enumerate(instructions) if re.search(pattern, text)]
            for what, pattern in (
                ("arrive", r"\bUCGABAR_ARV"),
                ("wait", r"\bUCGABAR_WAIT"),
                ("read", r"\bLD\.E"),  # from shared memory of whatever block
                ("leave", r"\bSTS\.128"),
                ("fence", r"\bMEMBAR\.ALL\.CTA"),
                ("order", r"\bMEMBAR\.ALL\.GPU"),
                ("store", r"\bSTG"),
            )
        }
        config = Config.parse(name)
        if config.cluster > 1:
            continue  # the next test
        if config.parts == 1:
            assert not any(found[what] for what in ("arrive", "wait", "read", "order")), name
            continue
        rows = max(16, config.warp_m // config.parts)
        assert len(found["leave"]) == config.warp_m // 16 * config.warp_n // 8, name
        assert len(found["read"]) == config.parts * rows // 16 * config.warp_n // 8, name
        assert all("LD.E.128" in instructions[n] for n in found["read"]), name
        (arrival, last_arrival), (wait, last_wait) = found["arrive"], found["wait"]
        assert found["leave"][-1] < arrival < wait < found["read"][0], name
        assert found["read"][-1] < last_arrival < found["store"][0] < found["store"][-1] < last_wait, name
        assert not found["order"], name
        assert [found["leave"][-1] < fence < arrival for fence in found["fence"]] == [True], name
        assert destinations_in_flight(instructions[: found["read"][-1] + 1], load="LD.E"), name
        assert not destinations_in_flight(instructions[:last_arrival], load="LD.E"), name
        # By chance without this: the lanes wait with a mask that depends on what was loaded.
        assert any(re.search(r"\bWARPSYNC R\d", text) for text in instructions[found["read"][-1] : last_arrival]), name


@TMA_UNITS
def test_blocks_that_share_a_meet_before_and_behind_all_products(unit: Unit, arch: str) -> None:
    """And are ordered by nothing but mbarriers in between: a fence of the device there would stop every warp in every
    step of K."""
    for name, code in machine_code(unit, arch).items():
        instructions = instructions_of(code)
        multicast = [n for n, text in enumerate(instructions) if "UTMALDG.3D.MULTICAST" in text]
        if Config.parse(name).cluster == 1:
            assert not multicast, name
            continue
        products = [n for n, text in enumerate(instructions) if "HMMA" in text]
        for pattern in (r"\bUCGABAR_ARV", r"\bUCGABAR_WAIT", r"\bMEMBAR\.ALL\.GPU"):
            before, behind = [n for n, text in enumerate(instructions) if re.search(pattern, text)]
            assert before < products[0] and products[-1] < behind, (name, pattern)
        # Half of A: a box of 128 rows, or, where M is contiguous, two boxes of 64 columns. A producer has one place
        # that copies; warps that take turns have one more for each tile that is copied before the first turn.
        ahead = 0 if "producer" in (config := Config.parse(name)).flags else config.stages - 1
        assert len(multicast) == (1 + ahead) * (1 if unit.layout[0] == "n" else 2), name
        assert next(n for n, text in enumerate(instructions) if "UCGABAR_WAIT" in text) < multicast[0], name


def test_two_blocks_fit_where_two_are_meant_to() -> None:
    """Registers and shared memory together, as the device counts them."""
    for family in FAMILIES.values():
        usage = resource_usage(nn("90a", family.name), "90a")
        for kernel in family.configs:
            assert usage[kernel.name].blocks_per_multiprocessor >= kernel.blocks_per_multiprocessor, kernel.name


def test_the_48_kb_configuration_runs_twice_on_a_geforce_multiprocessor() -> None:
    usage = resource_usage(nn("120f"), "120f")
    assert usage["128x128x32_s3_w64x32"].blocks_per_multiprocessor == 2
    assert usage["128x128x64_s3_w64x32"].blocks_per_multiprocessor == 1


def test_shared_memory_stays_within_the_device_it_is_meant_for() -> None:
    for family in FAMILIES.values():
        assert any(kernel.geforce for kernel in family.configs)
        for kernel in family.configs:
            assert kernel.shared_bytes <= (GEFORCE_SHARED_BYTES if kernel.geforce else HOPPER_SHARED_BYTES)


@EVERY_UNIT
def test_kernels_hold_the_instructions_they_claim(unit: Unit, arch: str) -> None:
    mma = "HMMA.16816.F32.BF16" if unit.dtype == "bf16" else "HMMA.16816.F32 "
    copies, absent = ("UTMALDG.3D", "LDGSTS") if unit.family == "tma" else ("LDGSTS", "UTMALDG")
    # Fragments of A lie along K, those of B across it: where memory does not, ldmatrix transposes.
    plain, transposing = unit.layout != "tn", unit.layout != "nt"
    for name, code in machine_code(unit, arch).items():
        assert mma in code, name
        assert ("LDSM.16.M88.4" in code, "LDSM.16.MT88.4" in code) == (plain, transposing), name
        assert copies in code and absent not in code, name
        assert "STG.E.128" in code, name  # C in 16-byte stores


@TMA_UNITS
def test_c_is_stored_by_tma_where_the_name_says_so(unit: Unit, arch: str) -> None:
    for name, code in machine_code(unit, arch).items():
        kernel = FAMILIES["tma"].configs[FAMILIES["tma"].index(name)]
        boxes = kernel.config.warp_m // kernel.staged_rows if kernel.staged_rows else 0
        assert (boxes > 0) == ("store-tma" in name)
        instructions = instructions_of(code)
        stores = [n for n, text in enumerate(instructions) if "UTMASTG.3D" in text]
        assert len(stores) == boxes, name
        if not stores:
            continue
        # Of each box: the warp's writes are made known to the copy engine, one lane is elected, the store's group ends.
        fences = [n for n, text in enumerate(instructions) if "FENCE.VIEW.ASYNC" in text]
        for store, fence in zip(stores, fences[1:], strict=True):  # the first is that of the mbarriers
            assert any("ELECT" in text for text in instructions[fence:store]), name
            assert any("UTMACMDFLUSH" in text for text in instructions[store : store + 4]), name
        # Before each box is staged, and before the block ends.
        waits = [n for n, text in enumerate(instructions) if "DEPBAR.LE SB0, 0x0" in text]
        assert len(waits) == boxes + 1, name


@TMA_UNITS
def test_tma_is_issued_without_a_loop_over_lanes_or_a_call(unit: Unit, arch: str) -> None:
    """What the compiler adds where it cannot see that one lane issues, or that the block owns the destination."""
    for name, code in machine_code(unit, arch).items():
        assert "BRA.U.ANY" not in code and "CALL" not in code, name


def nn(arch: str, family: str = "tma") -> Unit:
    """The row-major unit of a family that is compiled for ``arch``."""
    return next(unit for unit, of in COMPILED if (unit.family, unit.layout, of) == (family, "nn", arch))


def frees_by_mbarriers(name: str) -> bool:
    """Whether the main loop has no barrier of the block."""
    return not {"rotate", "producer"}.isdisjoint(Config.parse(name).flags)


@functools.lru_cache(maxsize=80)  # the configurations of two units
def instructions_of(code: str) -> list[str]:
    return re.findall(r"/\*[0-9a-f]{4,5}\*/\s+([^;]+);", code)


def destinations_in_flight(instructions: list[str], begun_before: int | None = None, load: str = "LDSM") -> set[str]:
    """Registers that an ldmatrix, or another ``load`` of four, has been asked to fill by one of the first
    ``begun_before`` instructions and that nothing has read since."""
    unread: dict[int, set[str]] = {}
    for number, instruction in enumerate(instructions):
        registers = [f"R{n}" for n in re.findall(r"\bR(\d+)", instruction)]
        if load in instruction:
            first = int(registers[0][1:])
            if begun_before is None or number < begun_before:
                unread[number] = {f"R{first + offset}" for offset in range(4)}
        else:
            for asked, filled in list(unread.items()):
                if filled & set(registers):
                    del unread[asked]
    return set().union(*unread.values()) if unread else set()


@TMA_UNITS
def test_a_stage_is_refilled_only_behind_its_last_ldmatrix(unit: Unit, arch: str) -> None:
    """No BAR in the main loop may come while an ldmatrix is in flight.

    A barrier does not wait for one, and TMA, which refills the stage behind the barrier, does not queue behind it: with
    a plain barrier here an H200 computed wrong tiles. What counts as arrived is a register of each ldmatrix that an
    instruction has used.
    """
    for name, code in machine_code(unit, arch).items():
        if frees_by_mbarriers(name):
            continue  # the next test
        instructions = instructions_of(code)
        barriers = [number for number, text in enumerate(instructions) if re.search(r"\bBAR\.SYNC", text)]
        assert len(barriers) >= 2, name  # one behind the initialisation, one in the loop
        for barrier in barriers:
            assert not destinations_in_flight(instructions[:barrier]), (name, instructions[barrier])


@TMA_UNITS
def test_a_stage_is_freed_only_behind_its_last_ldmatrix(unit: Unit, arch: str) -> None:
    """No arrival that frees a stage may come while an ldmatrix from it is in flight. It comes once a tile: where
    LAG is 1 ahead of the wait for the next one, and so of the next one's loads; else behind them."""
    freeing = {name: code for name, code in machine_code(unit, arch).items() if frees_by_mbarriers(name)}
    assert freeing
    for name, code in freeing.items():
        instructions = instructions_of(code)
        arrivals = [n for n, text in enumerate(instructions) if re.search(r"SYNCS\.ARRIVE\S*\.A1T0", text)]
        assert len(arrivals) == 1, name
        end = arrivals[0]  # of the loads from this stage
        if (config := Config.parse(name)).stages > 3 and config.tile_k >= 64:
            end = max(n for n in range(end) if "SYNCS.PHASECHK" in instructions[n])
            assert any("LDSM" in instruction for instruction in instructions[end : arrivals[0]]), name
        last_load = max(n for n in range(end) if "LDSM" in instructions[n])
        assert destinations_in_flight(instructions[: last_load + 1])  # as it would be without what comes in between
        assert not destinations_in_flight(instructions[: arrivals[0]], begun_before=end), name


def fragments(tile: Config) -> tuple[int, int]:
    """Of A along a warp tile's rows, and of B along its columns, of which one ldmatrix loads two."""
    return tile.warp_m // 16, tile.warp_n // 8


def main_loop(tile: Config, code: str) -> list[str]:
    """The instructions that one tile of K is multiplied by: of the loops that hold so many products the shortest."""
    lines = [(int(address, 16), text) for address, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+([^;]+);", code)]
    loops = [
        [text for address, text in lines if start <= address <= end]
        for end, branch in lines
        if (target := re.search(r"BRA.* 0x([0-9a-f]+)", branch)) and (start := int(target[1], 16)) < end
    ]
    rows, columns = fragments(tile)
    products = tile.tile_k // 16 * rows * columns
    return min((loop for loop in loops if sum("HMMA" in text for text in loop) >= products), key=len)


@TMA_UNITS
def test_each_product_has_an_operand_of_the_one_before(unit: Unit, arch: str) -> None:
    """Within a row of fragments that of A, at its end that of B, but for the first product of a k-step: the rows of a
    warp tile of 64 meet B to and fro. Registers tell, since both sets of fragments stay where they are."""
    seen = 0
    for name, code in machine_code(unit, arch).items():
        tile = Config.parse(name)
        if (tile.warp_m, tile.warp_n) not in ((64, 64), (64, 32)):
            continue  # one or two rows of few columns, or fragments that are loaded in between
        operands = [re.findall(r"\bR\d+", text)[1:3] for text in main_loop(tile, code) if "HMMA" in text]
        same_a = [one[0] == other[0] for one, other in itertools.pairwise(operands)]
        same_b = [one[1] == other[1] for one, other in itertools.pairwise(operands)]
        steps, (rows, columns) = tile.tile_k // 16, fragments(tile)
        assert (sum(same_a), sum(same_b)) == (steps * rows * (columns - 1), steps * (rows - 1)), name
        assert not any(a and b for a, b in zip(same_a, same_b, strict=True)), name
        seen += 1
    assert seen


@TMA_UNITS
def test_the_tensor_cores_pass_a_tile_with_two_branches(unit: Unit, arch: str) -> None:
    """In the main loop of a kernel that frees stages by mbarriers: to the wait for the next tile, if it has not landed,
    and back to the start. All else that branches is ahead of them, where one thread issues copies; a producer issues
    them elsewhere."""
    for name, code in machine_code(unit, arch).items():
        if not frees_by_mbarriers(name):
            continue
        tile = Config.parse(name)
        loop, rows, columns = main_loop(tile, code), *fragments(tile)
        assert sum("HMMA" in text for text in loop) == tile.tile_k // 16 * rows * columns, name
        assert sum("LDSM" in text for text in loop) == tile.tile_k // 16 * (rows + columns // 2), name
        if (tile.warp_m, tile.warp_n) == (64, 64):  # no address is turned by the swizzle: each turn has a register
            assert not any(re.search(r"LOP3\.LUT R\d+, R\S+, 0x[246]0, RZ, 0x3c", text) for text in loop), name
        copies = [n for n, text in enumerate(loop) if "UTMALDG" in text]
        if "producer" in tile.flags:
            assert not copies, name
            assert sum("BRA" in text for text in loop) == 2, name
            assert "USETMAXREG" in code, name
            continue
        # Along K a row of a tile is one box; otherwise boxes are 64 columns wide. Of A a cluster's blocks copy parts.
        assert len(copies) == (1 if unit.layout[0] == "n" else tile.tile_m // tile.cluster // 64) + (
            tile.tile_n // 64 if unit.layout[1] == "n" else 1
        ), name
        elect = next(n for n, text in enumerate(loop) if "ELECT" in text)
        assert elect < copies[0], name
        assert not any("HMMA" in text for text in loop[: copies[-1]]), name
        assert sum("BRA" in text for text in loop[copies[-1] :]) == 2, name
