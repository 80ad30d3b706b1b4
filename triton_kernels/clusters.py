"""Blocks that share tiles of their operands, in Gluon: clusters, to whose blocks a tile is sent by multicast.

In a kernel of clusters Gluon's program is the cluster, and a tile that of all its blocks: the CGA bases of a layout say
which block has which part of it. A basis of zeros means that both halves of the cluster have the same: of an operand
with such a basis one block sends its part to all that need it. Each finds the bytes at its own ``filled`` mbarrier.

What Gluon lacks on Hopper is the way back. A tile may be sent when all blocks have read what was in its place, so their
warpgroups arrive at mbarriers of each other; and no block may begin before the others' mbarriers are there, nor end
before the last tile was sent. Triton 3.7 arrives within a block alone, and its cluster barrier waits for warps that
never come where warps are specialised; 3.8 and 3.9 each have another way. So these few instructions are written here,
the same for all, with mbarriers in memory of their own, since Gluon tells no addresses.
"""

# Triton would take the annotation of an argument for the type to compile it for.
# mypy: disable-error-code="no-untyped-def"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Under its name in Triton 3.8 and 3.9, else in 3.6 and 3.7; and 3.6 has the barrier under another.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def bases(cluster_m, cluster_n, down, across):
    """The CGA bases of a matrix in a cluster of ``cluster_m`` x ``cluster_n`` blocks, whose ranks count down first.
    ``down``: 1 where blocks one above the other have rows of their own, 0 where the same; ``across`` likewise."""
    found = []
    for step in range(cluster_m.bit_length() - 1):
        found.append([down << step, 0])
    for step in range(cluster_n.bit_length() - 1):
        found.append([0, across << step])
    return found


@gluon.constexpr_function
def sums_layout(columns, cluster_m, cluster_n):
    """Of a warpgroup's sums, ``columns`` of them in each block. Triton 3.6 knows no CGA bases."""
    more = {"cga_layout": bases(cluster_m, cluster_n, 1, 1)} if cluster_m * cluster_n > 1 else {}
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16], **more)


@gluon.constexpr_function
def barriers_of_each(blocks):
    """The layout of mbarriers of which each of the cluster's blocks has one."""
    if blocks == 1:
        return mbarrier.MBarrierLayout()
    return mbarrier.MBarrierLayout([[1 << bit] for bit in range(blocks.bit_length() - 1)])


@gluon.constexpr_function
def _is_shared(layout):
    return any(not any(basis) for basis in getattr(layout, "cga_layout", None) or ())


@gluon.jit
def load(matrix, place, landed, tile):
    """Starts copying a tile. What blocks share one of them sends to all; the others start nothing."""
    if _is_shared(matrix.layout):
        async_load(matrix, place, landed, tile, multicast=True)
    else:
        async_load(matrix, place, landed, tile)


@gluon.jit
def _ptx(instructions: gl.constexpr, constraints: gl.constexpr, operands):
    """Run by each thread, for what it does besides giving a number."""
    return gl.inline_asm_elementwise(instructions, constraints, operands, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def allocate_barriers():
    """The address of room for 128 mbarriers, the same one in every block. It is a kilobyte, on a multiple of one, so
    that what Triton allocates behind it lies as it would: swizzled tiles begin at multiples of 1024."""
    return _ptx(
        """{
        .shared .align 1024 .b8 cluster_barriers[1024];
        mov.u32 $0, cluster_barriers;
        }""",
        "=r",
        [],
    )


@gluon.jit
def init(barriers, COUNT: gl.constexpr, arrivals: gl.constexpr):
    """To be followed by ``meet``."""
    for index in gl.static_range(COUNT):
        _ptx(
            """{
            .reg .pred %first;
            .reg .u32 %thread;
            mov.u32 %thread, %tid.x;
            setp.eq.u32 %first, %thread, 0;
            @%first mbarrier.init.shared::cta.b64 [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,r,n",
            [barriers + 8 * index, arrivals],
        )


@gluon.jit
def meet():
    """Waits until all warps of the cluster have come here, each as often as the others. The mbarriers that they have
    initialised are then there for all."""
    _ptx(
        """{
        fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned;
        barrier.cluster.wait.acquire.aligned;
        mov.u32 $0, 0;
        }""",
        "=r",
        [],
    )


@gluon.jit
def wait(barriers, index, phase):
    """Waits for a phase of the block's own mbarrier, at which blocks of the cluster arrive."""
    _ptx(
        """{
        .reg .pred complete;
        waitLoop:
        mbarrier.try_wait.parity.shared::cta.b64 complete, [$1], $2;
        @!complete bra.uni waitLoop;
        mov.u32 $0, 0;
        }""",
        "=r,r,r",
        [barriers + 8 * index, phase],
    )


@gluon.jit
def arrive(barriers, index, wanted, BLOCKS: gl.constexpr):
    """A warpgroup arrives, if ``wanted``, at the mbarrier of each of the cluster's blocks: at that of rank r its thread
    r, once all have come so far.

    Not with ``.release.cluster``, which is a fence of the whole device in each step: the others write where
    this warpgroup has read, and its reads are over when it comes here.
    """
    barrier()
    _ptx(
        """{
        .reg .pred %arrives;
        .reg .u32 %rank, %remote;
        mov.u32 %rank, %tid.x;
        and.b32 %rank, %rank, 127;
        setp.lt.u32 %arrives, %rank, $2;
        @%arrives mapa.shared::cluster.u32 %remote, $1, %rank;
        @%arrives mbarrier.arrive.shared::cluster.b64 _, [%remote];
        mov.u32 $0, 0;
        }""",
        "=r,r,r",
        [barriers + 8 * index, gl.where(wanted, BLOCKS, 0)],
    )
