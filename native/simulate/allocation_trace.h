// allocation_trace.h: what a run of an op log had in memory, and when.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "run/step_plan.h"

namespace dtr {

struct AllocationTrace {
  static constexpr uint64_t kNoOp = UINT64_MAX;
  static constexpr uint32_t kNoResult = UINT32_MAX;
  static constexpr uint64_t kNever = UINT64_MAX;
  // Time is counted in allocations and ends of operators.
  struct Block {
    uint64_t op;       // the operator of the program that allocated it, or kNoOp
    uint32_t run;      // 0: the operator's first run; then which of its repetitions
    uint32_t ordinal;  // of what that run allocated
    bool is_ahead;     // before the operator began
    uint64_t size_bytes;
    uint64_t begin;
    uint64_t end;  // when it was used last; of what cannot be computed again, when it was let go
    uint64_t last_op = kNoOp;  // whose run used it then; kNoOp: it was let go
    uint32_t last_run = 0;
    uint32_t result = kNoResult;  // which one of its run
    uint64_t dropped = kNever;    // when it lost its last name, if it was there until then
  };

  std::vector<Block> blocks;       // in order of allocation
  std::vector<uint64_t> begin_of;  // by operator of the program
  std::vector<uint64_t> calls;     // likewise, as the engine of this run has them
  uint64_t end = 0;
  std::vector<uint64_t> survivors;  // the storages that have a name at the end, by their serials
};

// A block in use. serial: the how manieth storage the program made, if it has a name; else 0.
struct NamedBlock {
  uint64_t serial;
  uint64_t offset;  // from the pool's first chunk
  uint64_t size_bytes;
  void* handle;
};

// Fills a trace, if there is one.
class AllocationTracer {
 public:
  explicit AllocationTracer(AllocationTrace* out) : out_(out) {}
  bool is_on() const { return out_ != nullptr; }

  void begins(uint64_t op) const {
    if (out_) out_->begin_of.resize(op + 1, out_->end);
  }
  void ended(uint64_t signature) const {
    if (out_) out_->calls.push_back(StepPlan::call_of(signature));
  }
  // What is allocated from now on is of this run.
  void run_begins(uint64_t op, bool is_first, bool is_ahead = false) {
    if (!out_) return;
    if (repetitions_.size() <= op) repetitions_.resize(op + 1, 0);
    running_ = {op, is_first ? 0 : ++repetitions_[op], 0, is_ahead, 0, 0, 0};
  }
  void run_ends() {
    if (!out_) return;
    running_.op = AllocationTrace::kNoOp;
    ++out_->end;
  }
  void allocated(const void* address, uint64_t size_bytes) {
    if (!out_ || !address) return;
    AllocationTrace::Block block = running_;
    block.size_bytes = size_bytes;
    block.begin = block.end = out_->end++;
    ++running_.ordinal;
    at_[address] = out_->blocks.size();
    out_->blocks.push_back(block);
  }
  void used(const void* address) const {
    AllocationTrace::Block* block = block_at(address);
    if (!block) return;
    block->end = out_->end;
    block->last_op = running_.op;
    block->last_run = running_.run;
  }
  void gave(uint32_t result, const void* address) const {
    if (AllocationTrace::Block* block = block_at(address)) block->result = result;
  }
  void dropped(const void* address) const {
    if (AllocationTrace::Block* block = block_at(address)) block->dropped = out_->end;
  }
  void survives(uint64_t serial) const { out_->survivors.push_back(serial); }

 private:
  // The last one there; null, too, without a trace.
  AllocationTrace::Block* block_at(const void* address) const {
    const auto found = at_.find(address);
    return found == at_.end() ? nullptr : &out_->blocks[found->second];
  }

  AllocationTrace* out_;
  AllocationTrace::Block running_{AllocationTrace::kNoOp, 0, 0, false, 0, 0, 0};
  std::unordered_map<const void*, size_t> at_;
  std::vector<uint32_t> repetitions_;  // by operator
};

}  // namespace dtr
