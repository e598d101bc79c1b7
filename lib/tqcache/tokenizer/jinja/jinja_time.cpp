#include <chrono>

#include "tqcache/tokenizer/jinja/jinja_program.h"

namespace tqcache::tokenizer::jinja {
namespace {

constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                   "May",       "June",     "July",     "August",
                                   "September", "October",  "November", "December"};
constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};

int day_of_week(const CivilTime& time) {
  const std::chrono::year_month_day date{std::chrono::year(time.year),
                                         std::chrono::month(static_cast<unsigned>(time.month)),
                                         std::chrono::day(static_cast<unsigned>(time.day))};
  return static_cast<int>(std::chrono::weekday(std::chrono::sys_days(date)).c_encoding());
}

std::string padded(int number, std::size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits;
}

}  // namespace

std::optional<std::string> format_time(std::string_view format, const CivilTime& time) {
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const bool is_bare = format.substr(i + 1).starts_with('-');  // no leading zero
    i += is_bare ? 2 : 1;
    const std::size_t two = is_bare ? 1 : 2;
    const std::string month = kMonths[time.month - 1], day = kDays[day_of_week(time)];
    const char code = i < format.size() ? format[i] : '\0';
    if (code == '%')
      out += '%';
    else if (code == 'Y')
      out += std::to_string(time.year);
    else if (code == 'y')
      out += padded(time.year % 100, two);
    else if (code == 'm')
      out += padded(time.month, two);
    else if (code == 'd')
      out += padded(time.day, two);
    else if (code == 'B')
      out += month;
    else if (code == 'b')
      out += month.substr(0, 3);
    else if (code == 'A')
      out += day;
    else if (code == 'a')
      out += day.substr(0, 3);
    else if (code == 'H')
      out += padded(time.hour, two);
    else if (code == 'M')
      out += padded(time.minute, two);
    else if (code == 'S')
      out += padded(time.second, two);
    else if (code == 'I')
      out += padded((time.hour + 11) % 12 + 1, two);
    else if (code == 'p')
      out += time.hour < 12 ? "AM" : "PM";
    else
      return std::nullopt;
  }
  return out;
}

}  // namespace tqcache::tokenizer::jinja
