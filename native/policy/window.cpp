// window.cpp: the search for the window of the least joint price (window.h), and what windows and
// single evictions would cost each other.
#include "window.h"

#include <cmath>

#include "run/engine.h"

namespace dtr {

namespace {

constexpr size_t kFewBlocks = 4;

bool is_free(const dtr_run_block& block) { return block.state == 0 || block.state == 3; }

}  // namespace

// Blocks in the order of addresses, at least so many if there are: in run_, how many is returned.
size_t Engine::run_of(const Device& device, const void* address, size_t blocks) {
  if (run_.size() < blocks) run_.resize(std::max(blocks, kFewBlocks));
  uint64_t count = 0;
  dtr_pool_run(device.pool, address, run_.data(), blocks, &count);
  return count;
}

// The factor of a cost in the score without the size.
double Engine::price_factor(const Storage* storage, const SearchContext& moment) const {
  Signals signals;
  signals.staleness_ns = static_cast<double>(moment.now_ns - storage->last_access_ns);
  signals.recomputes = storage->recomputes;
  return score(options_.heuristic, signals) * ghost_factor(storage);
}

// The price of a candidate that may be evicted, else infinity; each is looked at once in a search.
double Engine::price_of(Device& device, Storage* storage, const SearchContext& moment) {
  if (storage->priced == price_look_) return storage->price;
  storage->priced = price_look_;
  storage->price = std::numeric_limits<double>::infinity();
  if (is_eligible(device, storage))
    storage->price = price_factor(storage, moment) * at_least_1(learn_cost(device, storage));
  return storage->price;
}

// The minimal window whose first member is given, if there is one that costs no more than `most`.
bool Engine::extend_window(Device& device, const SearchContext& moment, uint64_t size_bytes,
                           Storage* first, double most, Window* window) {
  const Candidates& candidates = device.candidates;
  for (size_t blocks = kFewBlocks;; blocks *= 2) {
    const size_t count = run_of(device, first->address, blocks);
    uint64_t bytes = 0;
    size_t rank = candidates.rank_of(first);
    *window = {first, 0, 0, 0};
    for (size_t i = 0; i < count; ++i) {
      const dtr_run_block& block = run_[i];
      if (is_free(block)) {
        bytes += block.size_bytes;
        continue;
      }
      if (window->members > 0 && bytes >= size_bytes) {
        window->bytes = bytes;
        return true;
      }
      const auto address = reinterpret_cast<void*>(block.address);
      while (rank < candidates.size() && candidates.at_rank(rank)->address < address) ++rank;
      if (block.state != 1 || rank == candidates.size()) return false;
      Storage* const member = candidates.at_rank(rank);
      if (member->address != address) return false;
      window->price += price_of(device, member, moment);
      if (!(window->price <= most) || std::isinf(window->price)) return false;
      ++window->members;
      bytes += block.size_bytes;
    }
    if (count < blocks) {
      window->bytes = bytes;
      return window->members > 0 && bytes >= size_bytes;
    }
  }
}

// All candidates from its first on (W1), in members_.
void Engine::take_members(const Device& device, const Window& window) {
  members_.clear();
  if (!window.first) return;
  const size_t first = device.candidates.rank_of(window.first);
  for (size_t i = 0; i < window.members; ++i)
    members_.push_back(device.candidates.at_rank(first + i));
}

// The best few windows by their price, in few_.
void Engine::search_windows(Device& device, const SearchContext& moment, uint64_t size_bytes) {
  ++price_look_;
  ++stats_.window_searches;
  few_.clear();
  device.candidates.search_windows(
      moment.now_ns, components_.decreased_ns(), size_bytes, few_.limit(),
      [&](Storage* storage) { return price_of(device, storage, moment); },
      [&](Storage* first) {
        Window window;
        if (extend_window(device, moment, size_bytes, first, few_.limit(), &window))
          few_.offer(window);
      });
}

// The evicted storages that are reached through evicted ones, and were not in this visit: their
// summed parts.
template <typename ForNext>
int64_t Engine::further_cost(const Storage* storage, uint64_t visit, ForNext&& for_next) {
  int64_t sum = 0;
  pending_.assign(1, const_cast<Storage*>(storage));
  while (!pending_.empty()) {
    const Storage* from = pending_.back();
    pending_.pop_back();
    for_next(from, [&](Storage* next) {
      if (!next->counted || next->visit == visit) return;
      next->visit = visit;
      ++stats_.storage_accesses;
      sum += part_of(next);
      pending_.push_back(next);
    });
  }
  return sum;
}

// Of what is in members_, which it sorts: the largest factor first, so that what is shared counts
// with that. (Ancestors and descendants are shared each among themselves.)
double Engine::joint_price(const SearchContext& moment) {
  const auto factor = [&](const Storage* storage) { return price_factor(storage, moment); };
  std::sort(members_.begin(), members_.end(), [&](Storage* a, Storage* b) {
    const double left = factor(a), right = factor(b);
    return left != right ? left > right : a->address < b->address;
  });
  const uint64_t upward = ++visits_, downward = ++visits_;
  const int32_t kind = options_.heuristic.cost;
  double joint = 0;
  // An upward walk that has been somewhere has been to all above it, so two kinds of visits cannot
  // share marks: all upward walks come first.
  costs_of_members_.assign(members_.size(), 0);
  if (needs_.ancestors)
    for (size_t i = 0; i < members_.size(); ++i) {
      if (needs_.tolls && is_idle(members_[i])) continue;
      costs_of_members_[i] += further_cost(
          members_[i], upward, [](const Storage* of, auto&& visit) { for_inputs(of, visit); });
    }
  if (needs_.descendants)
    for (size_t i = 0; i < members_.size(); ++i)
      costs_of_members_[i] +=
          further_cost(members_[i], downward,
                       [](const Storage* of, auto&& visit) { for_dependents(of, visit); });
  for (size_t i = 0; i < members_.size(); ++i) {
    Storage* storage = members_[i];
    if (kind == DTR_COST_COMPONENT)
      for_evicted_neighbors(storage, [&](Storage* neighbor) {
        ComponentNode* root = components_.root(neighbor->component);
        if (root->mark == upward) return;
        root->mark = upward;
        costs_of_members_[i] += root->cost_ns;
      });
    double cost = 1;
    if (kind != DTR_COST_NONE) {
      const double recompute = !storage->parent ? 0
                               : needs_.tolls
                                   ? with_tolls(cost_of(storage), costs_of_members_[i])
                                   : static_cast<double>(cost_of(storage) + costs_of_members_[i]);
      cost =
          at_least_1(compactor_.at_most_move(storage, swap_costs_.with_swap(storage, recompute)));
    }
    joint += factor(storage) * cost;
  }
  return joint;
}

// The best window by W4, its members in members_; false if there is none.
bool Engine::find_window(Device& device, const SearchContext& moment, uint64_t size_bytes) {
  search_windows(device, moment, size_bytes);
  compactor_.begin_search(device);
  Window best;
  double least = std::numeric_limits<double>::infinity();
  const bool credits_bytes =
      options_.room == DTR_ROOM_AUTO && options_.heuristic.size != DTR_SIZE_NONE;
  for (size_t i = 0; i < few_.size(); ++i) {
    take_members(device, few_[i]);
    const double price = joint_price(moment);
    const double rate = credits_bytes ? few_[i].rate(price, size_bytes) : price;
    if (rate >= least) continue;
    least = rate;
    best = few_[i];
  }
  take_members(device, best);
  return best.first != nullptr;
}

// Whether the request has its place if this one goes.
bool Engine::makes_place(const Device& device, const Storage* storage, uint64_t size_bytes) {
  uint64_t bytes = 0;
  bool met = false;
  const size_t count = run_of(device, storage->address, kFewBlocks);
  for (size_t i = 0; i < count; ++i) {
    if (!is_free(run_[i])) {
      if (met) break;
      met = true;
    }
    bytes += run_[i].size_bytes;
  }
  return met && bytes >= size_bytes;
}

// What it costs to take memory from other addresses to where a request is. The kernel, or the
// driver, works for each page, in this step and in every one like it. So many copies is what served
// jobs on the host best (docs/concepts/default-policy.md).
double Engine::remap_ns(const Device& device, uint64_t size_bytes) {
  constexpr double kCopies = 30;
  return kCopies * device.move_price.ns_of(size_bytes);
}

// How a request gets its place, and whom to evict for that, in victims_.
//
// Under DTR_ROOM_AUTO the best score is the first choice, as it is the best use of what is freed
// beyond the request. If that one does not make the place, singles may be blind to what does: so a
// window goes, but not while a remap would do with some more bytes, wherever they are: near the
// smallest budgets windows then evict what is needed at once. Memory is remapped where that costs
// less than what would be evicted, and where no window helps.
Engine::Way Engine::choose_victims(Device& device, const SearchContext& moment, uint64_t size_bytes,
                                   std::unique_lock<EngineMutex>& lock) {
  victims_.clear();
  dtr_pool_room room{};
  dtr_pool_get_room(device.pool, size_bytes, &room);
  // Where there is a hole what is missing is time, or memory for slabs.
  const bool lacks_place = room.chunk_bytes > 0 && room.in_one_piece && !room.has_hole;
  const bool can_remap = lacks_place && room.lacking_chunks == 0;
  const int32_t way = lacks_place && needs_.scores ? options_.room : DTR_ROOM_SINGLE;
  if (way == DTR_ROOM_SINGLE && can_remap) return Way::remap;
  ++stats_.searches;
  Storage* single = nullptr;
  if (options_.heuristic.select == DTR_SELECT_CALLBACK)
    single = choose_by_callback(device, moment, lock);
  else if (way != DTR_ROOM_WINDOW)
    single = choose(device, moment);
  if (single) victims_.push_back(single);
  if (way == DTR_ROOM_SINGLE) return Way::single;

  const auto is_dear = [&] {
    double loss = 0;
    for (Storage* storage : victims_) loss += loss_ns(storage);
    return can_remap && loss > remap_ns(device, size_bytes);
  };
  if (single && makes_place(device, single, size_bytes))
    return is_dear() ? Way::remap : Way::single;
  const bool lacks_bytes =
      !can_remap && room.lacking_chunks != std::numeric_limits<uint64_t>::max();
  if (!(lacks_bytes && single) && find_window(device, moment, size_bytes)) {
    victims_ = members_;
    if (!is_dear()) return Way::window;
  }
  if (can_remap) return Way::remap;
  if (!single && (single = choose(device, moment))) victims_.push_back(single);
  return Way::single;
}

}  // namespace dtr
