#include "trace.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <utility>

#include "draw.h"

namespace tqcache::simulation {
namespace {

struct Conversation {
  std::int64_t id = 0, system_prompt = 0;
  std::int64_t shared_tokens = 0;
  std::int64_t known_tokens = 0;
};

struct User {
  Conversation now;
  std::int64_t turns_left = 0;
  std::deque<Conversation> earlier;  // the latest first
};

class Tracer {
 public:
  explicit Tracer(const Workload& workload)
      : w_(workload),
        random_(workload.seed),
        popularity_(static_cast<std::size_t>(w_.n_system_prompts), w_.zipf_exponent),
        recency_(static_cast<std::size_t>(w_.n_remembered), 1),
        users_(static_cast<std::size_t>(w_.n_users)) {
    for (std::int64_t i = 0; i < w_.n_system_prompts; ++i)
      system_tokens_.push_back(tokens(w_.system_tokens, w_.system_sigma, w_.max_tokens / 2));
  }

  std::vector<Request> run() {
    std::vector<Request> trace;
    trace.reserve(static_cast<std::size_t>(w_.n_requests));
    for (std::int64_t user = 0; user < w_.n_users; ++user)
      next_.emplace(random_.exponential(w_.pause_seconds), user);
    while (std::ssize(trace) < w_.n_requests) {
      const auto [seconds, user] = next_.top();
      next_.pop();
      trace.push_back(ask(seconds, user));
    }
    return trace;
  }

 private:
  std::int64_t tokens(double median, double sigma, std::int64_t most) {
    const double drawn = random_.log_normal(median, sigma);
    return std::clamp(static_cast<std::int64_t>(std::min(drawn, 1e9)), std::int64_t{1}, most);
  }

  Request ask(double seconds, std::int64_t user) {
    User& who = users_[static_cast<std::size_t>(user)];
    if (who.turns_left == 0) sit_down(who);
    const std::int64_t said = tokens(w_.user_tokens, w_.user_sigma, w_.max_tokens / 4);
    const std::int64_t answer = tokens(w_.answer_tokens, w_.answer_sigma, w_.max_tokens / 4);
    // A conversation of the maximum length is not resumed.
    if (before(who.now) + said + answer > w_.max_tokens) begin(who);
    Conversation& c = who.now;
    const Request request{
        seconds,          user,  c.id, c.system_prompt, c.shared_tokens, c.known_tokens,
        before(c) + said, answer};
    c.known_tokens = request.all_tokens();
    --who.turns_left;
    next_.emplace(seconds + wait(who), user);
    return request;
  }

  static std::int64_t before(const Conversation& c) {
    return std::max(c.shared_tokens, c.known_tokens);
  }

  double wait(const User& who) {
    return who.turns_left > 0 ? random_.log_normal(w_.think_seconds, w_.think_sigma)
                              : random_.exponential(w_.pause_seconds);
  }

  void sit_down(User& who) {
    who.turns_left = random_.geometric(w_.turns);
    if (who.now.known_tokens > 0) remember(who);
    if (who.earlier.empty() || !random_.chance(w_.resume)) return begin(who);
    const auto which =
        static_cast<std::ptrdiff_t>(recency_.draw_among(random_, who.earlier.size()));
    who.now = who.earlier[static_cast<std::size_t>(which)];
    who.earlier.erase(who.earlier.begin() + which);
  }

  void begin(User& who) {
    const std::size_t rank = popularity_.draw(random_);
    who.now = {n_conversations_++, static_cast<std::int64_t>(rank), system_tokens_[rank], 0};
  }

  void remember(User& who) {
    who.earlier.push_front(who.now);
    if (std::ssize(who.earlier) > w_.n_remembered) who.earlier.pop_back();
  }

  using Event = std::pair<double, std::int64_t>;  // seconds, user

  const Workload& w_;
  Random random_;
  Zipf popularity_, recency_;
  std::vector<std::int64_t> system_tokens_;
  std::vector<User> users_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> next_;
  std::int64_t n_conversations_ = 0;
};

}  // namespace

std::vector<Request> make_trace(const Workload& workload) { return Tracer(workload).run(); }

}  // namespace tqcache::simulation
