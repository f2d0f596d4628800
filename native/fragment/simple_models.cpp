// Models that a page of code can hold: what other models are compared with. And the choice of one.
#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "device.h"
#include "errors.h"
#include "free_ranges.h"
#include "model.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kGrain = 512;

// What a model gave for the allocations that are live.
struct Given {
  uint64_t address, size, stream;
};
using Live = std::unordered_map<uint32_t, Given>;  // by id

std::vector<dtr_fragment_block> used_blocks(const Live& live) {
  std::vector<dtr_fragment_block> all;
  for (const auto& [id, of] : live) all.push_back({of.address, of.size, of.stream, 1, 0});
  return all;
}

std::vector<dtr_fragment_block> by_address(std::vector<dtr_fragment_block> blocks) {
  std::ranges::sort(blocks, {}, &dtr_fragment_block::address);
  return blocks;
}

// Requests rounded to powers of two, of 512 bytes at least. A free block serves requests of its
// own power and stream, and is never split or merged. If the device refuses, all that is free goes
// back to it.
class Bins final : public Model {
 public:
  explicit Bins(uint64_t budget) : device_(budget, nullptr, 0) {}

  uint64_t allocate(uint32_t id, uint64_t size, uint64_t stream) override {
    if (size > uint64_t{1} << 62) return kNoPlace;
    const uint64_t power = std::max(kGrain, std::bit_ceil(size));
    auto& bin = free_[{stream, power}];
    uint64_t address;
    if (!bin.empty()) {
      address = bin.back();
      bin.pop_back();
    } else {
      address = take(power);
      if (address == kNoPlace) return kNoPlace;
    }
    used_ += power;
    live_[id] = {address, power, stream};
    return address;
  }
  void free(uint32_t id) override {
    const auto block = live_.find(id);
    used_ -= block->second.size;
    free_[{block->second.stream, block->second.size}].push_back(block->second.address);
    live_.erase(block);
  }
  uint64_t reserved_bytes() const override { return device_.held_bytes(); }
  uint64_t used_bytes() const override { return used_; }
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all = used_blocks(live_);
    for (const auto& [key, bin] : free_)
      for (const uint64_t address : bin) all.push_back({address, key.second, key.first, 0, 0});
    return by_address(std::move(all));
  }

 private:
  uint64_t take(uint64_t power) {
    if (!device_.has(power)) {
      for (auto& [key, bin] : free_) {
        for (const uint64_t address : bin) {
          note_segment(address, key.second, false);
          device_.give(address);
        }
        bin.clear();
      }
    }
    const uint64_t address = device_.take(power);
    if (address != kNoPlace) note_segment(address, power, true);
    return address;
  }

  Device device_;
  uint64_t used_ = 0;
  Live live_;
  std::map<std::pair<uint64_t, uint64_t>, std::vector<uint64_t>> free_;  // stream, size
};

// One arena; the lowest hole that fits. Streams share it. What it holds is the arena up to the
// highest byte that was ever used.
class FirstFit final : public Model {
 public:
  explicit FirstFit(uint64_t budget) {
    free_.add(kBase, kBase + std::min(budget, uint64_t{1} << 62) / kGrain * kGrain);
  }
  uint64_t allocate(uint32_t id, uint64_t size, uint64_t) override {
    size = round_up(size, kGrain);
    const uint64_t at = free_.lowest(size);
    if (at == FreeRanges::kNone) return kNoPlace;
    free_.remove(at, at + size);
    end_ = std::max(end_, at + size);
    used_ += size;
    live_[id] = {at, size, 0};
    return at;
  }
  void free(uint32_t id) override {
    const auto block = live_.find(id);
    const auto [address, size, stream] = block->second;
    used_ -= size;
    free_.add(address, address + size);
    live_.erase(block);
  }
  uint64_t reserved_bytes() const override { return end_ - kBase; }
  uint64_t used_bytes() const override { return used_; }
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all = used_blocks(live_);
    for (const Range& hole : free_.ranges())
      if (hole.begin < end_)
        all.push_back({hole.begin, std::min(hole.end, end_) - hole.begin, 0, 0, 0});
    return by_address(std::move(all));
  }

 private:
  static constexpr uint64_t kBase = Device::kSegmentAlignment;
  uint64_t end_ = kBase;
  uint64_t used_ = 0;
  FreeRanges free_;
  Live live_;
};

// Counts bytes: each request takes whole units, wherever they are. Pages of 2 MiB: what remains
// lost with no contiguity needed. Units of a byte: the bound below every allocator.
class Counted final : public Model {
 public:
  Counted(uint64_t budget, uint64_t unit, bool keeps, uint32_t count)
      : budget_(budget), unit_(unit), keeps_(keeps), sizes_(count) {}
  uint64_t allocate(uint32_t id, uint64_t size, uint64_t) override {
    size = round_up(size, unit_);
    if (size > budget_ || used_ > budget_ - size) return kNoPlace;
    used_ += size;
    reached_ = std::max(reached_, used_);
    sizes_[id] = size;
    return 0;
  }
  void free(uint32_t id) override { used_ -= sizes_[id]; }
  uint64_t reserved_bytes() const override { return keeps_ ? reached_ : used_; }
  uint64_t used_bytes() const override { return used_; }
  bool has_places() const override { return false; }
  // What is free can serve one request, however it lies.
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all;
    if (used_ > 0) all.push_back({0, used_, 0, 1, 0});
    if (keeps_ && reached_ > used_) all.push_back({used_, reached_ - used_, 0, 0, 0});
    return all;
  }

 private:
  uint64_t budget_;
  uint64_t unit_;
  bool keeps_;
  uint64_t used_ = 0;
  uint64_t reached_ = 0;
  std::vector<uint64_t> sizes_;
};

}  // namespace

std::unique_ptr<Model> make_model(const dtr_fragment_options& options, uint32_t count,
                                  uint64_t needed_bytes) {
  switch (options.model) {
    case DTR_FRAGMENT_OURS:
      return make_ours(options, count, needed_bytes);
    case DTR_FRAGMENT_PYTORCH:
      return make_caching(options, count);
    case DTR_FRAGMENT_POWER_OF_TWO:
      return std::make_unique<Bins>(options.budget_bytes);
    case DTR_FRAGMENT_FIRST_FIT:
      return std::make_unique<FirstFit>(options.budget_bytes);
    case DTR_FRAGMENT_PAGING:
      if (options.page_bytes == 0) throw InvalidArgument("page_bytes is 0; allowed: 1 or more");
      return std::make_unique<Counted>(options.budget_bytes, options.page_bytes, true, count);
    case DTR_FRAGMENT_EXACT:
      return std::make_unique<Counted>(options.budget_bytes, 1, false, count);
    default:
      throw InvalidArgument("model is " + std::to_string(options.model) + "; allowed: 0 to 5");
  }
}

}  // namespace dtr::fragment
