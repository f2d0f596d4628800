// Candidates::search (native/policy/candidates.h) against trying all: random candidates that come, go, are
// used, get dearer and cheaper, one by one and many at once, in steps of a few ns and long ones.
// Exits with 1 where another than the least exact score was found, or a rule of the columns is
// broken.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "random_candidates.h"

namespace {

class Run : Draws {
 public:
  Run(unsigned seed, double exponent, int64_t pause_ns)
      : Draws(seed), exponent_(exponent), pause_ns_(pause_ns) {
    candidates_.set_exponent(exponent);
  }

  bool go(int steps) {
    for (int step = 0; step < steps; ++step) {
      now_ += below(3) ? static_cast<int64_t>(below(3)) : pause_ns_;
      // Many at once fill blocks of their own.
      for (uint64_t count = below(20) ? below(4) : 150; count > 0; --count) add();
      if (made_.size() > 600) made_.erase(made_.begin(), made_.begin() + 300);
      if (!made_.empty() && below(2)) change(*made_[below(made_.size())]);
      if (!search()) return false;
    }
    return true;
  }

 private:
  // What is made together lies together, so that there are blocks of young ones.
  void add() {
    auto made = std::unique_ptr<Made, Removal>(new Made, Removal{&candidates_});
    made->id = ++ids_;
    made->size_bytes = kGrain;
    made->address = reinterpret_cast<void*>(++ids_ * kGrain);
    made->last_access_ns = now_;
    candidates_.add(made.get());
    made->bounds.weight = 1.0 / kGrain;
    made->bounds.size = kGrain;
    // What is old is not always what goes first.
    made->cost = spread(1000) * (below(2) ? 1 : static_cast<double>(pause_ns_));
    made->bounds.own_ns = made->cost;
    set(*made);
    made_.push_back(std::move(made));
  }

  void set(Made& made) {
    made.bounds.numerator_ns = made.cost;
    made.bounds.last_access_ns = made.last_access_ns;
    candidates_.set(&made, made.bounds, decreased_);
  }

  // An access, and what got dearer, need to tell nobody. All may lose so much, but not of their
  // own cost.
  void change(Made& made) {
    if (below(2)) made.last_access_ns = now_;
    if (below(2)) made.cost *= spread(10);
    if (below(9)) return;
    const auto lost = static_cast<int64_t>(spread(1000));
    decreased_ += lost;
    for (const auto& each : made_)
      each->cost = std::max(each->bounds.own_ns, each->cost - static_cast<double>(lost));
  }

  double score(const Made& made) const {
    const double staleness = std::max(static_cast<double>(now_ - made.last_access_ns), 1.0);
    return made.cost * made.bounds.weight / std::pow(staleness, exponent_);
  }

  // The best of what was looked at, which is in seen_.
  const dtr::Storage* search(size_t most_scores) {
    seen_.clear();
    return candidates_.search(now_, decreased_, dtr::Candidates::kNoFreeBytes, most_scores,
                              [&](dtr::Storage* storage, double, double* value) {
                                auto* made = static_cast<Made*>(storage);
                                seen_.push_back(made);
                                set(*made);
                                *value = score(*made);
                                return true;
                              });
  }

  bool search() {
    const auto before = [this](const Made* a, const Made* b) { return score(*a) < score(*b); };
    const size_t few = 1 + below(4);
    const dtr::Storage* first = search(few);
    if (seen_.size() > few ||
        (!seen_.empty() && *std::min_element(seen_.begin(), seen_.end(), before) != first)) {
      std::printf("%zu scores were computed for %zu, or the best was not taken\n", seen_.size(),
                  few);
      return false;
    }
    const Made* best = nullptr;
    for (const auto& made : made_)
      if (!best || score(*made) < score(*best)) best = made.get();
    const dtr::Storage* found = search(dtr::Candidates::kAny);
    if (found != best) std::printf("of %zu candidates another was found\n", made_.size());
    const std::string broken = candidates_.check(now_, decreased_);
    if (!broken.empty()) std::printf("%s\n", broken.c_str());
    return found == best && broken.empty();
  }

  struct Removal {
    dtr::Candidates* candidates;
    void operator()(Made* made) const {
      candidates->remove(made);
      delete made;
    }
  };

  double exponent_;
  int64_t pause_ns_;
  dtr::Candidates candidates_;
  std::vector<std::unique_ptr<Made, Removal>> made_;
  std::vector<const Made*> seen_;
  uint64_t ids_ = 0;
  int64_t now_ = 1, decreased_ = 0;
};

}  // namespace

int main() {
  for (const double exponent : {0.0, 0.25, 0.5, 1.0})
    for (const int64_t pause_ns : {1'000, 1'000'000, 100'000'000})
      for (unsigned seed = 0; seed < 3; ++seed)
        if (!Run(seed, exponent, pause_ns).go(2000)) return 1;
}
