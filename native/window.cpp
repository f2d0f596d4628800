// window.cpp: the search for the window of the least joint price (window.h), and what windows and
// single evictions would cost each other.
#include "window.h"

#include <cmath>

#include "engine.h"

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
double Engine::price_factor(const Storage* storage, const Moment& moment) const {
  Signals signals;
  signals.staleness_ns = static_cast<double>(moment.now_ns - storage->last_access_ns);
  signals.recomputes = storage->recomputes;
  return score(options_.heuristic, signals) * ghost_factor(storage);
}

// The price of a candidate that may be evicted, else infinity; each is looked at once in a search.
double Engine::price_of(Device& device, Storage* storage, const Moment& moment) {
  if (storage->priced == price_look_) return storage->price;
  storage->priced = price_look_;
  storage->price = std::numeric_limits<double>::infinity();
  if (is_eligible(storage, moment, device))
    storage->price = price_factor(storage, moment) * at_least_1(learn_cost(device, storage));
  return storage->price;
}

// The minimal window whose first member is given, if there is one that costs no more than `most`.
bool Engine::extend_window(Device& device, const Moment& moment, const WindowNeed& need,
                           Storage* first, double most, Window* window) {
  for (size_t blocks = kFewBlocks;; blocks *= 2) {
    const size_t count = run_of(device, first->address, blocks);
    WindowSpan span;
    Storage* next = first;
    *window = {first, 0, 0, 0};
    for (size_t i = 0; i < count; ++i) {
      const dtr_run_block& block = run_[i];
      if (is_free(block)) {
        span.add(block, need);
        continue;
      }
      if (window->members > 0 && span.suffices(need)) {
        window->bytes = span.bytes();
        return true;
      }
      while (next && next->address < reinterpret_cast<void*>(block.address))
        next = device.candidates.next(next);
      if (block.state != 1 || !next || next->address != reinterpret_cast<void*>(block.address))
        return false;
      window->price += price_of(device, next, moment);
      if (!(window->price <= most) || std::isinf(window->price)) return false;
      ++window->members;
      span.add(block, need);
    }
    if (count < blocks) {
      window->bytes = span.bytes();
      return window->members > 0 && span.suffices(need);
    }
  }
}

// All candidates from its first on (W1), in members_.
void Engine::take_members(const Device& device, const Window& window) {
  members_.clear();
  for (Storage* next = window.first; members_.size() < window.members;
       next = device.candidates.next(next))
    members_.push_back(next);
}

// The best few windows by their price, in few_.
void Engine::search_windows(Device& device, const Moment& moment, const WindowNeed& need) {
  ++price_look_;
  ++stats_.window_searches;
  few_.clear();
  device.candidates.search_windows(
      moment.now_ns, components_.decreased_ns(), need.least_span(), few_.limit(),
      [&](Storage* storage) { return price_of(device, storage, moment); },
      [&](Storage* first) {
        Window window;
        if (extend_window(device, moment, need, first, few_.limit(), &window)) few_.offer(window);
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
double Engine::joint_price(const Moment& moment) {
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
      cost = at_least_1(at_most_move(storage, with_swap(storage, recompute)));
    }
    joint += factor(storage) * cost;
  }
  return joint;
}

// The best window by W4, its members in members_; false if there is none.
bool Engine::find_window(Device& device, const Moment& moment, const WindowNeed& need,
                         double* joint) {
  search_windows(device, moment, need);
  find_largest_hole(device);
  Window best;
  double least = std::numeric_limits<double>::infinity();
  *joint = least;
  const bool credits_bytes =
      options_.room == DTR_ROOM_AUTO && options_.heuristic.size != DTR_SIZE_NONE;
  for (size_t i = 0; i < few_.size(); ++i) {
    take_members(device, few_[i]);
    const double price = joint_price(moment);
    const double rate = credits_bytes ? few_[i].rate(price, need) : price;
    if (rate >= least) continue;
    least = rate;
    *joint = price;
    best = few_[i];
  }
  take_members(device, best);
  return best.first != nullptr;
}

// What single evictions are likely to cost until a request has room, if the first is this: as often
// as much as it releases too little. 0 if it is enough alone, infinity if it releases nothing.
double Engine::price_of_singles(Device& device, const Moment& moment, const WindowNeed& need,
                                Storage* first) {
  WindowSpan span;
  bool met = false;
  const size_t count = run_of(device, first->address, kFewBlocks);
  for (size_t i = 0; i < count; ++i) {
    if (!is_free(run_[i])) {
      if (met) break;
      met = true;
    }
    span.add(run_[i], need);
  }
  if (met && span.suffices(need)) return 0;
  const uint64_t released = met ? span.released(need) : 0;
  if (released == 0 || device.fixed) return std::numeric_limits<double>::infinity();
  ++price_look_;
  const double times =
      std::ceil(static_cast<double>(need.room.lacking_chunks) / static_cast<double>(released));
  return price_of(device, first, moment) * times;
}

// Whom to evict for a request, in victims_; for `fragmented` see make_room. True: the members of a
// window, else the one of the least score.
//
// Under DTR_ROOM_AUTO the best score is the first choice, as it is the best use of what is freed
// beyond the request. If that one does not make the place, singles may be blind to what does: so in
// a fixed pool, and where bytes are lacking in one piece only, a window goes instead, unless
// further singles are likely to cost less.
bool Engine::choose_victims(Device& device, const Moment& moment, uint64_t size_bytes,
                            bool fragmented) {
  victims_.clear();
  const int32_t way = needs_.scores ? options_.room : DTR_ROOM_SINGLE;
  WindowNeed need{size_bytes, {}};
  bool wanted = way == DTR_ROOM_WINDOW || (way == DTR_ROOM_AUTO && (device.fixed || fragmented));
  if (wanted) {
    dtr_pool_get_room(device.pool, size_bytes, &need.room);
    // Where nothing is lacking what is missing is time, and no window.
    wanted = need.room.chunk_bytes > 0 && need.room.in_one_piece && need.room.lacking_chunks > 0;
  }
  Storage* single = wanted && way == DTR_ROOM_WINDOW ? nullptr : choose(device, moment);
  if (wanted) {
    const double singles = single ? price_of_singles(device, moment, need, single)
                                  : std::numeric_limits<double>::infinity();
    double joint = 0;
    if (singles > 0 && find_window(device, moment, need, &joint) && joint <= singles) {
      victims_ = members_;
      return true;
    }
    if (!single) single = choose(device, moment);
  }
  if (single) victims_.push_back(single);
  return false;
}

}  // namespace dtr
