// address_order.h: ranges of addresses, in slots that keep their order without keeping sorted.
//
// Slots stand in blocks of kBlock, for columns beside them that are read by blocks. Each block has
// the ranges between two addresses, in any slots of its own, and a list of them in order; so an
// insertion moves bytes of that list, not entries. Rules, checked by check():
//   A1  In the order of `sequence_`, and inside of each block in the order of its list, ranges
//   begin
//       at addresses that do not fall. (Two versions of one buffer begin at the same for a moment.)
//   A2  No block is empty. Blocks that are neighbors hold more than kMerged entries together, or a
//       removal has not looked at them yet.
//   A3  floors_ has the first address of each block, in the order of `sequence_`.
//
// An entry changes its slot where its block is split, or merged, or takes a gap: whoever keeps
// columns or slots gets a call move(from, to) for each, before anything is written to `to`.
//
// Cost: a removal or insertion is O(log blocks) plus a few moved bytes, and now and then half a
// block's entries. Steady sizes allocate nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace dtr {

class AddressOrder {
 public:
  static constexpr uint32_t kBlock = 64;
  static constexpr uint32_t kMerged = 56;  // blocks of fewer entries together become one
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kFar = uint64_t{1} << 48;  // bytes: more than any pool has

  uint32_t blocks() const { return static_cast<uint32_t>(lists_.size()); }
  uint32_t count(uint32_t block) const { return lists_[block].count; }
  // The blocks in the order of addresses; kNone where there is none.
  uint32_t first_block() const { return sequence_.empty() ? kNone : sequence_.front(); }
  uint32_t block_behind(uint32_t block) const {
    const uint32_t at = lists_[block].at + 1;
    return at < sequence_.size() ? sequence_[at] : kNone;
  }
  uint32_t block_before(uint32_t block) const {
    const uint32_t at = lists_[block].at;
    return at > 0 ? sequence_[at - 1] : kNone;
  }
  // The entry of a block that so many others of it precede.
  uint32_t slot_at(uint32_t block, uint32_t rank) const {
    return block * kBlock + lists_[block].order[rank];
  }
  uint32_t rank_of(uint32_t slot) const { return lists_[slot / kBlock].rank[slot % kBlock]; }
  uint64_t begin(uint32_t slot) const { return begins_[slot]; }
  uint64_t end(uint32_t slot) const { return ends_[slot]; }

  // The first of a block, and what follows or precedes an entry; kNone where there is none.
  uint32_t first_of(uint32_t block) const { return slot_at(block, 0); }
  uint32_t last_of(uint32_t block) const { return slot_at(block, count(block) - 1); }
  uint32_t next(uint32_t slot) const {
    const List& list = lists_[slot / kBlock];
    const uint32_t rank = rank_of(slot) + 1;
    if (rank < list.count) return slot / kBlock * kBlock + list.order[rank];
    return list.at + 1 < sequence_.size() ? first_of(sequence_[list.at + 1]) : kNone;
  }
  uint32_t previous(uint32_t slot) const {
    const List& list = lists_[slot / kBlock];
    const uint32_t rank = rank_of(slot);
    if (rank > 0) return slot / kBlock * kBlock + list.order[rank - 1];
    return list.at > 0 ? last_of(sequence_[list.at - 1]) : kNone;
  }
  uint32_t first() const { return sequence_.empty() ? kNone : first_of(sequence_.front()); }
  // The ranges' first address and the last one's, of a block.
  uint64_t floor_of(uint32_t block) const { return floors_[lists_[block].at]; }

  // A slot for a new range. grow(blocks) is called before the columns need so many.
  template <typename Grow, typename Move>
  uint32_t insert(uint64_t begin, uint64_t end, Grow&& grow, Move&& move) {
    if (sequence_.empty()) add_block(0, grow);
    uint32_t at = place_of(begin);
    if (lists_[sequence_[at]].count == kBlock) {
      split(at, grow, move);
      at = place_of(begin);
    }
    const uint32_t block = sequence_[at];
    List& list = lists_[block];
    const auto before = [&](uint64_t value, uint8_t entry) {
      return value < begins_[block * kBlock + entry];
    };
    uint8_t* const rank = std::upper_bound(list.order, list.order + list.count, begin, before);
    const auto free = static_cast<uint8_t>(__builtin_ctzll(~list.used));
    std::memmove(rank + 1, rank, static_cast<size_t>(list.order + list.count - rank));
    *rank = free;
    move_ranks(list, static_cast<uint32_t>(rank - list.order), 1);
    list.rank[free] = static_cast<uint8_t>(rank - list.order);
    ++list.count;
    list.used |= uint64_t{1} << free;
    const uint32_t slot = block * kBlock + free;
    begins_[slot] = begin;
    ends_[slot] = end;
    if (rank == list.order) floors_[at] = begin;
    return slot;
  }

  template <typename Shrink, typename Move>
  void erase(uint32_t slot, Shrink&& shrink, Move&& move) {
    const uint32_t block = slot / kBlock;
    List& list = lists_[block];
    const uint32_t rank = rank_of(slot);
    --list.count;
    std::memmove(list.order + rank, list.order + rank + 1, list.count - rank);
    move_ranks(list, rank, -1);
    list.used &= ~(uint64_t{1} << slot % kBlock);
    const uint32_t at = list.at;
    if (list.count == 0) return drop_block(at, shrink, move);
    if (rank == 0) floors_[at] = begins_[first_of(block)];
    if (list.count > kMerged / 2) return;
    if (at + 1 < sequence_.size() && fits(at, at + 1)) return merge(at, shrink, move);
    if (at > 0 && fits(at - 1, at)) merge(at - 1, shrink, move);
  }

