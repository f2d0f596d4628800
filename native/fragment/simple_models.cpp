// Models that a page of code can hold: what other models are compared with.
#include <algorithm>
#include <map>

#include "device.h"
#include "holes.h"
#include "model.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kGrain = 512;

uint64_t round_up(uint64_t size, uint64_t grain) { return (size + grain - 1) / grain * grain; }

struct Place {
  uint64_t address = 0;
  uint64_t size = 0;
};

// The allocations that are live, to be visited without the others.
class LiveIds {
 public:
  explicit LiveIds(uint32_t count) : position_(count) {}
  void add(uint32_t id) {
    position_[id] = static_cast<uint32_t>(ids_.size());
    ids_.push_back(id);
  }
  void remove(uint32_t id) {
    const uint32_t last = ids_.back();
    ids_[position_[id]] = last;
    position_[last] = position_[id];
    ids_.pop_back();
  }
  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  std::vector<uint32_t> ids_;
  std::vector<uint32_t> position_;  // in ids_, of those that are live
};

// Requests rounded to powers of two, of 512 bytes at least. A free block serves requests of its
// own power and stream, and is never split or merged. If the device refuses, all that is free goes
// back to it.
class Bins final : public Model {
 public:
  Bins(uint64_t budget, uint32_t count) : device_(budget, nullptr, 0), live_(count), ids_(count) {}

  uint64_t allocate(uint32_t id, uint64_t size, uint64_t stream) override {
    if (size > uint64_t{1} << 62) return kNoPlace;
    uint64_t power = kGrain;
    while (power < size) power *= 2;
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
    live_[id] = {{address, power}, stream};
    ids_.add(id);
    return address;
  }
  void free(uint32_t id) override {
    const Owned& block = live_[id];
    used_ -= block.place.size;
    free_[{block.stream, block.place.size}].push_back(block.place.address);
    ids_.remove(id);
  }
  uint64_t reserved_bytes() const override { return device_.held_bytes(); }
  uint64_t used_bytes() const override { return used_; }
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all;
    for (const uint32_t id : ids_.ids())
      all.push_back({live_[id].place.address, live_[id].place.size, live_[id].stream, 1, 0});
    for (const auto& [key, bin] : free_)
      for (const uint64_t address : bin) all.push_back({address, key.second, key.first, 0, 0});
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    return all;
  }

 private:
  struct Owned {
    Place place;
    uint64_t stream = 0;
  };

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
  std::vector<Owned> live_;  // by id
  LiveIds ids_;
  std::map<std::pair<uint64_t, uint64_t>, std::vector<uint64_t>> free_;  // stream, size
};

// One arena; the lowest hole that fits. Streams share it. What it holds is the arena up to the
// highest byte that was ever used.
class FirstFit final : public Model {
 public:
  FirstFit(uint64_t budget, uint32_t count)
      : end_(std::min(budget, uint64_t{1} << 62) / kGrain * kGrain), live_(count), ids_(count) {
    if (end_ > 0) holes_.add(0, end_);
  }
  uint64_t allocate(uint32_t id, uint64_t size, uint64_t) override {
    size = round_up(size, kGrain);
    const uint64_t at = holes_.take_lowest(size);
    if (at == Holes::kNone) return kNoPlace;
    reached_ = std::max(reached_, at + size);
    used_ += size;
    live_[id] = {at, size};
    ids_.add(id);
    return kBase + at;
  }
  void free(uint32_t id) override {
    used_ -= live_[id].size;
    holes_.add(live_[id].address, live_[id].size);
    ids_.remove(id);
  }
  uint64_t reserved_bytes() const override { return reached_; }
  uint64_t used_bytes() const override { return used_; }
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all;
    for (const uint32_t id : ids_.ids())
      all.push_back({kBase + live_[id].address, live_[id].size, 0, 1, 0});
    holes_.for_each([&](uint64_t at, uint64_t size) {
      if (at < reached_) all.push_back({kBase + at, std::min(size, reached_ - at), 0, 0, 0});
    });
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    return all;
  }

 private:
  static constexpr uint64_t kBase = Device::kSegmentAlignment;
  uint64_t end_;
  uint64_t reached_ = 0;
  uint64_t used_ = 0;
  Holes holes_;
  std::vector<Place> live_;  // by id
  LiveIds ids_;
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

std::unique_ptr<Model> make_bins(uint64_t budget, uint32_t count) {
  return std::make_unique<Bins>(budget, count);
}
std::unique_ptr<Model> make_first_fit(uint64_t budget, uint32_t count) {
  return std::make_unique<FirstFit>(budget, count);
}
std::unique_ptr<Model> make_paging(uint64_t budget, uint64_t page, uint32_t count) {
  return std::make_unique<Counted>(budget, page, true, count);
}
std::unique_ptr<Model> make_exact(uint64_t budget, uint32_t count) {
  return std::make_unique<Counted>(budget, 1, false, count);
}

}  // namespace dtr::fragment
