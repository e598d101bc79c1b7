#pragma once
// eval/memory.h: a conversation in which somebody tells about themselves, and then talks of other
// things.
//
//   user: Hello! My name is Clara. I live in Lyon.     assistant: Nice to meet you, Clara!
//   user: Can you find me a bus to Oslo?               assistant: There is a bus to Oslo at 4:15
//   ...
//   ...
//   user: What is my name?                             assistant: Your name is Clara.
//
// All of it is drawn from a seed. What is told stands in one place of the conversation only: small
// talk never says a value that is asked for.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/eval/answers_draw.h"

namespace tqcache::eval {

// The kinds of facts, in the order of Story::facts.
inline constexpr std::array<std::string_view, 8> kFactKinds = {"name", "city",  "job",   "food",
                                                               "pet",  "color", "hobby", "age"};

struct Fact {
  std::string told;      // "I live in Lyon."
  std::string question;  // "Where do I live?"
  std::string answer;    // "You live in Lyon."
  std::string value;     // "Lyon"
};

struct Turn {
  std::string user;
  std::string assistant;
};

// One person: a fact of every kind, and the turns that tell them, a few at a time in any order.
struct Story {
  std::vector<Fact> facts;  // [kFactKinds]
  std::vector<Turn> telling;
};

// The same seed gives the same story.
Story draw_story(std::uint64_t seed);

// Turns about other things, as many as one likes.
class SmallTalk {
 public:
  // `city` is where the person of the story lives: it is not spoken of.
  SmallTalk(std::uint64_t seed, std::string_view city) : draw_(seed), city_(city) {}

  Turn next();

 private:
  std::string other_city();

  Draw draw_;
  std::string city_;
};

}  // namespace tqcache::eval
