// Random heaps under each placement policy: every block is compared with where a walk over all
// blocks says that it must land. Prints one line "<policy> <blocks compared>", or what is wrong.
//
//   place_blocks <steps>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pool.h"
#include "size_class.h"

namespace {

using dtr::BlockInfo;

constexpr uint64_t kBudget = 64 << 20;
constexpr uint64_t kSmall = 2048;

uint64_t rounded(int32_t kind, uint64_t size) {
  size = dtr::in_grains(size);
  return kind == DTR_PLACE_SIZE_CLASSES ? dtr::size_class(size, dtr::kGrain) : size;
}

// The hole that a block of this size belongs into; nullptr if none fits.
const BlockInfo* hole_for(int32_t kind, const std::vector<BlockInfo>& blocks, uint64_t size) {
  const BlockInfo* best = nullptr;
  for (const BlockInfo& block : blocks) {
    if (block.state != DTR_BLOCK_FREE || block.is_small || block.size_bytes < size) continue;
    const bool better =
        best == nullptr || (kind != DTR_PLACE_FIRST_FIT && block.size_bytes < best->size_bytes);
    if (better) best = &block;
  }
  return best;
}

bool try_policy(int32_t kind, const char* name, int steps) {
  dtr::PoolOptions options{"simulated", 0, kBudget, 0, 0, 0};
  options.fixed = 1;
  options.placement = static_cast<int32_t>(kind);
  dtr::Pool pool(options);
  std::mt19937 random(1);
  std::vector<uint64_t> live;
  const auto fail = [&](int step, const std::string& what) {
    std::printf("%s: step %d: %s\n", name, step, what.c_str());
    return false;
  };
  int compared = 0;
  for (int step = 0; step < steps; ++step) {
    // Fills up with many blocks of few sizes, so that holes of one size are many, and empties
    // again.
    const bool frees = step / 1000 % 2 == 1 ? random() % 4 != 0 : random() % 4 == 0;
    if (frees && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      pool.free(live.back());
      live.pop_back();
    } else {
      uint64_t size = 512 * (5 + random() % 8);
      if (random() % 4 == 0) size = kSmall + 1 + random() % (random() % 8 == 0 ? 2 << 20 : 100000);
      const auto hint = static_cast<int32_t>(random() % 3);
      const std::vector<BlockInfo> before = pool.snapshot();
      const uint64_t block = rounded(kind, size);
      const BlockInfo* hole = hole_for(kind, before, block);
      const uint64_t address =
          hole != nullptr || random() % 8 == 0 ? pool.try_allocate(size, 0) : 0;
      if (hole == nullptr) {
        if (address != 0) return fail(step, "a block was placed where none fits");
        continue;
      }
      if (address == 0) return fail(step, "a block was not placed although there is a hole");
      uint64_t got = address;
      if (hint != DTR_HINT_NONE) {  // once more, now with a hint
        pool.free(address);
        got = pool.allocate_hinted(size, 0, hint);
      }
      const bool high = kind == DTR_PLACE_TWO_ENDED && hint == DTR_HINT_CHEAP;
      const uint64_t expected = high ? hole->address + hole->size_bytes - block : hole->address;
      if (got != expected) return fail(step, "a block lies elsewhere");
      if (pool.block_bytes(got) != block) return fail(step, "a block has another size");
      live.push_back(got);
      ++compared;
    }
    if (step % 100 == 0) {
      const std::string broken = pool.check_invariants();
      if (!broken.empty()) return fail(step, broken);
    }
  }
  for (uint64_t address : live) pool.free(address);
  const std::string broken = pool.check_invariants();
  if (!broken.empty()) return fail(steps, broken);
  pool.close();
  std::printf("%s %d\n", name, compared);
  return true;
}

}  // namespace

int main(int, char** arguments) {
  const int steps = std::atoi(arguments[1]);
  bool right = true;
  for (auto [kind, name] : {std::pair{DTR_PLACE_BEST_FIT, "best-fit"},
                            {DTR_PLACE_FIRST_FIT, "first-fit"},
                            {DTR_PLACE_TWO_ENDED, "two-ended"},
                            {DTR_PLACE_SIZE_CLASSES, "size-classes"}}) {
    right = try_policy(kind, name, steps) && right;
  }
  return right ? 0 : 1;
}
