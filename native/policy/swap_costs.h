// swap_costs.h: what it costs to evict a content by swapping it: the time of both copies. The
// search for room compares it with the cost of recomputing; a constant has no other way to go.
#pragma once

#include <algorithm>

#include "devices.h"
#include "graph/environment.h"
#include "host_memory.h"

namespace dtr {

class SwapCosts {
 public:
  SwapCosts(const Environment& environment, const Devices& devices, const HostMemory& host)
      : environment_(environment), devices_(devices), host_(host) {}

  bool is_on() const { return environment_.options.swap_bytes > 0; }
  bool is_swappable(const Storage* storage) const { return is_on() && could_swap(storage); }
  // With swapping on.
  static bool could_swap(const Storage* storage) {
    return !storage->external && !storage->captured && storage->size_bytes >= kLeastBytes;
  }
  bool has_room(const Storage* storage) const { return host_.has_room(storage->size_bytes); }

  double swap_ns(const Storage* storage) const {
    const Device& device = devices_.of(storage);
    return device.way_out.ns_of(storage->size_bytes) + device.way_in.ns_of(storage->size_bytes);
  }
  // What it costs to evict a resident storage whose recomputing costs so much.
  double with_swap(const Storage* storage, double recompute_ns) const {
    if (!is_swappable(storage)) return recompute_ns;
    if (!storage->parent) return swap_ns(storage);
    return has_room(storage) ? std::min(recompute_ns, swap_ns(storage)) : recompute_ns;
  }
  // The same, whatever room there is: for bounds, which must hold when there is some again.
  double at_most_swap(const Storage* storage, double recompute_ns) const {
    if (!is_swappable(storage) || environment_.options.heuristic.cost == DTR_COST_NONE)
      return recompute_ns;
    return storage->parent ? std::min(recompute_ns, swap_ns(storage)) : swap_ns(storage);
  }

 private:
  // A content below this is not worth a page of host memory.
  static constexpr uint64_t kLeastBytes = 4096;

  const Environment& environment_;
  const Devices& devices_;
  const HostMemory& host_;
};

}  // namespace dtr
