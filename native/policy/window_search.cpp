#include "window_search.h"

#include <algorithm>
#include <string>

#include "grain.h"
#include "graph/heap_blocks.h"

namespace dtr {

// The price of a candidate that may be evicted, or else infinity: exact, or above `most`, which never
// grows in a search. Each candidate is looked at once in a search.
double WindowSearch::price_of(Device& device, Storage* storage, const SearchContext& context,
                              double most) {
  if (storage->priced == search_number_) return storage->price;
  storage->priced = search_number_;
  storage->price = std::numeric_limits<double>::infinity();
  if (!victims_.is_eligible(device, storage)) return storage->price;
  const double factor = costs_.factor_of(storage, context);
  storage->price = factor * at_least_1(victims_.learn_cost_ns(device, storage, most / factor));
  return storage->price;
}

// All candidates from its first on (W1), in members_.
void WindowSearch::take_members(const Device& device, const Window& window) {
  members_.clear();
  if (!window.first) return;
  const size_t first = device.candidates.rank_of(window.first);
  for (size_t i = 0; i < window.members; ++i)
    members_.push_back(device.candidates.at_rank(first + i));
}

// The best few windows by their price, in few_.
void WindowSearch::search(Device& device, const SearchContext& context, uint64_t size_bytes,
                          size_t most_looks) {
  ++search_number_;
  ++environment_.stats.window_searches;
  few_.clear();
  taken_.clear();
  const size_t count = read_blocks(device.pool, &run_);
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i)
    if (!is_free(run_[i]))
      taken_.push_back({run_[i].address, run_[i].address + run_[i].size_bytes});
  const dtr_run_block& last = run_[count - 1];
  device.candidates.search_windows(
      context.now_ns, costs_.decreased_ns(), {run_[0].address, last.address + last.size_bytes},
      taken_, size_bytes, few_.limit(), most_looks,
      [&](Storage* storage) { return price_of(device, storage, context, few_.limit()); },
      [&](Storage* first, size_t members, double price, uint64_t bytes) {
        few_.offer({first, members, price, bytes});
      });
}

// Of what is in members_, which it sorts: the largest factor first, so that what is shared counts
// with that. (Ancestors and descendants are shared each among themselves.)
double WindowSearch::joint_price(const SearchContext& context, const MemberCost& member_cost_ns) {
  const auto factor = [&](const Storage* storage) { return costs_.factor_of(storage, context); };
  std::sort(members_.begin(), members_.end(), [&](Storage* a, Storage* b) {
    const double left = factor(a), right = factor(b);
    return left != right ? left > right : a->address < b->address;
  });
  costs_.neighborhoods().sums_together(members_, &sums_);
  const bool counts_costs = environment_.options.heuristic.cost != DTR_COST_NONE;
  double joint = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Storage* storage = members_[i];
    const double cost = costs_.cost_ns(storage, sums_[i]);
    joint += factor(storage) * (counts_costs ? at_least_1(member_cost_ns(storage, cost)) : cost);
  }
  return joint;
}

// Few for a small request, as kMostScores in victim_search.cpp. A large one is rare, and the bounds of
// its windows, which have many members, say little about their order. On a device, chunks and replays
// cost so much more than looks that all are worth it (bench/null_cuda: GPT-2 medium mapped 959 chunks a
// step with few looks, and maps none).
size_t WindowSearch::most_looks(const Device& device, uint64_t size_bytes) const {
  constexpr size_t kMostLooks = 64;
  constexpr uint64_t kSmall = 256;  // so many requests make the budget
  if (environment_.options.room != DTR_ROOM_AUTO || device.type != kCpu) return Candidates::kAny;
  const dtr_pool_stats stats = stats_of(device.pool);
  return kMostLooks * std::max<uint64_t>(size_bytes / (stats.budget_bytes / kSmall + 1), 1);
}

