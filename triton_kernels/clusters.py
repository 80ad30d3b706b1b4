"""Clusters of blocks, in Gluon."""

# mypy: disable-error-code="no-untyped-def"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Under its name in Triton 3.9, else in 3.6 and 3.7; and 3.6 has the barrier under another.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def bases(cluster_m, cluster_n, down, across):
    """Layout bases; down, across: of what a block has of its own."""
    found = []
    for step in range(cluster_m.bit_length() - 1):
        found.append([down << step, 0])
    for step in range(cluster_n.bit_length() - 1):
        found.append([0, across << step])
    return found


@gluon.constexpr_function
def sums_layout(columns, cluster_m, cluster_n):
    more = {"cga_layout": bases(cluster_m, cluster_n, 1, 1)} if cluster_m * cluster_n > 1 else {}
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16], **more)


@gluon.constexpr_function
def barriers_of_each(blocks):
    if blocks == 1:
        return mbarrier.MBarrierLayout()
    return mbarrier.MBarrierLayout([[1 << bit] for bit in range(blocks.bit_length() - 1)])


@gluon.constexpr_function
def is_shared(layout):
    found = getattr(layout, "cga_layout", None)
    return any(not any(basis) for basis in found or ())


@gluon.jit
def load(matrix, place, landed, tile):
    if is_shared(matrix.layout):
        async_load(matrix, place, landed, tile, multicast=True)
    else:
        async_load(matrix, place, landed, tile)


@gluon.jit
def _asm(text: gl.constexpr, constraints: gl.constexpr, operands):
    return gl.inline_asm_elementwise(text, constraints, operands, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def allocate_barriers():
    return _asm(
        """{
        .shared .align 1024 .b8 cluster_barriers[1024];
        mov.u32 $0, cluster_barriers;
        }""",
        "=r",
        [],
    )


@gluon.jit
def init(barriers, STAGES: gl.constexpr, arrivals: gl.constexpr):
    for stage in gl.static_range(STAGES):
        _asm(
            """{
            .reg .pred %first;
            .reg .u32 %thread;
            mov.u32 %thread, %tid.x;
            setp.eq.u32 %first, %thread, 0;
            @%first mbarrier.init.shared::cta.b64 [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,r,n",
            [barriers + 8 * stage, arrivals],
        )


@gluon.jit
def meet():
    _asm(
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
def wait(barriers, stage, phase):
    _asm(
        """{
        .reg .pred complete;
        waitLoop:
        mbarrier.try_wait.parity.shared::cta.b64 complete, [$1], $2;
        @!complete bra.uni waitLoop;
        mov.u32 $0, 0;
        }""",
        "=r,r,r",
        [barriers + 8 * stage, phase],
    )


@gluon.jit
def arrive(barriers, stage, wanted, BLOCKS: gl.constexpr):
    """In all blocks of the cluster, as one warpgroup."""
    barrier()
    _asm(
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
        [barriers + 8 * stage, gl.where(wanted, BLOCKS, 0)],
    )
