#include "errors.h"

#include <cinttypes>
#include <cstdio>

namespace dtr {

std::string size_text(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "no limit";
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  if (unit == 0)
    std::snprintf(text, sizeof text, "%" PRIu64 " bytes", bytes);
  else
    std::snprintf(text, sizeof text, "%.1f %s (%" PRIu64 " bytes)", value, units[unit], bytes);
  return text;
}

std::string address_text(uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%" PRIx64, address);
  return text;
}

}  // namespace dtr
