#include "tqcache/eval/memory.h"

#include <algorithm>
#include <span>

namespace tqcache::eval {
namespace {

constexpr std::array<std::string_view, 20> kNames = {
    "Clara", "Oliver", "Hannah", "Felix", "Nora",  "Hugo",  "Alice", "Victor", "Ruth", "Simon",
    "Julia", "Oscar",  "Maria",  "Leon",  "Diana", "Marco", "Elena", "Karl",   "Iris", "Martin"};
constexpr std::array<std::string_view, 12> kJobs = {"baker",   "teacher", "nurse",  "farmer",
                                                    "painter", "sailor",  "lawyer", "doctor",
                                                    "tailor",  "pilot",   "weaver", "librarian"};
constexpr std::array<std::string_view, 12> kFoods = {"soup",     "bread", "cheese", "apples",
                                                     "pancakes", "salad", "honey",  "olives",
                                                     "potatoes", "beans", "rice",   "lobster"};
constexpr std::array<std::string_view, 8> kPets = {"dog",   "cat",    "parrot",  "rabbit",
                                                   "horse", "turtle", "hamster", "donkey"};
constexpr std::array<std::string_view, 8> kColors = {"red",    "blue",  "green", "yellow",
                                                     "purple", "white", "brown", "silver"};
constexpr std::array<std::string_view, 10> kHobbies = {"chess",   "painting", "fishing", "sailing",
                                                       "dancing", "cooking",  "hiking",  "swimming",
                                                       "cycling", "sewing"};
constexpr std::array<std::string_view, 6> kHellos = {"Hello! ", "Hi! ", "Good morning. ",
                                                     "",        "",     ""};
// What has happened to somebody, and says none of the values above. @ is a city.
constexpr std::array<std::string_view, 12> kEvents = {
    "Yesterday I went to @ by train, and it rained all the way.",
    "This morning the wind took a branch off the old tree behind the house.",
    "@ has bought a new gate, and it makes a terrible noise.",
    "The letter that I had waited for came at last, and it was only a bill.",
    "I met an old friend at the market in @, and we walked along the river.",
    "Last night I could not sleep, so I looked out of the window until the moon was gone.",
    "The bridge near the mill is closed, and everybody has to go the long way round.",
    "My brother wrote from @ that the summer there was very hot.",
    "The clock in the hall has stopped again, and nobody knows why.",
    "We had a storm in the evening, and the lamps went out in the whole street.",
    "There was a concert in the garden, and a great many people came.",
    "I have read half of a long book about the sea, and I like it very much."};
constexpr std::uint64_t kEventStep = 5;  // no divisor in common with their number: none comes twice
constexpr std::array<std::string_view, 3> kReplies = {"I see.", "Thank you for telling me.",
                                                      "Thank you. I will remember that."};

std::string pick(Draw& draw, std::span<const std::string_view> values) {
  return std::string(draw.one_of(values));
}

std::vector<Fact> draw_facts(Draw& draw) {
  const std::string name = pick(draw, kNames);
  const std::string city = pick(draw, kCities);
  const std::string job = pick(draw, kJobs);
  const std::string food = pick(draw, kFoods);
  const std::string pet = pick(draw, kPets);
  std::string pet_name = pick(draw, kNames);
  while (pet_name == name) pet_name = pick(draw, kNames);
  const std::string color = pick(draw, kColors);
  std::string hobby = pick(draw, kHobbies);
  const std::string age = std::to_string(10 + draw.below(80));
  return {
      {"My name is " + name + ".", "What is my name?", "Your name is " + name + ".", name},
      {"I live in " + city + ".", "Where do I live?", "You live in " + city + ".", city},
      {"I work as a " + job + ".", "What is my job?", "You work as a " + job + ".", job},
      {"My favorite food is " + food + ".", "What is my favorite food?",
       "Your favorite food is " + food + ".", food},
      {"I have a " + pet + " called " + pet_name + ".", "What is the name of my " + pet + "?",
       "Your " + pet + " is called " + pet_name + ".", pet_name},
      {"My favorite color is " + color + ".", "What is my favorite color?",
       "Your favorite color is " + color + ".", color},
      {"My hobby is " + hobby + ".", "What is my hobby?", "Your hobby is " + hobby + ".", hobby},
      {"I am " + age + " years old.", "How old am I?", "You are " + age + " years old.", age}};
}

// Who has said their name is called by it.
Turn telling_turn(Draw& draw, const std::vector<Fact>& facts, std::span<const std::size_t> chosen,
                  bool first) {
  Turn turn;
  if (first) turn.user = pick(draw, kHellos);
  std::string name;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    turn.user += (i > 0 ? " " : "") + facts[chosen[i]].told;
    if (chosen[i] == 0) name = ", " + facts[0].value;
  }
  turn.assistant =
      first ? "Nice to meet you" + name + "!" : "Thank you for telling me" + name + ".";
  return turn;
}

}  // namespace

Story draw_story(std::uint64_t seed) {
  Draw draw(seed);
  Story story = {draw_facts(draw), {}};
  std::array<std::size_t, kFactKinds.size()> order = {};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto j = static_cast<std::size_t>(draw.below(i + 1));
    order[i] = order[j];
    order[j] = i;
  }
  for (std::size_t done = 0; done < order.size();) {
    const std::size_t n = std::min<std::size_t>(1 + draw.below(4), order.size() - done);
    story.telling.push_back(
        telling_turn(draw, story.facts, std::span(order).subspan(done, n), done == 0));
    done += n;
  }
  return story;
}

std::string SmallTalk::other_city() {
  for (;;) {
    std::string city = pick(draw_, kCities);
    if (city != city_) return city;
  }
}

Turn SmallTalk::next() {
  Turn turn;
  const std::uint64_t n = 2 + draw_.below(3);
  std::uint64_t event = draw_.below(kEvents.size());
  for (std::uint64_t i = 0; i < n; ++i, event += kEventStep) {
    std::string text(kEvents[event % kEvents.size()]);
    if (const std::size_t at = text.find('@'); at != std::string::npos) {
      text.replace(at, 1, other_city());
    }
    turn.user += (i > 0 ? " " : "") + text;
  }
  turn.assistant = pick(draw_, kReplies);
  return turn;
}

}  // namespace tqcache::eval
