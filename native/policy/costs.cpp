// costs.cpp: what readings say of a cost, and where costs are kept.
#include "costs.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "graph/records.h"

namespace dtr {

namespace {

// A reading above the cost raises it by this share of the difference, so that the cost follows a
// slow drift (clocks, temperature, contents).
constexpr double kWeight = 1.0 / 16;
// A reading of so many times the cost says that the thread was preempted, or waited. It is clipped,
// not thrown away: if the cost did rise so far, each reading brings it nearer.
constexpr double kMostTimesCost = 8;

// What a device moves, for calls that were not read yet: rough, because the first reading takes
// over. Bytes per ns are GB/s.
constexpr double kHostBytesPerNs = 10;      // one core, streaming
constexpr double kDeviceBytesPerNs = 1000;  // high-bandwidth memory, a fraction of its peak

constexpr size_t kFirstSlots = 1024;

int64_t clamped(int64_t ns) { return std::min(std::max<int64_t>(ns, 1), CostTable::kMostNs); }

int64_t whole(double ns) { return ns < 1 ? 1 : static_cast<int64_t>(ns + 0.5); }

}  // namespace

int64_t CostTable::cost_of(const Entry& entry) { return whole(entry.cost_ns); }

int64_t CostTable::known(uint64_t signature) const {
  const Entry* entry = find(signature);
  return entry ? cost_of(*entry) : 0;
}

int64_t CostTable::estimate(uint64_t signature, uint64_t bytes, uint8_t device_type) const {
  const int64_t cost_ns = known(signature);
  return cost_ns ? cost_ns : prior(bytes, device_type);
}

int64_t CostTable::prior(uint64_t bytes, uint8_t device_type) {
  return whole(static_cast<double>(bytes) /
               (device_type == kCpu ? kHostBytesPerNs : kDeviceBytesPerNs));
}

int64_t CostTable::add(uint64_t signature, uint64_t op_key, int64_t reading_ns) {
  const int64_t reading = clamped(reading_ns);
  if (slots_.empty() || 2 * (size_ + 1) > slots_.size()) grow();
  Entry* entry = &slot(signature);
  if (!entry->signature) {
    if (size_ >= kMost) return reading;
    *entry = {signature, op_key, static_cast<double>(reading), 0, false};
    ++size_;
  }
  if (entry->fixed) return cost_of(*entry);
  ++entry->readings;
  const double clipped = std::min(static_cast<double>(reading), kMostTimesCost * entry->cost_ns);
  const double above = clipped - entry->cost_ns;
  entry->cost_ns += above > 0 ? kWeight * above : above;
  return cost_of(*entry);
}

bool CostTable::fix(uint64_t signature, uint64_t op_key, int64_t cost_ns, uint64_t readings) {
  if (signature == 0 || size_ >= kMost || find(signature)) return false;
  if (slots_.empty() || 2 * (size_ + 1) > slots_.size()) grow();
  slot(signature) = {signature, op_key, static_cast<double>(cost_ns), readings, true};
  ++size_;
  return true;
}

void CostTable::set(const dtr_cost* costs, uint64_t count) {
  clear();
  if (count > kMost) {
    const std::string most = std::to_string(kMost);
    throw InvalidArgument("costs[" + most + "] is one too many; allowed: " + most);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const dtr_cost& cost = costs[i];
    const auto refuse = [&](const std::string& what) {
      clear();
      throw InvalidArgument("costs[" + std::to_string(i) + "]" + what);
    };
    if (cost.signature == 0) refuse(".signature is 0; allowed: any other");
    if (cost.cost_ns < 1 || cost.cost_ns > kMostNs)
      refuse(".cost_ns is " + std::to_string(cost.cost_ns) + "; allowed: 1 to " +
             std::to_string(kMostNs));
    if (!fix(cost.signature, cost.op_key, cost.cost_ns, cost.readings))
      refuse(".signature is " + std::to_string(cost.signature) +
             ", which stands there already; allowed: each once");
  }
}

uint64_t CostTable::get(dtr_cost* costs, uint64_t capacity) const {
  uint64_t count = 0;
  for_each([&](const Entry& entry) {
    if (count < capacity)
      costs[count] = {entry.signature, entry.op_key, cost_of(entry), entry.readings};
    ++count;
  });
  return count;
}

void CostTable::clear() {
  slots_.clear();
  size_ = 0;
}

// Signatures are hashes already: their low bits are as good as any.
CostTable::Entry& CostTable::slot(uint64_t signature) {
  size_t i = signature & (slots_.size() - 1);
  while (slots_[i].signature && slots_[i].signature != signature) i = (i + 1) & (slots_.size() - 1);
  return slots_[i];
}

const CostTable::Entry* CostTable::find(uint64_t signature) const {
  if (slots_.empty()) return nullptr;
  const Entry& entry = const_cast<CostTable*>(this)->slot(signature);
  return entry.signature ? &entry : nullptr;
}

void CostTable::grow() {
  if (slots_.size() >= 2 * kMost) return;  // full: half of the slots stay empty
  std::vector<Entry> old(std::max(2 * slots_.size(), kFirstSlots));
  old.swap(slots_);
  for (const Entry& entry : old)
    if (entry.signature) slot(entry.signature) = entry;
}

}  // namespace dtr
