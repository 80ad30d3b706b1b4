// What a block multiplies, one piece of work after the other, and how the last wave of tiles of C is shared out.
//
// With B blocks at a time, T tiles of C are T / B waves. What remains would keep a few blocks busy as long as a whole
// wave. The flag `tail` cuts these last tiles along K: their tiles of K in a row, one tile of C after the other, every
// block takes the same number of them. So a block has a part of one tile of C, or the end of one and the beginning of
// the next, and a second kernel adds the parts, see parts.cuh.
//
// The blocks of a persistent grid, tma_rotating.cuh, come to their share behind their whole tiles. Otherwise, tma.cuh,
// a share is a block of its own, behind those that have a whole tile each: blocks begin in the order of the grid, so
// that the shares are the last wave.
//
// Blocks that share tiles of A have the same work on neighbouring tiles of C. For them a block is their cluster here,
// and a tile of C the tiles of its blocks.
#pragma once

#include "parts.cuh"

namespace hgemm {

// Tiles of K of one tile of C.
struct Work {
  uint32_t number;  // of the tile of C
  int first, count;
};

// The tiles of C that are cut, and who has which of their tiles of K.
struct Tail {
  float* workspace = nullptr;
  uint32_t whole = 0;  // tiles of C that are not cut; those that are come behind them
  uint32_t cut = 0;
  uint32_t k_tiles = 1;
  uint32_t blocks = 0;                 // that take part, the first ones
  uint32_t share = 0, with_extra = 0;  // tiles of K of a block; the first `with_extra` have one more

  // Where the block's tiles of K begin, of those of all tiles that are cut.
  HGEMM_MEMBER uint32_t begin(uint32_t block) const {
    return block * share + (block < with_extra ? block : with_extra);
  }
  HGEMM_MEMBER uint32_t block_of(uint32_t k_tile) const {
    const uint32_t longer = with_extra * (share + 1);
    return k_tile < longer ? k_tile / (share + 1) : with_extra + (k_tile - longer) / share;
  }

  // The work of a block that takes part: first in the tile of C in which its share begins.
  HGEMM_MEMBER Work first(uint32_t block) const {
    const uint32_t begin = this->begin(block), end = this->begin(block + 1), tile = begin / k_tiles;
    const uint32_t end_of_tile = (tile + 1) * k_tiles;
    return {whole + tile, static_cast<int>(begin - tile * k_tiles),
            static_cast<int>((end < end_of_tile ? end : end_of_tile) - begin)};
  }

  // Then from the beginning of the next one to the end of its share, if that is there: no share has more than a tile.
  HGEMM_MEMBER bool next(uint32_t block, Work& work) const {
    ++work.number;
    work.first = 0;
    work.count = static_cast<int>(begin(block + 1) - (work.number - whole) * k_tiles);
    return work.count > 0;
  }

  // From one part to the next, either the block is the next one or the tile is, or both: no two have the same sum.
  HGEMM_MEMBER int64_t slot(uint32_t number, uint32_t block) const { return int64_t{number} - whole + block; }

  // For add_parts: which tile of C the `index`-th is that is cut, and where its parts lie.
  HGEMM_MEMBER uint32_t tile(uint32_t index) const { return whole + index; }
  HGEMM_MEMBER Slots slots(uint32_t index) const {
    const uint32_t first = block_of(index * k_tiles), last = block_of((index + 1) * k_tiles - 1);
    return {int64_t{index} + first, last - first + 1};
  }
};

// Leaving and adding the sums takes about as long as multiplying so many tiles of K: with half a wave of 256x128 tiles
// on an H200, 26 MB go to L2 and come back.
constexpr uint32_t LEAST_SAVING = 8;
constexpr uint32_t LEAST_SHARE = 4;  // tiles of K of a block: it has to fill its stages first

// How `resident` blocks share the last wave out. Nothing is cut where that saves little, and where the tiles of K
// cannot be counted in 31 bits.
template <class Config>
Tail tail_of(const HgemmProblem& p, uint32_t resident) {
  Tail tail;
  const uint32_t tile_count = block_count<ClusterTile<Config>>(p);
  tail.whole = tile_count;
  if (!Config::TAIL) return tail;
  tail.k_tiles = tiles(p.K, Config::TILE_K);
  const uint32_t cut = tile_count % resident;
  const uint64_t k_tiles = uint64_t{cut} * tail.k_tiles;
  const uint32_t blocks = k_tiles / LEAST_SHARE < resident ? k_tiles / LEAST_SHARE : resident;
  if (blocks == 0 || k_tiles > INT32_MAX) return tail;
  const uint32_t share = k_tiles / blocks, with_extra = k_tiles % blocks;
  if (share + 1 + LEAST_SAVING > tail.k_tiles) return tail;
  tail.whole = tile_count - cut;
  tail.cut = cut;
  tail.blocks = blocks;
  tail.share = share;
  tail.with_extra = with_extra;
  return tail;
}

// How many clusters a launch has, of one block each where none share A, and what they share of the last wave.
template <class Config, auto Kernel>
const char* share_out(const HgemmProblem& p, int threads, int shared_bytes, uint32_t* clusters, Tail* tail) {
  *clusters = block_count<ClusterTile<Config>>(p);
  uint32_t resident = *clusters;
  if (Config::PERSISTENT)
    if (const char* error = resident_clusters<Kernel>(Config::CLUSTER, threads, shared_bytes, &resident)) return error;
  *tail = tail_of<Config>(p, resident);
  if (resident < *clusters || tail->cut) *clusters = resident;
  return nullptr;
}

template <class Config>
size_t tail_workspace_bytes(const Tail& tail) {
  return tail.cut == 0 ? 0 : (tail.blocks + tail.cut - 1) * Config::CLUSTER * PiecesOf<Config>::TILE_BYTES;
}

// The work of a block of a persistent grid: whole tiles of C, one in each wave, then its share of the tail.
template <class Config>
struct Schedule {
  uint32_t block, blocks;  // of the grid
  int k_tiles;
  const Tail& tail;

  // False if the block has no tile of C: then it has nothing to do.
  HGEMM_MEMBER bool first(Work& work) const {
    work = {block, 0, k_tiles};
    return work.number < tail.whole || share_of(work);
  }

  // Turns to what comes behind `work`; false, and `work` means nothing, behind the last.
  HGEMM_MEMBER bool next(Work& work) const {
    if (!Config::PERSISTENT) return false;
    if (!Config::TAIL || work.number < tail.whole) {
      work.number += blocks;
      return work.number < tail.whole || share_of(work);
    }
    return tail.next(block, work);
  }

 private:
  HGEMM_MEMBER bool share_of(Work& work) const {
    if (!Config::TAIL || block >= tail.blocks) return false;
    work = tail.first(block);
    return true;
  }
};

}  // namespace hgemm
