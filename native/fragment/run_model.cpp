#include "run_model.h"

#include <algorithm>

#include "base/clock.h"

namespace dtr::fragment {

namespace {

// More than any device has. A model may round what is less up without a care for 64 bits.
constexpr uint64_t kMostBytes = uint64_t{1} << 60;
constexpr uint64_t kLeastBlock = 4096;
// Blocks that all samples together look at: 65,000 at each of 2,000.
constexpr uint64_t kMostLooks = uint64_t{1} << 27;

// Runs the events through a model and calls after(step index) for each; ends before the first
// that finds no place. Returns how many went through.
template <typename F>
size_t run(const Events& events, Model& model, uint64_t* live, F&& after) {
  const auto& steps = events.steps();
  for (size_t at = 0; at < steps.size(); ++at) {
    const Step& step = steps[at];
    const Allocation& allocation = events.allocations()[step.allocation];
    model.row = step.row;
    // Nothing was asked for: no allocator gives a block.
    if (allocation.size_bytes != 0) {
      if (!step.begins) {
        model.free(step.allocation);
        *live -= allocation.size_bytes;
      } else if (allocation.size_bytes <= kMostBytes &&
                 after.place(step.allocation, model.allocate(step.allocation, allocation.size_bytes,
                                                             allocation.stream))) {
        *live += allocation.size_bytes;
      } else {
        return at;
      }
    }
    after(at);
  }
  return steps.size();
}

struct Peak {
  uint64_t bytes = 0;
  size_t at = 0;
  void see(uint64_t value, size_t step) {
    if (value <= bytes) return;
    bytes = value;
    at = step;
  }
};

// What the first pass notes after each event.
struct Counting {
  Model& model;
  const uint64_t& live;
  size_t first;  // step whose end is the first moment: the start's last one
  Peak live_peak, reserved_peak, used_peak, lost_peak;
  double lost_sum = 0;

  bool place(uint32_t, uint64_t address) { return address != kNoPlace; }
  void operator()(size_t at) {
    const uint64_t reserved = model.reserved_bytes();
    live_peak.see(live, at);
    reserved_peak.see(reserved, at);
    used_peak.see(model.used_bytes(), at);
    if (at < first) return;
    const uint64_t lost = reserved - live;
    lost_peak.see(lost, at);
    lost_sum += static_cast<double>(lost);
  }
};

// What the second pass notes where it looks.
struct Sampling {
  Model& model;
  const uint64_t& live;
  const std::vector<Step>& steps;
  const std::vector<size_t>& looks;  // ascending step indices
  size_t worst;
  ModelRun& outcome;
  size_t next = 0;

  bool place(uint32_t id, uint64_t address) {
    if (address == kNoPlace) return false;
    if (!outcome.places.empty()) outcome.places[id] = address;
    return true;
  }
  void operator()(size_t at) {
    if (next == looks.size() || looks[next] != at) return;
    ++next;
    dtr_fragment_sample sample{};
    sample.row = steps[at].row;
    sample.live_bytes = live;
    sample.used_bytes = model.used_bytes();
    sample.reserved_bytes = model.reserved_bytes();
    auto blocks = model.blocks();
    for (const dtr_fragment_block& block : blocks) {
      if (block.used) continue;
      const auto size = static_cast<double>(block.size_bytes);
      sample.free_bytes += block.size_bytes;
      sample.largest_free_bytes = std::max(sample.largest_free_bytes, block.size_bytes);
      sample.sum_free_squares += size * size;
      ++sample.free_blocks;
    }
    outcome.samples.push_back(sample);
    if (at == worst) outcome.worst = std::move(blocks);
  }
};

// `count` of the steps from the first to the last, evenly, and those that must be among them.
std::vector<size_t> looks_at(size_t first, size_t last, uint64_t count,
                             std::initializer_list<size_t> also) {
  std::vector<size_t> looks;
  const size_t steps = last - first + 1;
  const size_t wanted = std::min<size_t>(steps, count);
  for (size_t i = 0; i < wanted; ++i)
    looks.push_back(first +
                    static_cast<size_t>(static_cast<unsigned __int128>(steps) * i / wanted));
  for (const size_t at : also) looks.push_back(std::max(at, first));
  looks.push_back(last);
  std::ranges::sort(looks);
  looks.erase(std::unique(looks.begin(), looks.end()), looks.end());
  return looks;
}

}  // namespace

dtr_fragment_result ModelRun::whole() const {
  dtr_fragment_result all = result;
  const auto give = [](const auto& values, auto* to, uint64_t* count) {
    *to = values.data();
    *count = values.size();
  };
  give(samples, &all.samples, &all.samples_count);
  give(places, &all.places, &all.places_count);
  give(worst, &all.worst, &all.worst_count);
  give(last, &all.last, &all.last_count);
  give(segments, &all.segments, &all.segments_count);
  return all;
}

void run_model(const Events& events, const dtr_fragment_options& options, ModelRun& outcome) {
  const auto count = static_cast<uint32_t>(events.allocations().size());
  const auto& steps = events.steps();
  dtr_fragment_result& result = outcome.result;

  uint64_t live = 0;
  // What the blocks take together, however they are rounded.
  const uint64_t needed = 2 * events.peak_live_bytes() + kLeastBlock * count;
  auto model = make_model(options, count, needed);
  const auto start = static_cast<size_t>(
      std::ranges::lower_bound(steps, options.start_rows, {}, &Step::row) - steps.begin());
  size_t first = start == 0 ? 0 : start - 1;
  Counting counting{*model, live, first, {}, {}, {}, {}};
  const int64_t begin = now_ns();
  const size_t done = run(events, *model, &live, counting);
  result.run_ns = now_ns() - begin;
  result.events = steps.size();
  result.served_events = done;
  result.completed = done == steps.size() ? 1 : 0;
  result.failed_row = result.completed ? -1 : static_cast<int64_t>(steps[done].row);
  result.failed_bytes =
      result.completed ? 0 : events.allocations()[steps[done].allocation].size_bytes;
  result.peak_live_bytes = counting.live_peak.bytes;
  result.peak_used_bytes = counting.used_peak.bytes;
  result.peak_reserved_bytes = counting.reserved_peak.bytes;
  if (done > 0 && done <= first) {  // it failed in the start: how far it came is the only moment
    first = done - 1;
    counting.first = first;
    counting(first);
  }
  result.max_lost_bytes = counting.lost_peak.bytes;
  result.mean_lost_bytes = done == 0 ? 0 : counting.lost_sum / static_cast<double>(done - first);
  result.end_live_bytes = live;
  result.end_reserved_bytes = model->reserved_bytes();
  outcome.segments = model->segments();
  if (options.samples == 0 && !options.places) return;

  model = make_model(options, count, needed);
  live = 0;
  if (options.places && model->has_places()) outcome.places.assign(count, kNoPlace);
  std::vector<size_t> looks;
  if (done > 0)
    looks = looks_at(first, done - 1,
                     std::min(options.samples, kMostLooks / (events.peak_live_blocks() + 1)),
                     {counting.live_peak.at, counting.reserved_peak.at, counting.lost_peak.at});
  Sampling sampling{*model, live, steps, looks, counting.lost_peak.at, outcome};
  run(events, *model, &live, sampling);
  outcome.last = model->blocks();
}

}  // namespace dtr::fragment
