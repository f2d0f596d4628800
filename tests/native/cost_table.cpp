// Commands on stdin to a CostTable (native/policy/costs.h), one answer a line:
//   add SIGNATURE NS, fix SIGNATURE NS READINGS,
//   own CLOCK_NS PROCESSOR_NS SLEEPS (native/base/thread_use.h),
//   estimate SIGNATURE BYTES DEVICE, readings SIGNATURE, fill FIRST COUNT NS, size, clear
#include <cstdint>
#include <iostream>
#include <string>

#include "base/thread_use.h"
#include "policy/costs.h"

int main() {
  dtr::CostTable table;
  std::string command;
  while (std::cin >> command) {
    uint64_t a = 0, b = 0, c = 0;
    if (command == "add") {
      std::cin >> a >> b;
      std::cout << table.add(a, 7, static_cast<int64_t>(b)) << "\n";
    } else if (command == "fix") {
      std::cin >> a >> b >> c;
      std::cout << table.fix(a, 7, static_cast<int64_t>(b), c) << "\n";
    } else if (command == "own") {
      dtr::ThreadUse use;
      std::cin >> use.clock_ns >> use.processor_ns >> use.sleeps;
      std::cout << use.own_ns() << "\n";
    } else if (command == "estimate") {
      std::cin >> a >> b >> c;
      std::cout << table.estimate(a, b, static_cast<uint8_t>(c)) << "\n";
    } else if (command == "readings") {
      std::cin >> a;
      uint64_t readings = 0;
      table.for_each([&](const dtr::CostTable::Entry& entry) {
        if (entry.signature == a) readings = entry.readings;
      });
      std::cout << readings << "\n";
    } else if (command == "fill") {
      std::cin >> a >> b >> c;
      for (uint64_t i = 0; i < b; ++i) table.add(a + i, 7, static_cast<int64_t>(c));
      std::cout << table.size() << "\n";
    } else if (command == "size") {
      std::cout << table.size() << "\n";
    } else if (command == "clear") {
      table.clear();
      std::cout << table.size() << "\n";
    } else {
      return 2;
    }
  }
  return 0;
}
