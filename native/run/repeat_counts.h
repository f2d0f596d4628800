// repeat_counts.h: which operators run again, and where in the job they stand: for reports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "dtr/engine.h"
#include "graph/observer.h"

namespace dtr {

class RepeatCounts final : public Observer {
 public:
  void ran_again(const Op* op) override {
    uint32_t place = 0;
    for (const Output& output : op->outputs)
      if (output.storage) place = output.storage->place;
    Count& count = counts_[{op->op_key, place}];
    ++count.times;
    count.cost_ns += static_cast<uint64_t>(op->cost_ns);
  }

  void clear() { counts_.clear(); }
  // What took the most first.
  std::vector<dtr_repeats> sorted() const {
    std::vector<dtr_repeats> all;
    for (const auto& [of, count] : counts_)
      all.push_back({of.first, count.times, count.cost_ns, of.second});
    std::ranges::stable_sort(all, std::ranges::greater(), &dtr_repeats::cost_ns);
    return all;
  }

 private:
  struct Count {
    uint64_t times = 0;
    uint64_t cost_ns = 0;
  };
  std::map<std::pair<uint64_t, uint32_t>, Count> counts_;
};

}  // namespace dtr