  // Empty if the rules hold, else the broken one.
  const char* check() const {
    uint64_t last = 0;
    for (uint32_t at = 0; at < sequence_.size(); ++at) {
      const uint32_t block = sequence_[at];
      const List& list = lists_[block];
      if (list.at != at || sequence_.size() != lists_.size()) return "A1: a block is out of order";
      if (list.count == 0) return "A2: a block is empty";
      if (floors_[at] != begins_[first_of(block)]) return "A3: a block begins elsewhere";
      uint64_t used = 0;
      for (uint32_t i = 0; i < list.count; ++i) {
        const uint64_t begin = begins_[block * kBlock + list.order[i]];
        if (begin < last) return "A1: addresses fall";
        last = begin;
        used |= uint64_t{1} << list.order[i];
        if (list.rank[list.order[i]] != i) return "A1: an entry's rank is another";
      }
      if (used != list.used) return "A1: a block lists other slots than are in use";
    }
    return "";
  }

 private:
  struct List {
    uint64_t used;  // slots, a bit each
    uint32_t at;    // its place in sequence_
    uint32_t count;
    uint8_t order[kBlock];
    uint8_t rank[kBlock];  // by slot: where in order it stands
  };

  // An entry comes to stand at the rank, or goes from there: those behind it have moved by one.
  // (What stands for slots not in use is of no account.)
  static void move_ranks(List& list, uint32_t from, int by) {
    for (uint8_t& rank : list.rank) rank = static_cast<uint8_t>(rank + (rank >= from ? by : 0));
  }
  // The last block that begins at or below the address; else the first.
  uint32_t place_of(uint64_t address) const {
    const auto above = std::upper_bound(floors_.begin() + 1, floors_.end(), address);
    return static_cast<uint32_t>(above - floors_.begin()) - 1;
  }
  bool fits(uint32_t low, uint32_t high) const {
    return lists_[sequence_[low]].count + lists_[sequence_[high]].count <= kMerged;
  }
  void renumber(uint32_t from) {
    for (uint32_t at = from; at < sequence_.size(); ++at) lists_[sequence_[at]].at = at;
  }

  template <typename Grow>
  uint32_t add_block(uint32_t at, Grow&& grow) {
    const uint32_t block = blocks();
    grow(block + 1);
    begins_.resize((block + 1) * kBlock);
    ends_.resize((block + 1) * kBlock);
    lists_.push_back(List{0, at, 0, {}, {}});
    sequence_.insert(sequence_.begin() + at, block);
    floors_.insert(floors_.begin() + at, 0);
    renumber(at);
    return block;
  }

  // Puts an entry at the end of a block's list, in a free slot.
  template <typename Move>
  void append(uint32_t from, uint32_t block, Move&& move) {
    List& list = lists_[block];
    const auto free = static_cast<uint32_t>(__builtin_ctzll(~list.used));
    const uint32_t to = block * kBlock + free;
    begins_[to] = begins_[from];
    ends_[to] = ends_[from];
    move(from, to);
    list.rank[free] = static_cast<uint8_t>(list.count);
    list.order[list.count++] = static_cast<uint8_t>(free);
    list.used |= uint64_t{1} << free;
  }

  // The upper half goes to a new block.
  template <typename Grow, typename Move>
  void split(uint32_t at, Grow&& grow, Move&& move) {
    const uint32_t fresh = add_block(at + 1, grow);
    const uint32_t block = sequence_[at];
    List& list = lists_[block];
    // What comes at the end of everything is likely to go on there.
    const uint32_t stay = at + 2 == sequence_.size() ? kBlock - 8 : kBlock / 2;
    for (uint32_t i = stay; i < kBlock; ++i) {
      append(block * kBlock + list.order[i], fresh, move);
      list.used &= ~(uint64_t{1} << list.order[i]);
    }
    list.count = stay;
    floors_[at + 1] = begins_[first_of(fresh)];
  }

  // Two neighbors become one.
  template <typename Shrink, typename Move>
  void merge(uint32_t low, Shrink&& shrink, Move&& move) {
    const uint32_t into = sequence_[low], from = sequence_[low + 1];
    for (uint32_t i = 0; i < lists_[from].count; ++i)
      append(from * kBlock + lists_[from].order[i], into, move);
    lists_[from].count = 0;
    drop_block(low + 1, shrink, move);
  }

  // Of an empty block; the last one takes its slots.
  template <typename Shrink, typename Move>
  void drop_block(uint32_t at, Shrink&& shrink, Move&& move) {
    const uint32_t block = sequence_[at], last = blocks() - 1;
    sequence_.erase(sequence_.begin() + at);
    floors_.erase(floors_.begin() + at);
    if (block != last) {
      lists_[block] = lists_[last];
      for (uint32_t i = 0; i < lists_[block].count; ++i) {
        const uint32_t slot = lists_[block].order[i];
        begins_[block * kBlock + slot] = begins_[last * kBlock + slot];
        ends_[block * kBlock + slot] = ends_[last * kBlock + slot];
        move(last * kBlock + slot, block * kBlock + slot);
      }
      for (uint32_t& entry : sequence_)
        if (entry == last) entry = block;
    }
    lists_.pop_back();
    renumber(at);
    begins_.resize(last * kBlock);
    ends_.resize(last * kBlock);
    shrink(last);
  }

  std::vector<List> lists_;         // by block
  std::vector<uint32_t> sequence_;  // blocks by address
  std::vector<uint64_t> floors_;    // in that order
  std::vector<uint64_t> begins_, ends_;
};

}  // namespace dtr
