// window_search.h: the search for runs of neighbors whose eviction makes a place for a request in one piece.
//
// Coop (Zhang et al., NeurIPS 2023): what a request needs is not bytes but a place, so evict what
// stands side by side. Rules:
//
//   W1  A window is a run of blocks in the order of addresses, each free or the block of a
//       candidate that may be evicted, of these one at least. Free bytes cost nothing, so it goes
//       on over all that is free on both sides. What is locked, pinned, frozen or too small, what
//       no candidate owns, and what is free but not for everybody ends it.
//   W2  It suffices if it is as large as the request.
//   W3  Only minimal windows count: for a first member the shortest run that suffices.
//   W4  The price of a window is the sum of its members': the score without the size, as the
//       request fixes the bytes. The kFew least, among equals those at the lowest addresses, are
//       compared by their joint price, in which nothing that members would be recomputed
//       through counts twice: it counts where its factor is largest. A member that may be moved
//       (move.h) counts with what that costs, where it is less. Under DTR_ROOM_AUTO
//       it is divided by the bytes of the window, if the score has a size: what is beyond the
//       request serves the next one. But no window counts for more than kMostTimes the request.
//   W5  What is found is what trying all would find; checked by check_invariants(). Under
//       DTR_ROOM_AUTO on the CPU the first few are tried, by the order of their bounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "cost_model.h"
#include "devices.h"
#include "dtr_alloc.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "search_context.h"
#include "victim_search.h"

namespace dtr {

struct Window {
  Storage* first = nullptr;  // member
  size_t members = 0;
  double price = 0;
  uint64_t bytes = 0;  // of its blocks, the free ones among them

  static constexpr double kMostTimes = 2;
  // W4: what the few are compared by, given their joint price.
  double rate(double joint, uint64_t size_bytes) const {
    return joint /
           std::min(static_cast<double>(bytes), kMostTimes * static_cast<double>(size_bytes));
  }
};

// The best so far (W4).
class FewWindows {
 public:
  static constexpr size_t kFew = 4;

  void clear() {
    count_ = 0;
    limit_ = std::numeric_limits<double>::infinity();
  }
  size_t size() const { return count_; }
  const Window& operator[](size_t index) const { return windows_[index]; }
  // A price above it is of no interest.
  const double& limit() const { return limit_; }

  void offer(const Window& window) {
    const auto before = [](const Window& a, const Window& b) {
      return a.price != b.price ? a.price < b.price : a.first->address < b.first->address;
    };
    if (count_ == kFew) {
      if (!before(window, windows_[kFew - 1])) return;
      --count_;
    }
    size_t at = count_++;
    for (; at > 0 && before(window, windows_[at - 1]); --at) windows_[at] = windows_[at - 1];
    windows_[at] = window;
    if (count_ == kFew) limit_ = windows_[kFew - 1].price;
  }

 private:
  std::array<Window, kFew> windows_;
  size_t count_ = 0;
  double limit_ = std::numeric_limits<double>::infinity();
};

class WindowSearch {
 public:
  // What it costs to have a member out of the way, given what it costs to evict it.
  using MemberCost = std::function<double(const Storage*, double)>;

  WindowSearch(Environment& environment, const Devices& devices, const Graph& graph,
               CostModel& costs, VictimSearch& victims)
      : environment_(environment),
        devices_(devices),
        graph_(graph),
        costs_(costs),
        victims_(victims) {}

  // The members of the best window by W4; none if there is none. Valid until the next call.
  const std::vector<Storage*>& find(Device& device, const SearchContext& context,
                                    uint64_t size_bytes, const MemberCost& member_cost_ns);
  // Whether the request has its place if this one goes.
  bool makes_place(const Device& device, const Storage* storage, uint64_t size_bytes);

  // W5, by trying every run of blocks, for requests of several sizes.
  void check();

 private:
  double price_of(Device& device, Storage* storage, const SearchContext& context, double most);
  void take_members(const Device& device, const Window& window);
  size_t most_looks(const Device& device, uint64_t size_bytes) const;
  void search(Device& device, const SearchContext& context, uint64_t size_bytes, size_t most_looks);
  double joint_price(const SearchContext& context, const MemberCost& member_cost_ns);
  void check(Device& device, const SearchContext& context);

  Environment& environment_;
  const Devices& devices_;
  const Graph& graph_;
  CostModel& costs_;
  VictimSearch& victims_;
  uint64_t search_number_ = 0;      // the number of the search, which prices are of
  std::vector<dtr_run_block> run_;  // blocks, as the pool tells them
  std::vector<Range> taken_;        // those that are not free
  FewWindows few_;                  // the best of the last search
  std::vector<Storage*> members_;   // of the window that was looked at last
  std::vector<int64_t> sums_;       // of joint_price()
};

}  // namespace dtr