const std::vector<Storage*>& WindowSearch::find(Device& device, const SearchContext& context,
                                                uint64_t size_bytes,
                                                const MemberCost& member_cost_ns) {
  const dtr_engine_options& options = environment_.options;
  search(device, context, size_bytes, most_looks(device, size_bytes));
  Window best;
  double least = std::numeric_limits<double>::infinity();
  const bool credits_bytes =
      options.room == DTR_ROOM_AUTO && options.heuristic.size != DTR_SIZE_NONE;
  for (size_t i = 0; i < few_.size(); ++i) {
    take_members(device, few_[i]);
    const double price = joint_price(context, member_cost_ns);
    const double rate = credits_bytes ? few_[i].rate(price, size_bytes) : price;
    if (rate >= least) continue;
    least = rate;
    best = few_[i];
  }
  take_members(device, best);
  return members_;
}

bool WindowSearch::makes_place(const Device& device, const Storage* storage, uint64_t size_bytes) {
  uint64_t bytes = 0;
  bool met = false;
  std::array<dtr_run_block, 4> beside;  // its own, and those that may be free on both sides
  uint64_t count = 0;
  dtr_pool_run(device.pool, storage->address, beside.data(), beside.size(), &count);
  for (size_t i = 0; i < count; ++i) {
    if (!is_free(beside[i])) {
      if (met) break;
      met = true;
    }
    bytes += beside[i].size_bytes;
  }
  return met && bytes >= size_bytes;
}

void WindowSearch::check() {
  if (!costs_.needs().scores) return;
  const dtr_engine_stats before = environment_.stats;
  for (const auto& device : devices_) check(*device, victims_.context_of(*device));
  environment_.stats = before;
}

void WindowSearch::check(Device& device, const SearchContext& context) {
  const size_t count = read_blocks(device.pool, &run_);
  const std::vector<dtr_run_block> all(run_.begin(), run_.begin() + static_cast<int64_t>(count));
  uint64_t largest = kGrain;
  std::vector<Storage*> owners(count, nullptr);
  for (size_t i = 0; i < count; ++i) {
    if (all[i].state != DTR_BLOCK_IN_USE) continue;
    Storage* storage = graph_.by_address.find(reinterpret_cast<const void*>(all[i].address));
    if (storage && storage->candidate >= 0 && victims_.is_free_to_go(storage)) owners[i] = storage;
    largest = std::max(largest, all[i].size_bytes);
  }
  const auto free = [&](size_t i) { return is_free(all[i]); };
  for (const uint64_t size :
       {kGrain, largest / 2 + kGrain / 2, largest, 3 * largest, 9 * largest}) {
    const uint64_t size_bytes = in_grains(size);
    FewWindows best;
    best.clear();
    ++search_number_;
    for (size_t first = 0; first < count; ++first) {
      if (!owners[first]) continue;
      size_t begin = first;
      while (begin > 0 && free(begin - 1)) --begin;
      uint64_t bytes = 0;
      Window window{owners[first], 0, 0};
      for (size_t i = begin; i < count && (free(i) || owners[i]); ++i) {
        bytes += all[i].size_bytes;
        if (!free(i)) {
          ++window.members;
          window.price += price_of(device, owners[i], context, CostModel::kAnyNs);
        }
        const bool ends = i + 1 == count || !free(i + 1);
        if (window.members > 0 && ends && bytes >= size_bytes) {
          best.offer(window);
          break;
        }
      }
    }
    search(device, context, size_bytes, Candidates::kAny);
    bool same = few_.size() == best.size();
    for (size_t i = 0; same && i < best.size(); ++i)
      same = few_[i].first == best[i].first && few_[i].members == best[i].members &&
             few_[i].price == best[i].price;
    if (same) continue;
    // Another thread may have taken or freed a block meanwhile: then nothing can be said.
    const auto is_same_block = [](const dtr_run_block& a, const dtr_run_block& b) {
      return a.address == b.address && a.size_bytes == b.size_bytes && a.state == b.state;
    };
    if (read_blocks(device.pool, &run_) != count ||
        !std::equal(all.begin(), all.end(), run_.begin(), is_same_block))
      return;
    throw StateError("W5: for " + std::to_string(size_bytes) + " bytes the search found " +
                     std::to_string(few_.size()) + " windows, the best of price " +
                     std::to_string(few_.size() ? few_[0].price : 0) + ", where " +
                     std::to_string(best.size()) + " are best, with " +
                     std::to_string(best.size() ? best[0].price : 0));
  }
}

}  // namespace dtr
