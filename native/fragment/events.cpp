#include "events.h"

#include <algorithm>
#include <string>

#include "address_map.h"
#include "dtr_alloc.h"
#include "errors.h"

namespace dtr::fragment {

namespace {

constexpr uint32_t kContinued = UINT32_MAX;  // its content moved on: its end ends nothing

[[noreturn]] void fail(uint64_t row, const std::string& what) {
  throw InvalidArgument("event " + std::to_string(row) + " " + what);
}

}  // namespace

Events::Events(const Columns& columns, uint16_t device) {
  AddressMap<uint32_t> live;  // address -> allocation
  live.reserve(1 << 12);
  std::vector<bool> continues;  // by allocation: what began here is the rest of another one
  bool any_continues = false;
  uint64_t moving_from = 0;
  bool moving = false;
  const auto at = [&](uint64_t row, const char* verb) {
    const auto found = live.find(columns.address[row]);
    if (found == live.end())
      fail(row, verb + address_text(columns.address[row]) + ", where nothing is allocated");
    return found;
  };
  for (uint64_t row = 0; row < columns.count; ++row) {
    const uint8_t kind = columns.kind[row];
    if (kind >= DTR_EVENT_KINDS)
      fail(row, "is of kind " + std::to_string(kind) + "; allowed: 0 to " +
                    std::to_string(DTR_EVENT_KINDS - 1));
    if (columns.device[row] != device) continue;
    if (moving && kind != DTR_EVENT_MOVE_TO)
      fail(row, "comes after a MOVE_FROM; allowed there: its MOVE_TO");
    if (kind == DTR_EVENT_ALLOCATE) {
      if (allocations_.size() == kContinued) fail(row, "is one allocation too many");
      const auto id = static_cast<uint32_t>(allocations_.size());
      if (!live.emplace(columns.address[row], id).second)
        fail(row, "allocates at " + address_text(columns.address[row]) +
                      ", where something is allocated");
      allocations_.push_back({columns.size_bytes[row], columns.stream[row]});
      continues.push_back(false);
      steps_.push_back({row, id, true});
    } else if (kind == DTR_EVENT_FREE) {
      const auto found = at(row, "frees ");
      if (found->second != kContinued) steps_.push_back({row, found->second, false});
      live.erase(found);
    } else if (kind == DTR_EVENT_MOVE_FROM) {
      if (at(row, "moves from ")->second == kContinued)
        fail(row, "moves what has moved on already");
      moving_from = columns.address[row];
      moving = true;
    } else if (kind == DTR_EVENT_MOVE_TO) {
      if (!moving) fail(row, "is a MOVE_TO without its MOVE_FROM before it");
      const auto to = at(row, "moves to ");
      if (to->second == kContinued || columns.address[row] == moving_from)
        fail(row, "moves to where nothing can move to: the block is given up");
      const auto from = live.find(moving_from);
      continues[to->second] = any_continues = true;
      to->second = from->second;
      from->second = kContinued;
      moving = false;
    }
  }
  if (moving) fail(columns.count, "is missing: the MOVE_TO of the last MOVE_FROM");
  if (any_continues) drop(continues);
  uint64_t bytes = 0, blocks = 0;
  for (const Step& step : steps_) {
    blocks += step.begins ? 1 : -1;
    peak_blocks_ = std::max(peak_blocks_, blocks);
    const uint64_t size = allocations_[step.allocation].size_bytes;
    bytes += step.begins ? size : uint64_t{0} - size;
    peak_live_ = std::max(peak_live_, bytes);
  }
}

// Takes allocations out, whose ends are gone already, and numbers the others again.
void Events::drop(const std::vector<bool>& dropped) {
  std::vector<uint32_t> number(allocations_.size());
  uint32_t kept = 0;
  for (size_t id = 0; id < allocations_.size(); ++id) {
    number[id] = kept;
    if (!dropped[id]) allocations_[kept++] = allocations_[id];
  }
  allocations_.resize(kept);
  size_t to = 0;
  for (const Step& step : steps_)
    if (!dropped[step.allocation]) steps_[to++] = {step.row, number[step.allocation], step.begins};
  steps_.resize(to);
}

}  // namespace dtr::fragment
