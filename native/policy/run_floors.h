// run_floors.h: what runs of candidates cost at least; for the search for windows (candidates.h).
//
// A *run* is the part of a window that the columns know: the candidates from a first one on, until
// with all that lies between and beside them `wanted` bytes are spanned. Its price is the sum of
// its members'. Here stand the members of each block in the order of their addresses, with lower
// bounds of their prices and with the first members of the block behind. Of runs that begin in a
// block,
//
//   B1  one costs at least the sum of its members' bounds, or of the first kMost's and, for
//       what these do not span, the least rate (price by span) that it may meet, or the least price
//       of those with a large span;
//   B2  all cost at least the least *product* of a member or one of those behind, or what these
//       behind cost together. The product of a member is its price * max(wanted, span) / span (C3):
//       one member of a run is paid in full, and together their spans cover it. Of members whose
//       span is of the same power of sqrt 2 as what is wanted, or above, the price counts alone;
//   B3  all cost at least the least B1, without the rest, that was asked for before, for a size of
//       the same power and not above, if neither the block nor these behind have changed since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "address_order.h"

namespace dtr {

class RunFloors {
 public:
  static constexpr size_t kBlock = AddressOrder::kBlock;
  static constexpr size_t kMost = 13;  // members (B1)
  // Rounding makes no bound too large by more than this share.
  static constexpr double kSlack = 1e-6;

  void resize(size_t blocks);

  // Of each block that has changed; prices, spans: by slot. Then, before anything is asked,
  // finish().
  void set(const AddressOrder& order, uint32_t block, const float* prices, const float* spans);
  void finish(const AddressOrder& order);

  // By block, what runs of so many bytes cost at least that begin in it (B2, B3).
  void of_blocks(uint64_t wanted, float* floors) const;
  // The same of a block's members, in the order of addresses (B1); what is behind the last is
  // infinite. The least of them.
  float of_members(const AddressOrder& order, uint32_t block, uint64_t wanted, float* floors);

  // B1, of what is behind the first members: the least rate, and the least price of those whose
  // span is large.
  struct Rest {
    float rate, price;
  };

  // The bound that a member was set with.
  float price(uint32_t block, uint32_t rank) const { return prices_[block * kLine + rank]; }

 private:
  static constexpr size_t kAhead = kMost;  // members of the block behind
  static constexpr size_t kLine = kBlock + kAhead;
  // Powers of the root of two, from 256 bytes to 4 GiB.
  static constexpr int kFirstPower = 16, kPowers = 48;
  static int power_of(float bytes);

  bool set_ahead(uint32_t block, uint32_t behind);
  void set_products(uint32_t block);
  Rest rest_of(const AddressOrder& order, uint32_t block, uint64_t wanted) const;

  size_t blocks_ = 0, capacity_ = 0;
  // By block and rank: a member's price, its span, where it begins, and where what may be free
  // before it does. Addresses count from the block's own first.
  std::vector<float> prices_, spans_, begins_, lows_;
  // By block:
  std::vector<uint64_t> bases_;
  std::vector<uint32_t> counts_;
  std::vector<uint8_t> is_set_;  // since finish()
  std::vector<uint32_t> set_;    // these blocks
  std::vector<float> behind_;    // B2, what these cost together
  // B2, by power and block: the least price of those whose span is of the power or above, and
  // the least price by span of those whose span is below.
  std::vector<float> least_prices_, least_rates_;
  // B3: how often anything was set when a block changed; by power and block, the same when it was
  // asked for, and the size and its floor.
  uint32_t times_set_ = 0;
  std::vector<uint32_t> changed_, asked_;
  std::vector<float> asked_sizes_, asked_floors_;
};

}  // namespace dtr
