// schedule_api.cpp: the C functions of the search for schedules.
#include <memory>
#include <vector>

#include "dtr_alloc.h"
#include "error.h"
#include "search.h"

namespace {

// Behind the opaque dtr_schedule.
struct Schedule {
  dtr_schedule_result result{};
  std::vector<int64_t> evictions;
};

}  // namespace

extern "C" {

int32_t dtr_schedule_search(const dtr_search_options* options, const int64_t* program,
                            uint64_t numbers, dtr_schedule** out) {
  *out = nullptr;
  return dtr::guard([&] {
    using namespace dtr::schedule;
    const Plan plan(program, numbers);
    Search search(plan, options->budget_bytes, options->seed);
    auto schedule = std::make_unique<Schedule>();
    search.sweep();
    schedule->result.swept_cost = search.best().remat_cost;
    schedule->result.steps = search.walk(options->steps, options->seconds);
    const Outcome& best = search.best();
    schedule->result.found = best.status == Status::ok;
    if (schedule->result.found) {
      schedule->result.dealloc = best.keeps ? DTR_DEALLOC_IGNORE : DTR_DEALLOC_EAGER;
      schedule->result.remat_cost = best.remat_cost;
      schedule->result.evictions = best.evictions.size();
      for (const Eviction& eviction : best.evictions) {
        schedule->evictions.push_back(eviction.after);
        schedule->evictions.push_back(plan.storages[eviction.storage].root);
      }
    }
    *out = reinterpret_cast<dtr_schedule*>(schedule.release());
  });
}

void dtr_schedule_destroy(dtr_schedule* schedule) { delete reinterpret_cast<Schedule*>(schedule); }

void dtr_schedule_get_result(const dtr_schedule* schedule, dtr_schedule_result* out) {
  *out = reinterpret_cast<const Schedule*>(schedule)->result;
}

const int64_t* dtr_schedule_evictions(const dtr_schedule* schedule) {
  return reinterpret_cast<const Schedule*>(schedule)->evictions.data();
}

}  // extern "C"
