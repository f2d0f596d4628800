// graph_capture.h: while a graph is captured (torch.cuda.CUDAGraph).
//
// A captured graph uses the addresses that it was given, and changes what lies there, at
// times of which nobody tells us:
//
//  F1  While a capture is under way no live storage is evicted. The caller has everything
//      brought back first, so that no captured op needs a rematerialization, whose work
//      would become a part of the graph, and waits until that is done, so that no stream
//      has to wait for another's (O2). Dead storages may go: no op can be given them.
//  F2  An op is a constant meanwhile, and a storage that it touches is *captured*: a constant for
//      good. Its dependents are settled, and what is computed from it later is not computed again,
//      because a replay of the graph may have changed it in between. The same holds for
//      memory on a device that is shared with others (DLPack): nothing tells of their writes,
//      as the checksum does on the CPU.
//
// Nor is anything live evicted while everything is brought back (remat_want_any): the first
// contents back would go for the next, without an end, wherever not all of them fit. Then the
// request for memory fails.
#pragma once

#include <cstdint>

#include "records.h"

namespace dtr {

class GraphCapture {
 public:
  bool is_under_way() const { return captures_ > 0; }
  // Whether the storage may not be evicted now.
  bool is_frozen(const Storage* storage) const {
    return (captures_ > 0 || bringing_back_ > 0) && storage->live;
  }

  void begin() { ++captures_; }
  // Like the next: whether that was the last, so that what searches passed over may go again.
  bool end() { return --captures_ == 0; }
  void begin_bringing_back() { ++bringing_back_; }
  bool end_bringing_back() { return --bringing_back_ == 0; }

 private:
  uint32_t captures_ = 0;
  uint32_t bringing_back_ = 0;  // frames that bring everything back
};

}  // namespace dtr
