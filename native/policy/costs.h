// costs.h: what operators cost, learned per signature.
//
// One reading says little: the thread may have been preempted, the device may have waited for the
// host, and a first call is often cold (it loads a kernel, makes a plan, fills caches). All of that
// only adds. So the cost is a low quantile of the readings of calls with the same signature: the
// operator, shapes, strides, dtypes and devices of its tensor arguments, and the sizes of its
// results. Of what is no tensor (a convolution's padding) only the effect on the sizes counts. A
// lower reading is the cost at once, and a higher one raises the cost a little.
//
// A cost that was read from a file is fixed: readings do not move it, so that two runs with the same
// file weigh the same storages the same way.
//
// What is read: run/call_timer.h. Nothing here locks: the engine's mutex guards the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtr/framework.h"
#include "dtr_alloc.h"

namespace dtr {

// A hash of what makes two calls alike. The same in every process: it goes into files.
class Signature {
 public:
  explicit Signature(uint64_t op_key = 0) : state_(op_key) {}
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ull;
    state_ ^= state_ >> 29;
  }
  // A tensor argument, where it lies in memory left out.
  void add(const dtr_tensor_desc& tensor) {
    add(static_cast<uint64_t>(static_cast<uint32_t>(tensor.scalar_type)) << 32 |
        static_cast<uint64_t>(static_cast<uint16_t>(tensor.ndim)) << 16 |
        static_cast<uint64_t>(tensor.device_type) << 8 | static_cast<uint8_t>(tensor.device_index));
    for (int32_t d = 0; d < tensor.ndim; ++d) {
      add(static_cast<uint64_t>(tensor.sizes[d]));
      add(static_cast<uint64_t>(tensor.strides[d]));
    }
  }
  // Never 0, which stands for an operator that was not measured.
  uint64_t value() const { return state_ ? state_ : 1; }

 private:
  uint64_t state_;
};

class CostTable {
 public:
  // More signatures than any job with fixed shapes has. A job whose shapes change with
  // every step would fill any table: what does not fit is used as it was read.
  static constexpr size_t kMost = 65536;
  // 18 minutes. No op takes longer; a stopped process may seem to. Millions of ops of such
  // costs fit into the engine's clock.
  static constexpr int64_t kMostNs = int64_t{1} << 40;

  struct Entry {
    uint64_t signature = 0;  // 0: an empty slot
    uint64_t op_key = 0;
    double cost_ns = 0;
    uint64_t readings = 0;
    bool fixed = false;
  };

  // What such a call costs; 0: none was read.
  int64_t known(uint64_t signature) const;
  // The same; before the first reading the time in which a device of this type moves the bytes of the
  // call's inputs and outputs. (For those who ask before an op has run, or whose readings come later.)
  int64_t estimate(uint64_t signature, uint64_t bytes, uint8_t device_type) const;
  // The latter.
  static int64_t prior(uint64_t bytes, uint8_t device_type);
  // One more reading of a call; returns the cost to reckon with, 1 to kMostNs.
  int64_t add(uint64_t signature, uint64_t op_key, int64_t reading_ns);

  // What operators cost from now on: these and no other entries, which stay. Throws
  // InvalidArgument, and the table is empty.
  void set(const dtr_cost* costs, uint64_t count);
  // Writes `capacity` entries at most; how many there are.
  uint64_t get(dtr_cost* costs, uint64_t capacity) const;

  // Adds an entry whose cost, 1 to kMostNs, stays. False: the table is full, or has the
  // signature.
  bool fix(uint64_t signature, uint64_t op_key, int64_t cost_ns, uint64_t readings);
  void clear();
  // In whole nanoseconds, at least 1.
  static int64_t cost_of(const Entry& entry);
  size_t size() const { return size_; }
  template <typename F>
  void for_each(F&& visit) const {
    for (const Entry& entry : slots_)
      if (entry.signature) visit(entry);
  }

 private:
  // The signature's slot, or the empty one where it would stand.
  Entry& slot(uint64_t signature);
  const Entry* find(uint64_t signature) const;
  void grow();

  std::vector<Entry> slots_;  // linear probing; a power of two, at most half full
  size_t size_ = 0;
};

}  // namespace dtr
